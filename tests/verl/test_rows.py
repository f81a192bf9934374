"""What is read of verl's jagged tensors, and what is logged of it."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.errors import EgpoWarning, InputError
from egpo.segments import opened_by_prompt
from egpo.verl.measures import corrected_metrics, measure, step_metrics, usable_tags
from egpo.verl.rows import FIELDS, rows_of
from tests.local.conftest import build_tokenizer
from tests.verl.batches import rows_for

THINK = ("<think>", "</think>")


def jagged(rows, dtype=None):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


class Extra(list):
    def tolist(self):
        return list(self)


def jagged_batch(tokenizer, texts):
    """A batch of (prompt, response, score, what the reward said), with 0.1, 0.2, ... as entropies."""
    prompts, responses, scores, said = zip(*texts, strict=True)
    prompts, responses = (
        [tokenizer.encode(text, add_special_tokens=False) for text in part] for part in (prompts, responses)
    )
    tokens = [[0.1 * (i + 1) for i in range(len(row))] for row in responses]
    data = {
        "prompts": jagged(prompts),
        "responses": jagged(responses),
        "response_mask": jagged([[1] * len(row) for row in responses]),
        "entropy": jagged(tokens),
        "old_log_probs": jagged([[-x for x in row] for row in tokens]),
        "rm_scores": jagged([[0.0] * (len(r) - 1) + [s] for r, s in zip(responses, scores, strict=True)]),
        "extra_fields": Extra({"reward_extra_info": one} for one in said),
    }
    assert set(data) == set(FIELDS)
    return data


def batch_of(tokenizer, texts):
    return rows_of(jagged_batch(tokenizer, texts), ["a"] * len(texts))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))


def test_a_tag_that_the_prompt_opened_counts(tokenizer):
    """The fault of the reference implementation: there every row had H = 0, and EGPO was GRPO."""
    said = {"acc": 1.0, "failed": 0.0, "reason": "correct"}
    rows = batch_of(tokenizer, [("Hi\n<think>\n", "hm</think>yes", 1.0, said), ("Hi", "yes", 0.0, said)])
    with pytest.warns(EgpoWarning, match="50% of 2 responses have neither"):
        measures = measure(rows, tokenizer, THINK)
    assert measures.opened_B.tolist() == [True, False]
    assert measures.entropy["thinking"].isnan().tolist() == [False, True]
    closing = rows.response_BT[0].tolist().index(tokenizer.convert_tokens_to_ids("</think>"))
    expected = 0.1 * sum(range(1, closing + 2)) / (closing + 1)
    assert measures.entropy["thinking"][0] == pytest.approx(expected, abs=1e-6)
    assert rows.score_B.tolist() == [1.0, 0.0]


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@given(order=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["<think>\n", "Hi", "Hi<think>"])), min_size=1))
def test_which_prompts_open_the_tag_is_asked_once_a_prompt_and_right_for_every_row(tokenizer, order):
    """A group's prompts are alike, unless an agent loop changed one."""
    data = jagged_batch(tokenizer, [(prompt, "yes", 0.0, {}) for _, prompt in order])
    rows = rows_of(data, [group for group, _ in order])
    expected_B = opened_by_prompt(rows.prompt_BS, rows.prompt_mask_BS, tokenizer, THINK)
    assert torch.equal(measure(rows, tokenizer, THINK).opened_B, expected_B)


def test_rows_of_one_length_may_come_as_a_plain_tensor(tokenizer):
    said = {"acc": 1.0}
    data = jagged_batch(tokenizer, [("Hi", "yes", 1.0, said), ("Hi", "yes", 1.0, said)])
    plain = {name: value.to_padded_tensor(0) if hasattr(value, "offsets") else value for name, value in data.items()}
    expected, rows = rows_of(data, ["a", "a"]), rows_of(plain, ["a", "a"])
    assert torch.equal(rows.prompt_mask_BS, expected.prompt_mask_BS)
    assert torch.equal(rows.entropy_BT, expected.entropy_BT)


def test_metrics_of_a_step(tokenizer):
    texts = [
        ("Hi\n<think>\n", "hm</think>yes", 1.0, {"acc": 1.0, "failed": 0.0, "reason": "correct"}),
        ("Hi\n<think>\n", "hm</think>no", 0.0, {"acc": 0.0, "failed": 0.0, "reason": "wrong_answer"}),
        ("Hi\n<think>\n", "hm</think>no", 0.0, {"acc": 0.0, "failed": 1.0, "reason": "checker timeout"}),
    ]
    rows = batch_of(tokenizer, texts)
    metrics = step_metrics(rows, measure(rows, tokenizer, THINK))
    assert metrics["reward/error_frac"] == pytest.approx(1 / 3)
    assert metrics["critic/acc/mean"] == 0.5
    assert metrics["reward/reason/checker_timeout"] == pytest.approx(1 / 3)
    assert metrics["groups/all_right_frac"] == metrics["groups/none_right_frac"] == 0.0
    assert {"entropy/thinking", "entropy/answer", "entropy/response"} <= set(metrics)
    assert all(isinstance(value, float) for value in metrics.values())


def test_the_sampler_is_compared_with_the_trainer_on_the_models_own_tokens():
    rows = rows_for(["a", "a"])
    mask_BT = rows.mask_BT.clone()
    mask_BT[0, 1:] = False
    sampled_BT = rows.logp_BT.clone()
    sampled_BT[0] += 7.0
    sampled_BT[1, 0] -= 0.5
    metrics = step_metrics(
        dataclasses.replace(rows, mask_BT=mask_BT, sampled_logp_BT=sampled_BT), measure(rows, None, None)
    )
    assert metrics["sampler/logp_diff_max"] == pytest.approx(7.0, abs=1e-5)
    assert metrics["sampler/logp_diff_mean"] == pytest.approx(7.5 / int(mask_BT.sum()), abs=1e-5)
    assert "sampler/logp_diff_mean" not in step_metrics(rows, measure(rows, None, None))


def test_the_entropy_of_all_tokens_does_not_depend_on_how_the_loss_is_averaged():
    """verl's `actor/entropy` is a mean of sums over a fixed length under `seq-mean-token-sum-norm`."""
    rows = rows_for(["a", "a"])
    mask_BT = rows.mask_BT.clone()
    mask_BT[0, 1:] = False
    entropy_BT = torch.ones_like(rows.entropy_BT)
    entropy_BT[0] = 8.0
    metrics = step_metrics(dataclasses.replace(rows, mask_BT=mask_BT, entropy_BT=entropy_BT), measure(rows, None, None))
    assert metrics["actor/entropy"] == pytest.approx((8 + 6 * 1) / 7)
    nothing = dataclasses.replace(rows, mask_BT=torch.zeros_like(mask_BT))
    assert "actor/entropy" not in step_metrics(nothing, measure(nothing, None, None))


def test_a_reward_from_outside_that_says_nothing_more_has_no_accuracy():
    """verl calls a bare score `acc` too, shaped or not."""
    rows = rows_for(["a", "a", "b"])
    for said in ({}, {"acc": 0.7}, {"acc": None}):
        bare = dataclasses.replace(rows, information=(said,) * 3)
        assert bare.correct_B is None
        assert bare.comparable_B.tolist() == [True, True, True]
        assert "critic/acc/mean" not in step_metrics(bare, measure(bare, None, None))


def test_a_penalty_in_verl_s_reward_is_no_part_of_the_score():
    rows = rows_for(["a"] * 4, failed={3})
    told = [{**one, "score": score + extra} for one, score, extra in
            zip(rows.information, rows.score_B.tolist(), [0.0, 0.5, 0.0, 0.0], strict=True)]  # fmt: skip
    assert "reward/overlong_penalty/mean" not in corrected_metrics(rows)
    rows = dataclasses.replace(rows, information=tuple(told))
    metrics = corrected_metrics(rows)
    assert metrics["critic/score/mean"] == pytest.approx(float(rows.score_B[:3].mean()) + 0.5 / 3)
    assert metrics["reward/overlong_penalty/mean"] == pytest.approx(0.125)
    assert metrics["reward/overlong_penalty/max"] == pytest.approx(0.5)


def test_a_group_with_one_judged_response_has_nothing_to_compare():
    rows = rows_for(["a", "a", "b", "b", "b", "c"], failed={0, 2})
    assert rows.comparable_B.tolist() == [False, False, False, True, True, True]


def test_a_tokenizer_without_the_tags_is_refused_where_the_estimator_needs_them():
    tokenizer, tags = build_tokenizer(), ("<think>", "</think>")
    assert usable_tags(tags, tokenizer, "thinking") == tags
    blind = TokenizerOfDigits()
    with pytest.raises(InputError, match="the tokenizer cannot spell the tag `<think>`"):
        usable_tags(tags, blind, "thinking")
    with pytest.warns(EgpoWarning, match="entropy is logged for whole responses only"):
        assert usable_tags(tags, blind, "response") is None


class TokenizerOfDigits:
    """Spells digits; everything else is unknown."""

    vocab_size = 11

    def __init__(self):
        self.added_tokens_decoder = {}

    def get_vocab(self):
        return {**{str(i): i for i in range(10)}, "<unk>": 10}

    def encode(self, text, add_special_tokens=False):
        return [int(c) if c.isdigit() else 10 for c in text]

    def decode(self, ids, **_):
        return "".join(str(i) if i < 10 else "<unk>" for i in ids)

    def batch_decode(self, rows, **_):
        return [self.decode(row) for row in rows]
