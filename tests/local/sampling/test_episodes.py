"""Episodes: one sequence with the environment's tokens in between, recorded as a separate forward pass computes it."""

import pytest
import torch

from egpo.config.schema import Rollout
from egpo.environments import EnvironmentHost
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.measure import measure
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.sampling import episode_rows
from egpo.local.sampling.sample import sample
from egpo.local.updates.micro_batches import TokenBudget
from egpo.local.updates.reference import packed_logp
from tests.local.conftest import CONFIGS
from tests.local.sampling.talking import SlowTalk, Talk, Talking
from tests.local.sampling.test_sample import Echo

ENDS = tuple(range(3, 33))
"""Stop tokens, so many that turns of a random model differ in length."""


@pytest.fixture(autouse=True)
def _talk_here(monkeypatch):
    """The environment in this process, as one of the package's own; its class is chosen by `use`."""
    use(monkeypatch, Talk)


def use(monkeypatch, kind, place="here"):
    def hosted(task, problem):
        host = EnvironmentHost(kind)
        host._place = place
        return host

    monkeypatch.setattr(episode_rows, "host_of", hosted)


def drawn(policy, task=None, draws=None, **settings):
    task = task or Talking()
    episodes = {"max_turn_tokens": 12} | settings.pop("episodes", {})
    settings = {"n": 3, "max_response_tokens": 160, "stop_tokens": ENDS, "episodes": episodes} | settings
    return sample(policy, task, task.problems("train"), Rollout(**settings), draws or Draws(1))


def same(one, other):
    assert one.texts == other.texts
    for name in ("response_BT", "mask_BT", "logp_BT", "entropy_BT", "finished_B"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert [row.turns for row in one.episodes] == [row.turns for row in other.episodes]


@torch.no_grad()
def plain_statistics(policy, rollouts, row):
    prompt = rollouts.prompts[int(rollouts.problem_B[row])]
    response = rollouts.responses()[row]
    policy.model.set_attn_implementation("eager")
    logits = policy.model(torch.tensor([[*prompt, *response]], device=policy.device), use_cache=False).logits[0]
    policy.model.set_attn_implementation(ATTENTION_NAME)
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), dim=-1)
    return logp[torch.arange(len(response)), torch.tensor(response, device=policy.device)], -(logp.exp() * logp).sum(-1)


def check_statistics(policy, rollouts):
    for row in range(len(rollouts)):
        logp, entropy = plain_statistics(policy, rollouts, row)
        mask = rollouts.mask_BT[row, : len(logp)]
        torch.testing.assert_close(rollouts.logp_BT[row, : len(logp)], logp * mask, atol=2e-4, rtol=0)
        torch.testing.assert_close(rollouts.entropy_BT[row, : len(logp)], entropy * mask, atol=2e-4, rtol=0)
        assert not rollouts.logp_BT[row, len(logp) :].any()


def check_turns(policy, rollouts):
    """The tokens of a row are those of its turns, and between them what the template writes there."""
    for row, episode in enumerate(rollouts.episodes):
        tokens, record = rollouts.responses()[row], episode.record
        assert len(episode.turns) == len(record.turns)
        assert not record.verdict.failed
        for (start, end), turn in zip(episode.turns, record.turns, strict=True):
            assert policy.tokenizer.decode(tokens[start:end], skip_special_tokens=True) == turn.text
            assert rollouts.mask_BT[row, start:end].all()
        for (_, end), (start, _), turn in zip(episode.turns, episode.turns[1:], record.turns, strict=False):
            (message,) = turn.messages
            between = policy.tokenizer.decode(tokens[end:start])
            said = f"\n<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
            closes = tokens[end - 1] != policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
            assert between == ("<|im_end|>" if closes else "") + said
            assert not rollouts.mask_BT[row, end:start].any()


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_recorded_statistics_equal_a_separate_forward_pass(load, shape):
    policy = load(shape)
    rollouts = drawn(policy)
    assert {len(episode.turns) for episode in rollouts.episodes} == {1, 2, 3, 4}
    check_turns(policy, rollouts)
    check_statistics(policy, rollouts)


def test_the_layers_through_torch_give_the_same(load, monkeypatch):
    monkeypatch.setattr("egpo.local.models.policy.can_step_in_c", lambda model: False)
    policy = load("qwen3")
    rollouts = drawn(policy)
    check_turns(policy, rollouts)
    check_statistics(policy, rollouts)


def test_the_update_reads_what_was_recorded(load):
    policy = load("qwen3")
    rollouts = drawn(policy)
    found = packed_logp(policy, rollouts, 1.0, TokenBudget(300))
    torch.testing.assert_close(found, rollouts.logp_BT, atol=2e-4, rtol=0)


def test_an_episode_of_one_turn_is_a_single_response(load):
    policy, texts = load("qwen3"), ["a", "bb ccc"]
    one = drawn(policy, Talking(texts, [1, 1]), max_response_tokens=24, episodes={"max_turn_tokens": None})
    settings = Rollout(n=3, max_response_tokens=24, stop_tokens=ENDS)
    task = Echo(texts)
    other = sample(policy, task, task.problems("train"), settings, Draws(1))
    for name in ("response_BT", "mask_BT", "logp_BT", "entropy_BT", "finished_B"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_slow_tools_change_nothing(load, monkeypatch):
    """The same bits with other delays, and the same words as with tools that never wait."""
    policy = load("qwen3")
    at_once = drawn(policy)
    use(monkeypatch, Talk, place="waits")
    waiting = drawn(policy)
    use(monkeypatch, SlowTalk, place="waits")
    same(waiting, drawn(policy))
    assert at_once.responses() == waiting.responses()


LONG = "y" * 180
"""A prompt that nearly fills the context of 256 tokens."""


@pytest.mark.parametrize(
    ("history", "texts", "episodes"),
    [
        ("keep", ("a", "bb ccc", "a longer prompt than the others", "dd"), {}),
        ("per_turn", ("a", "bb ccc", "a longer prompt than the others", "dd"), {}),
        ("per_turn", ("a", LONG, LONG[:150], "dd"), {"max_turn_tokens": 30}),
        ("per_turn", ("a", "bb ccc", LONG[:60], "dd"), {"max_turn_tokens": None}),
    ],
)
def test_a_row_does_not_depend_on_its_company(load, history, texts, episodes):
    policy, task = load("qwen3"), Talking(texts, (3, 4, 4, 2))
    episodes = {"history": history, "max_turns": 4} | episodes
    whole = drawn(policy, task, episodes=episodes)
    alone = [
        drawn(policy, Talking((p.key,), (p.extra["num_turns"],)), episodes=episodes) for p in task.problems("train")
    ]
    for problem, part in enumerate(alone):
        rows = [row for row, owner in enumerate(whole.problem_B.tolist()) if owner == problem]
        assert [whole.responses()[row] for row in rows] == part.responses()
        assert [whole.episodes[row] for row in rows] == list(part.episodes)


def test_limits_of_turns_and_tokens(load):
    policy = load("qwen3")
    few = drawn(policy, episodes={"max_turns": 2})
    assert max(len(episode.turns) for episode in few.episodes) == 2
    assert {episode.record.ending for episode in few.episodes} == {"turn_limit", "finished"}
    short = drawn(policy, max_response_tokens=40)
    assert int(short.end_B.max()) <= 40
    assert "token_limit" in {episode.record.ending for episode in short.episodes}
    whole = drawn(policy)
    for row, episode in enumerate(short.episodes):  # a lower limit only cuts
        length = episode.turns[-1][0]
        assert short.responses()[row][:length] == whole.responses()[row][:length]


def test_a_prompt_without_room_for_its_first_turn_is_refused(load):
    policy, task = load("qwen3"), Talking(("a", LONG), (1, 2))
    sizes = [len(drawn(policy, task, episodes={"history": "per_turn"}).prompts[1]), policy.context]
    room = sizes[1] - sizes[0]
    fits = drawn(policy, task, episodes={"history": "per_turn", "max_turn_tokens": room})
    assert {row.record.ending for row in fits.episodes} <= {"finished", "token_limit"}
    lower = rf"problem {LONG[:80]}: a prompt of {sizes[0]} tokens and a turn of {room + 1} do not fit .*; "
    with pytest.raises(InputError, match=f"{lower}lower rollout.episodes.max_turn_tokens to {room} or less"):
        drawn(policy, task, episodes={"history": "per_turn", "max_turn_tokens": room + 1})
    with pytest.raises(InputError, match=r"an episode of 160 .*; lower rollout.max_response_tokens"):
        drawn(policy, task, episodes={"history": "keep"})
    with pytest.raises(InputError, match="shorter prompts"):
        drawn(policy, Talking((2 * LONG,), (1,)), episodes={"history": "per_turn"})


def test_an_episode_whose_conversation_fills_the_context_ends_at_the_limit_of_tokens(load):
    policy, task = load("qwen3"), Talking(("a", LONG), (4, 4))
    found = drawn(policy, task, episodes={"history": "per_turn", "max_turn_tokens": 24})
    for row, episode in enumerate(found.episodes):
        turns = zip(episode.prompts, episode.turns, strict=True)
        assert all(len(prompt) + end - start <= policy.context for prompt, (start, end) in turns)
        assert (episode.record.ending == "token_limit") == (row >= 3)


def test_one_sample_per_turn_where_the_template_rewrites_history(load):
    policy = load("qwen3")
    rollouts = drawn(policy, episodes={"history": "per_turn"})
    turns, row_of = rollouts.by_turn()
    assert len(turns) == sum(len(episode.turns) for episode in rollouts.episodes)
    assert sorted(set(row_of)) == list(range(len(rollouts)))
    check_statistics(policy, turns)
    found = packed_logp(policy, turns, 1.0, TokenBudget(300))
    torch.testing.assert_close(found, turns.logp_BT, atol=2e-4, rtol=0)
    for row, episode in enumerate(rollouts.episodes):
        for turn, prompt in enumerate(episode.prompts):
            said = [one.text for one in episode.record.turns[:turn]]
            text = policy.tokenizer.decode(prompt)
            assert all(f"<|im_start|>assistant\n{one}<|im_end|>" in text for one in said), row


def test_both_ways_agree_where_the_template_keeps_history_and_tokens(load):
    """As long as the text of a turn has the tokens that were sampled, which a random model's bytes seldom have."""
    policy, task = load("qwen3"), Talking(("a", "b"), (3, 4))
    ways = ({"max_turn_tokens": 2, "history": way} for way in ("keep", "per_turn"))
    keep, split = (drawn(policy, task, n=24, stop_tokens=(), episodes=episodes) for episodes in ways)
    compared = 0
    for row, (one, other) in enumerate(zip(keep.episodes, split.episodes, strict=True)):
        for place, (turn, again) in enumerate(zip(one.record.turns, other.record.turns, strict=False)):
            assert turn == again
            compared += place > 0
            tokens = keep.responses()[row][slice(*one.turns[place])]
            if policy.tokenizer(turn.text, add_special_tokens=False)["input_ids"] != tokens:
                break
    assert compared > 3


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ("auto", "an episode is one sequence (rollout.episodes.history=keep: the chat template leaves"),
        ("keep", "an episode is one sequence (rollout.episodes.history=keep: as set)"),
        ("per_turn", "each turn is a sample of its own (rollout.episodes.history=per_turn: as set)"),
    ],
)
def test_the_history_in_force_is_said_once(load, capsys, history, said):
    policy, task = load("qwen3"), Talking(("a",), (1,))
    for _ in range(2):
        drawn(policy, task, episodes={"history": history})
    assert capsys.readouterr().err.count(f"egpo: notice: episodes: {said}") == 1


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_thinking_of_all_turns_is_measured(load):
    policy = load("qwen3")
    rollouts = drawn(policy)
    measures = measure(policy, rollouts, ("<think>", "</think>"))
    assert torch.equal(measures.segments.response_BT, rollouts.mask_BT)
    inside = measures.segments.thinking_BT | measures.segments.answer_BT
    assert not (inside & ~rollouts.mask_BT).any()
    entropy = (rollouts.entropy_BT * rollouts.mask_BT).sum(1) / rollouts.mask_BT.sum(1)
    torch.testing.assert_close(measures.entropy["response"], entropy.cpu(), atol=1e-5, rtol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_a_gpu_samples_the_episodes_of_a_cpu(load_on_cpu, load_on_gpu, monkeypatch, shape):
    here, there = drawn(load_on_gpu(shape)), drawn(load_on_cpu(shape))
    check_turns(load_on_gpu(shape), here)
    check_statistics(load_on_gpu(shape), here)
    assert here.texts == there.texts
    assert [one.record for one in here.episodes] == [one.record for one in there.episodes]
    use(monkeypatch, SlowTalk, place="waits")
    assert drawn(load_on_gpu(shape)).texts == here.texts
    few = drawn(load_on_gpu(shape), rows_at_once=4)
    assert few.texts == here.texts
