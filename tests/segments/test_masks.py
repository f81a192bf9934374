"""Segment masks: by hand, against the slow reference, and each fault of an earlier implementation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from egpo.errors import EgpoWarning, InputError
from egpo.segments import mean_over, opened_by_prompt, segment_masks
from tests.segments import reference
from tests.segments.tokenizers_for_tests import BUILDERS, tokenizer_named

KINDS = sorted(BUILDERS)
FRAGMENTS = [
    "<think>",
    "</think>",
    "<",
    "/",
    "think",
    ">",
    "</thi",
    "nk>",
    ">\n\n",
    "\n",
    "a",
    " b",
    ".</",
    "<<think>>",
]


def encode(text, kind):
    return tokenizer_named(kind).encode(text, add_special_tokens=False)


def segments_of(text, kind, *, opened=False, tags=("<think>", "</think>"), left=0, right=0):
    """The three segments of one text as text, with padding on either side."""
    tokenizer = tokenizer_named(kind)
    ids = encode(text, kind)
    padded = torch.tensor([[0] * left + ids + [0] * right])
    mask = torch.tensor([[0] * left + [1] * len(ids) + [0] * right])
    segments = segment_masks(padded, mask, tokenizer, tags, opened_B=opened)
    assert torch.equal(segments.response_BT, mask.bool())
    cut = [tokenizer.decode(padded[0][part[0]]) for part in (segments.thinking_BT, segments.answer_BT)]
    return [part.strip() for part in cut]


# Where a token holds the end of a tag and what follows it, text cannot say where the cut is: the reference below does.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "glued tokens"])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (0, 3), (2, 5)])
class TestByHand:
    def test_both_tags_in_the_response(self, kind, left, right):
        text = "<think>so x=1 and y=2. </think> The answer is 7."
        thinking, answer = segments_of(text, kind, left=left, right=right)
        assert thinking == "so x=1 and y=2. </think>"
        assert answer == "The answer is 7."

    def test_opened_in_the_prompt(self, kind, left, right):
        """The reference implementation asked for both tags in the response, and found no thinking in any."""
        thinking, answer = segments_of("let me see </think> 7", kind, left=left, right=right)
        assert thinking == "let me see </think>"
        assert answer == "7"

    def test_truncated_thought_opened_in_the_response(self, kind, left, right):
        assert segments_of("<think>let me see", kind, left=left, right=right) == ["let me see", ""]

    def test_truncated_thought_opened_in_the_prompt(self, kind, left, right):
        assert segments_of("let me see", kind, opened=True, left=left, right=right) == ["let me see", ""]

    def test_no_tags_at_all_is_answer_and_warns(self, kind, left, right):
        with pytest.warns(EgpoWarning, match="100% of 1 responses have neither `<think>` nor `</think>`"):
            assert segments_of("the answer is 7", kind, left=left, right=right) == ["", "the answer is 7"]

    def test_nested_tags_end_at_the_first_closing_one(self, kind, left, right):
        text = "<think>a <think> b </think> c </think> d"
        assert segments_of(text, kind, left=left, right=right) == ["a <think> b </think>", "c </think> d"]

    def test_a_tag_quoted_in_the_answer_does_not_move_the_cut(self, kind, left, right):
        text = "<think>a </think> say <think> and </think> again"
        assert segments_of(text, kind, left=left, right=right) == ["a </think>", "say <think> and </think> again"]

    def test_text_before_the_opening_tag_is_in_neither(self, kind, left, right):
        assert segments_of("a b <think>a </think> 7", kind, left=left, right=right) == ["a </think>", "7"]

    def test_other_tags(self, kind, left, right):
        text = "<thinking> a > b, so </thinking> 7"
        tags = ("<thinking>", "</thinking>")
        assert segments_of(text, kind, tags=tags, left=left, right=right) == ["a > b, so </thinking>", "7"]


@st.composite
def rows(draw):
    """Rows of ids, some spelt from text and some at random, with holes in the mask, right-padded to one length."""
    kind = draw(st.sampled_from(KINDS))
    size = len(tokenizer_named(kind))
    texts = draw(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join), min_size=1, max_size=5))
    ids = [encode(text, kind) + draw(st.lists(st.integers(0, size - 1), max_size=3)) for text in texts]
    length = max(map(len, ids)) + draw(st.integers(0, 3))
    mask = [[draw(st.integers(0, 9)) > 0 for _ in row] + [False] * (length - len(row)) for row in ids]
    padding = draw(st.integers(0, size - 1))
    ids = [row + [padding] * (length - len(row)) for row in ids]
    opened = [draw(st.booleans()) for _ in ids]
    return kind, ids, mask, opened


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@settings(max_examples=400)
@given(rows())
def test_masks_equal_the_slow_reference(case):
    kind, ids, mask, opened = case
    if not ids[0]:
        return
    tokenizer = tokenizer_named(kind)
    fast = segment_masks(torch.tensor(ids), torch.tensor(mask), tokenizer, opened_B=torch.tensor(opened))
    for i, row in enumerate(ids):
        thinking, answer = reference.segments(row, mask[i], tokenizer, ("<think>", "</think>"), opened[i])
        assert fast.thinking_BT[i].tolist() == thinking
        assert fast.answer_BT[i].tolist() == answer
        assert fast.response_BT[i].tolist() == mask[i]


@pytest.mark.parametrize("kind", ["one token", "several tokens", "glued tokens", "sentencepiece"])
def test_tags_that_are_not_ascii(kind):
    tags = ("◁think▷", "◁/think▷")
    assert segments_of("◁think▷ let ◁/think▷ 7", kind, tags=tags) == ["let ◁/think▷", "7"]


def test_masks_live_in_response_coordinates():
    """The multiplicative original indexed prompt + response with a response mask: shifted by the padded prompt."""
    tokenizer = tokenizer_named("one token")
    prompt, response = encode("</think> 3 + 4", "one token"), encode("see</think> 7", "one token")
    alone = segment_masks(torch.tensor([response]), torch.ones(1, len(response)), tokenizer)
    assert alone.thinking_BT[0].tolist() == [
        i <= response.index(encode("</think>", "one token")[0]) for i in range(len(response))
    ]
    with pytest.raises(InputError, match="without the prompt"):
        segment_masks(torch.tensor([prompt + response]), torch.ones(1, len(response)), tokenizer)


def test_a_tag_in_a_tool_result_does_not_count():
    tokenizer = tokenizer_named("several tokens")
    parts = [("let me", 1), ("</think>", 0), (" see</think>", 1), (" 7", 1)]
    ids = [i for text, _ in parts for i in encode(text, "several tokens")]
    mask = [on for text, on in parts for _ in encode(text, "several tokens")]
    segments = segment_masks(torch.tensor([ids]), torch.tensor([mask]), tokenizer, opened_B=True)
    assert tokenizer.decode(torch.tensor(ids)[segments.answer_BT[0]]) == " 7"


def test_padding_may_hold_any_id():
    tokenizer = tokenizer_named("one token")
    ids = encode("see</think> 7", "one token")
    for padding in (encode("</think>", "one token")[0], -100, 2**31):
        row = torch.tensor([[padding] * 2 + ids + [padding] * 2])
        mask = torch.tensor([[0] * 2 + [1] * len(ids) + [0] * 2])
        segments = segment_masks(row, mask, tokenizer)
        assert tokenizer.decode(row[0][segments.answer_BT[0]]) == " 7"


def test_ids_past_the_tokenizer_are_no_tags():
    """Model vocabularies are padded to round numbers: 151,936 words where the tokenizer has 151,669."""
    tokenizer = tokenizer_named("one token")
    ids = [len(tokenizer) + 7, *encode("see</think> 7", "one token"), len(tokenizer) + 99]
    segments = segment_masks(torch.tensor([ids]), torch.ones(1, len(ids)), tokenizer)
    assert int(segments.answer_BT.sum()) == len(encode(" 7", "one token")) + 1


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("user: 3 + 4\nassistant: <think>\n", True),
        ("user: 3 + 4\nassistant: <think>", True),
        ("user: 3 + 4\nassistant: ", False),
        ("user: 3 + 4\nassistant: <think>\n\n</think>\n\n", False),
        ("user: what is <think> for?\nassistant: ", False),
        ("<think>a</think> b\nuser: more\nassistant: <think>\n", True),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_opened_by_prompt(kind, prompt, opened):
    ids = encode(prompt, kind)
    padded, mask = torch.tensor([[0, 0, *ids]]), torch.tensor([[0, 0, *[1] * len(ids)]])
    assert opened_by_prompt(padded, mask, tokenizer_named(kind)).tolist() == [opened]


def test_opened_by_prompt_with_padding_on_the_right_and_no_rows():
    tokenizer = tokenizer_named("one token")
    ids = encode("user: 3\nassistant: <think>\n", "one token")
    padded, mask = torch.tensor([[*ids, 5, 5]]), torch.tensor([[*[1] * len(ids), 0, 0]])
    assert opened_by_prompt(padded, mask, tokenizer).tolist() == [True]
    assert opened_by_prompt(padded[:0], mask[:0], tokenizer).shape == (0,)


def test_tags_added_to_a_tokenizer_that_was_used_before():
    """A stale table would find no thinking at all, in silence."""
    tokenizer = BUILDERS["several tokens"]()
    for _ in range(2):
        ids = torch.tensor([tokenizer.encode("let me</think> 7", add_special_tokens=False)])
        answer = segment_masks(ids, torch.ones_like(ids), tokenizer).answer_BT
        assert tokenizer.decode(ids[answer]) == " 7"
        tokenizer.add_tokens(["<think>", "</think>"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int64])
@pytest.mark.parametrize("opened", [True, 1, [1], [True], torch.tensor([1]), torch.tensor([1.0])])
@pytest.mark.parametrize("tags", [("<think>", "</think>"), ["<think>", "</think>"]])
def test_ids_flags_and_tags_may_be_given_in_any_form(dtype, opened, tags):
    ids = torch.tensor([encode("let me see", "one token")], dtype=dtype)
    segments = segment_masks(ids, torch.ones_like(ids), tokenizer_named("one token"), tags, opened_B=opened)
    assert segments.thinking_BT.all()


@pytest.mark.parametrize("tags", [("<<", ">>"), ("<a>", "abab"), ("<a>", "aaab>"), ("«pensée»", "«/pensée»")])
@pytest.mark.parametrize("text", ["x >>> y", "ababab z", "aaaab> k", "a«/pensée» b", "x >> >> y", "abaabab z"])
@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_tags_that_repeat_or_overlap_themselves(tags, text):
    tokenizer = BUILDERS["glued tokens"]()
    tokenizer.add_tokens([">>>", "ab", "aab>", "«/pensée»"])
    ids = tokenizer.encode(text, add_special_tokens=False)
    fast = segment_masks(torch.tensor([ids]), torch.ones(1, len(ids)), tokenizer, tags)
    thinking, answer = reference.segments(ids, [True] * len(ids), tokenizer, tags, False)
    assert fast.thinking_BT[0].tolist() == thinking
    assert fast.answer_BT[0].tolist() == answer


def test_special_tags_of_a_sentencepiece_tokenizer():
    tokenizer = BUILDERS["sentencepiece"]()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = torch.tensor([tokenizer.encode("so</think> 7", add_special_tokens=False)])
    segments = segment_masks(ids, torch.ones_like(ids), tokenizer)
    assert tokenizer.decode(ids[segments.answer_BT]).strip() == "7"


def test_a_tokenizer_with_holes_in_its_ids():
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "<think>": 50, "</think>": 51}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    ids = torch.tensor([tokenizer.encode("a </think> b", add_special_tokens=False)])
    assert segment_masks(ids, torch.ones_like(ids), tokenizer).answer_BT.tolist() == [[False, False, True]]


def test_mean_over():
    value = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), 4.0, float("inf")], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    means = mean_over(value, mask)
    assert means[:2].tolist() == [1.5, 4.0]
    assert means[2].isnan()
    assert mean_over(value.bfloat16(), mask).dtype == torch.float32
    long = torch.full((1, 4096), 40.0, dtype=torch.float16)
    assert mean_over(long, torch.ones_like(long)).tolist() == [40.0], "the sum, 163,840, is past float16's range"
    with pytest.raises(InputError, match="same shape"):
        mean_over(value, mask[:, :1])


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_an_empty_batch_stays_empty(shape):
    segments = segment_masks(torch.zeros(shape, dtype=torch.long), torch.zeros(shape), tokenizer_named("one token"))
    assert segments.thinking_BT.shape == segments.answer_BT.shape == shape


def test_rows_that_are_all_masked_have_no_segment():
    segments = segment_masks(torch.ones(2, 4, dtype=torch.long), torch.zeros(2, 4), tokenizer_named("one token"))
    assert not (segments.thinking_BT | segments.answer_BT | segments.response_BT).any()


def test_segments_by_name():
    segments = segment_masks(torch.ones(2, 4, dtype=torch.long), torch.zeros(2, 4), tokenizer_named("one token"))
    assert segments.named("answer") is segments.answer_BT
    with pytest.raises(InputError, match=r"unknown segment `thinkin`; did you mean `thinking`\?"):
        segments.named("thinkin")


class TestBadInput:
    def test_a_tag_that_the_tokenizer_cannot_spell_never_becomes_unk(self):
        with pytest.raises(InputError, match="the tokenizer cannot spell the tag `♞`"):
            segment_masks(
                torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3), tokenizer_named("characters"), ("<think>", "♞")
            )

    @pytest.mark.parametrize("tags", [("<t>", "<t>"), ("think>", "</think>"), ("<think>", "")])
    def test_tags_that_contain_one_another(self, tags):
        with pytest.raises(InputError, match="neither tag may"):
            segment_masks(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3), tokenizer_named("one token"), tags)

    @pytest.mark.parametrize("tags", ["<think>", ("<think>",), ("a", "b", "c")])
    def test_tags_that_are_no_pair(self, tags):
        with pytest.raises(InputError, match="give the opening and the closing tag"):
            segment_masks(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3), tokenizer_named("one token"), tags)

    def test_flags_for_another_number_of_rows(self):
        with pytest.raises(InputError, match="one value per row"):
            segment_masks(
                torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3), tokenizer_named("one token"), opened_B=[True] * 3
            )

    def test_responses_that_are_no_ids(self):
        with pytest.raises(InputError, match="give integer token ids"):
            segment_masks(torch.ones(2, 3), torch.ones(2, 3), tokenizer_named("one token"))

    def test_ids_of_another_tokenizer(self):
        with pytest.raises(InputError, match="use the tokenizer of the model"):
            segment_masks(torch.full((1, 3), 10**7), torch.ones(1, 3), tokenizer_named("one token"))
