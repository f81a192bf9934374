"""Episodes under verl are those of the embedded engine: the same tokens, masks, segments, means and advantages.

The sampling server is the record of an episode: it answers with the ids that were sampled in it. B rows, T tokens.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.config.schema import Algorithm, Rollout
from egpo.config.sections.training import EpisodeSettings
from egpo.environments import Environment, EnvironmentHost, EpisodeRecord, replay
from egpo.errors import ConfigError, EgpoError, EgpoWarning, InputError
from egpo.local.collect import Batch, _known, judge
from egpo.local.draws import Draws
from egpo.local.measure import estimate
from egpo.local.measure import measure as measure_here
from egpo.local.sampling import episode_rows
from egpo.local.sampling.sample import sample
from egpo.rewards.verdict import Verdict
from egpo.tasks import load_task
from egpo.verl.episode_player import COLUMN, EpisodePlayer, EpisodeSpec, SampledTurn, episode_spec
from egpo.verl.estimators import (
    EstimatorInputs,
    estimator_for,
    register_estimators,
    register_forms_of_judged,
    with_inputs,
)
from egpo.verl.launch.refusals import refuse_what_verl_lacks
from egpo.verl.measures import corrected_metrics, episode_lengths, measure
from egpo.verl.rows import Rows, find_responses, require_judged
from egpo.verl.settings import read_settings
from tests.local.conftest import TEMPLATE, load, model_folder  # noqa: F401
from tests.local.sampling.talking import Talk, Talking
from tests.verl.launch.recipes import small

TAGS = ("<think>", "</think>")
ENDS = tuple(range(3, 33))
"""Stop tokens, so many that turns of a random model differ in length."""
KEPT = EpisodeSettings(history="keep")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*have neither:egpo.errors.EgpoWarning"),
    pytest.mark.filterwarnings("ignore:.*have the segment:egpo.errors.EgpoWarning"),
]


def hosted(kind):
    host = EnvironmentHost(kind)
    host._place = "here"
    return host


def player_of(tokenizer, monkeypatch=None, kind=None, tags=TAGS, **limits):
    given = {"max_prompt_tokens": 512, "max_response_tokens": 160, "stop_ids": frozenset((2, *ENDS))} | limits
    player = EpisodePlayer(tokenizer, given.pop("settings", KEPT), tags, **given)
    if kind is not None:
        monkeypatch.setattr(player, "_host", lambda spec: hosted(kind))
    return player


def server_of(turns, log=None):
    """A sampling server that answers with these turns, and keeps what it was asked."""
    left = iter(turns)

    async def generate(prompt, room):
        if log is not None:
            log.append(list(prompt))
        tokens, logps = next(left)
        assert len(tokens) <= room
        return SampledTurn(tokens, logps)

    return generate


@pytest.fixture(params=[False, True], ids=["plain", "opening"])
def both(request, load, monkeypatch):  # noqa: F811
    """Episodes of the embedded sampler with a tiny random model, and the same played through verl's agent loop.

    The thinking tags are the two letters that the model writes most often. In one of the two cases the template opens
    the tag before every turn.
    """
    monkeypatch.setattr(episode_rows, "host_of", lambda task, problem: hosted(Talk))
    policy, task = load("qwen3"), Talking()
    episodes = EpisodeSettings(max_turn_tokens=20, history="keep")
    settings = Rollout(n=8, max_response_tokens=160, stop_tokens=ENDS, episodes=episodes)
    drawn = sample(policy, task, task.problems("train"), settings, Draws(1))
    (opening, _), (closing, _) = Counter(c for c in "".join(drawn.texts) if c.isascii() and c.isalpha()).most_common(2)
    if request.param:
        policy.tokenizer.chat_template = TEMPLATE.replace("assistant\n{% endif", f"assistant\n{opening}\n{{% endif")
    tags = (opening, closing)
    rollouts = sample(policy, task, task.problems("train"), settings, Draws(1), tags=tags)
    player, played = player_of(policy.tokenizer, monkeypatch, Talk, settings=settings.episodes, tags=tags), []
    for row, one in enumerate(rollouts.episodes):
        spans = [(rollouts.response_BT[row, a:b].tolist(), rollouts.logp_BT[row, a:b].tolist()) for a, b in one.turns]
        spec = episode_spec(task, rollouts.problems[int(rollouts.problem_B[row])])
        played.append(asyncio.run(player.play(spec, server_of(spans))))
    return SimpleNamespace(policy=policy, rollouts=rollouts, played=played, tags=tags, opens=request.param)


def rows_of(rollouts, played):
    """The rows that verl's batch has of these episodes. Entropies are those of the embedded engine."""
    columns = zip(*((one.prompt, one.tokens, one.mask, one.logps) for one in played), strict=True)
    padded = [torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, one)), batch_first=True) for one in columns]
    prompt_BS, response_BT, mask_BT, logp_BT = padded
    lengths = torch.tensor([len(one.prompt) for one in played])
    return Rows(
        groups=tuple(f"{int(problem):04d}-uid" for problem in rollouts.problem_B),
        prompt_BS=prompt_BS,
        prompt_mask_BS=torch.arange(prompt_BS.shape[1]) < lengths[:, None],
        response_BT=response_BT,
        mask_BT=mask_BT.bool(),
        # Under verl the environment's tokens have an entropy, too: it must not count.
        entropy_BT=rollouts.entropy_BT + 7.0 * (~rollouts.mask_BT),
        logp_BT=logp_BT,
        score_B=torch.tensor([one.record.verdict.reward for one in played]),
        sampled_logp_BT=None,
        information=tuple(one.reward_information for one in played),
        loop_fields=tuple({COLUMN: one.record.to_json(), "finished": one.finished} for one in played),
    )


def advantages_under_verl(rows, measures, estimator, reward_B):
    table = {}
    core_algos = SimpleNamespace(register_adv_est=lambda name: lambda fn: table.setdefault(name, fn))
    register_estimators(core_algos)
    register_forms_of_judged(core_algos)
    keys = [f"{group}_{row}_0" for row, group in enumerate(rows.groups)]
    responses = find_responses(keys, [{}] * len(keys))
    inputs = EstimatorInputs(read_settings({"adv_estimator": estimator}), responses, rows, measures)
    reward_BT = torch.zeros(rows.mask_BT.shape)
    reward_BT[:, -1] = reward_B
    with with_inputs(inputs):
        return table[estimator_for(inputs)](token_level_rewards=reward_BT, response_mask=rows.mask_BT)[0]


def test_the_same_tokens_masks_and_verdicts(both):
    rollouts = both.rollouts
    assert {len(one.turns) for one in rollouts.episodes} == ({2, 3} if both.opens else {1, 2, 3, 4})
    for row, (one, played) in enumerate(zip(rollouts.episodes, both.played, strict=True)):
        assert tuple(played.prompt) == rollouts.prompts[int(rollouts.problem_B[row])]
        assert played.tokens == rollouts.responses()[row]
        assert [bool(own) for own in played.mask] == rollouts.sampled()[row]
        torch.testing.assert_close(torch.tensor(played.logps), rollouts.logp_BT[row, : len(played.logps)])
        assert played.finished == bool(rollouts.finished_B[row])
        assert replace(played.record, row={}, environment="") == replace(one.record, row={}, environment="")


def test_the_same_segments_means_and_advantages_to_1e_6(both):
    rollouts, rows, tokenizer = both.rollouts, rows_of(both.rollouts, both.played), both.policy.tokenizer
    here, there = measure_here(both.policy, rollouts, both.tags), measure(rows, tokenizer, both.tags)
    for name in ("thinking", "answer", "response"):
        assert torch.equal(here.segments.named(name), there.segments.named(name)), name
        torch.testing.assert_close(here.entropy[name], there.entropy[name], atol=1e-6, rtol=0, equal_nan=True)
        torch.testing.assert_close(here.nll[name], there.nll[name], atol=1e-6, rtol=0, equal_nan=True)
    assert int(here.segments.thinking_BT.sum()) > 50
    assert int(here.segments.answer_BT.sum()) > (0 if both.opens else 50)
    verdicts = judge(Talking(), rollouts)
    # One failure, which is left out of its group on both engines.
    verdicts = (replace(verdicts[0], failed=True), *verdicts[1:])
    failing = tuple({**known, "failed": float(row == 0)} for row, known in enumerate(rows.information))
    rows = replace(rows, information=failing)
    reward_B = torch.tensor([verdict.reward for verdict in verdicts])
    known_B = _known(rollouts, verdicts)
    batch = Batch(rollouts, verdicts, reward_B, torch.zeros(len(rollouts)), known_B, torch.zeros_like(known_B))
    for estimator in ("grpo", "egpo", "egpo_calibrated"):
        advantage_B = estimate(batch, here, Algorithm(estimator=estimator)).advantage_B.nan_to_num(0.0)
        assert float(advantage_B.abs().max()) > 0.1
        expected_BT = advantage_B[:, None] * rollouts.mask_BT
        found_BT = advantages_under_verl(rows, there, estimator, reward_B)
        torch.testing.assert_close(found_BT, expected_BT, atol=1e-6, rtol=0)


def test_the_lengths_are_those_of_the_sampled_tokens(both):
    metrics = episode_lengths(rows_of(both.rollouts, both.played))
    assert metrics["response_length/mean"] == pytest.approx(float(both.rollouts.length_B.float().mean()))
    assert metrics["response_length/clip_ratio"] == pytest.approx(1 - float(both.rollouts.finished_B.float().mean()))


def test_a_failed_environment_is_left_out_of_the_score(both):
    rows = rows_of(both.rollouts, both.played)
    assert "critic/score/mean" not in corrected_metrics(rows), "verl's own is right"
    failing = tuple({**known, "failed": float(row < 3)} for row, known in enumerate(rows.information))
    metrics = corrected_metrics(replace(rows, information=failing))
    assert metrics["critic/score/mean"] == pytest.approx(float(rows.score_B[3:].mean()))


def test_a_turn_that_a_gap_opens_is_thinking(both):
    """The masks would differ if only the prompt were asked for the tag."""
    rows = rows_of(both.rollouts, both.played)
    segments = measure(rows, both.policy.tokenizer, both.tags).segments
    opened = [span for one in both.rollouts.episodes for span in zip(one.turns, one.opened, strict=True)]
    assert all(was_opened == both.opens for _, was_opened in opened)
    for row, one in enumerate(both.rollouts.episodes):
        assert not both.opens or all(segments.thinking_BT[row, start] for start, _ in one.turns)


@pytest.fixture(scope="module")
def tiny():
    return AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))


@pytest.fixture(scope="module")
def toolbox():
    return load_task("toolbox", tools="signatures", chains=1.0, train=8, test=2)


def spelled(tokenizer, text):
    """The ids of a text, one per character: never what the tokenizer would write."""
    return [id for char in text for id in tokenizer(char, add_special_tokens=False)["input_ids"]]


def test_state_survives_turns_and_ids_are_never_tokenised_again(tiny, toolbox):
    """A gold episode, in which a later call needs what an earlier one found, spelled in an unusual way."""
    problem, end = toolbox.problems("train")[0], tiny.eos_token_id
    turns = [([*spelled(tiny, text), end], None) for text in toolbox.gold_turns(problem)]
    with player_of(tiny, max_response_tokens=4096, stop_ids=frozenset([end])) as player:
        asked = []
        played = asyncio.run(player.play(episode_spec(toolbox, problem), server_of(turns, asked)))
    assert len(turns) >= 3
    assert played.record.verdict.correct
    assert replay(played.record).is_same
    assert any(turn.changes for turn in played.record.turns)
    sampled = [token for token, own in zip(played.tokens, played.mask, strict=True) if own]
    assert sampled == [token for tokens, _ in turns for token in tokens]
    assert played.logps is None
    # Every prompt continues the one before it, with what was sampled in between.
    for before, after, (tokens, _) in zip(asked, asked[1:], turns, strict=False):
        assert after[: len(before) + len(tokens)] == [*before, *tokens]


def test_episodes_of_a_group_do_not_share_their_state(tiny, toolbox):
    problem, end = toolbox.problems("train")[0], tiny.eos_token_id
    gold = [([*tiny(text)["input_ids"], end], None) for text in toolbox.gold_turns(problem)]
    nothing = [([*tiny("No.")["input_ids"], end], None)]

    async def group(player):
        spec = episode_spec(toolbox, problem)
        return await asyncio.gather(*(player.play(spec, server_of(turns)) for turns in (gold, nothing, gold)))

    with player_of(tiny, max_response_tokens=4096, stop_ids=frozenset([end])) as player:
        played = asyncio.run(group(player))
    assert [one.record.verdict.correct for one in played] == [True, False, True]


class Sleeper(Environment):
    """A tool that takes its time."""

    threads: ClassVar = set()

    def reset(self, **row):
        return "sleep"

    def nap(self) -> str:
        """Sleep."""
        Sleeper.threads.add(threading.get_ident())
        time.sleep(0.3)
        return "slept"

    def verdict(self, turns):
        return Verdict(1.0, True, "slept")


def test_a_slow_tool_does_not_hold_up_the_event_loop(tiny, monkeypatch):
    call = '<tool_call>\n{"name": "nap", "arguments": {}}\n</tool_call>'
    turns = [
        ([*tiny(call)["input_ids"], tiny.eos_token_id], None),
        ([*tiny("ok")["input_ids"], tiny.eos_token_id], None),
    ]

    async def together(player):
        longest, before, over = 0.0, time.monotonic(), asyncio.Event()

        async def tick():
            nonlocal longest, before
            while not over.is_set():
                await asyncio.sleep(0.005)
                longest, before = max(longest, time.monotonic() - before), time.monotonic()

        ticking = asyncio.create_task(tick())
        spec = EpisodeSpec("sleeper", {})
        played = await asyncio.gather(*(player.play(spec, server_of(turns)) for _ in range(4)))
        over.set()
        await ticking
        return played, longest

    player = player_of(
        tiny,
        monkeypatch,
        Sleeper,
        max_response_tokens=400,
        stop_ids=frozenset([tiny.eos_token_id]),
    )
    played, longest = asyncio.run(together(player))
    assert all(len(one.record.turns) == 2 and one.record.verdict.correct for one in played)
    assert len(Sleeper.threads) == 4
    assert threading.get_ident() not in Sleeper.threads
    assert longest < 0.25


class Broken(Talk):
    def reset(self, **row):
        raise RuntimeError("no world today")


def test_an_environment_that_cannot_start_is_no_wrong_answer_and_is_not_trained_on(tiny, monkeypatch):
    player = player_of(tiny, monkeypatch, Broken)
    with pytest.warns(EgpoWarning, match="failed and is not trained on"):
        played = asyncio.run(player.play(EpisodeSpec("broken", {"prompt": []}), server_of([])))
    assert (played.mask, len(played.tokens)) == ([0], 1)
    assert played.reward_information["failed"] == 1.0
    rows = SimpleNamespace(
        are_episodes=True, failed_B=torch.tensor([True]), loop_fields=({COLUMN: played.record.to_json()},)
    )
    with pytest.raises(EgpoError, match=r"failed in all 1 episodes.*no world today"):
        require_judged(rows)


def test_cut_off_turns_and_the_limit_of_tokens(tiny, monkeypatch):
    """A turn of the maximum length without a stop token at its end is cut off; an episode ends within its limit."""
    words = tiny("a b c d e f g h i j k l m n o p")["input_ids"][:8]
    settings = EpisodeSettings(max_turn_tokens=8, history="keep")
    player = player_of(tiny, monkeypatch, Talk, max_response_tokens=48, stop_ids=frozenset([2]), settings=settings)
    spec = EpisodeSpec("talk", {"prompt": [{"role": "user", "content": "a"}], "num_turns": 4})
    played = asyncio.run(player.play(spec, server_of([(words, None)] * 9)))
    assert (played.record.ending, played.finished) == ("token_limit", False)
    assert played.record.turns[0].fault == "cut_off"
    assert len(played.tokens) <= 48
    assert played.mask[-1] == 1, "nothing follows the last turn"


def test_a_prompt_that_is_too_long_is_one_line(tiny, toolbox):
    with (
        player_of(tiny, max_prompt_tokens=5) as player,
        pytest.raises(InputError, match=r"the prompt of an episode has \d+ tokens, and 5 are allowed; set \d+ or more"),
    ):
        asyncio.run(player.play(episode_spec(toolbox, toolbox.problems("train")[0]), server_of([])))


def test_a_row_without_an_episode_is_one_line():
    for extra in (None, {}, {COLUMN: "[]"}, {COLUMN: '{"name": 1}'}):
        with pytest.raises(InputError, match="the row has no episode that can be read"):
            EpisodeSpec.from_row(extra)


def test_one_sample_per_turn_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"rollout\.episodes\.history.*one sequence of tokens"):
        refuse_what_verl_lacks(small("rollout.episodes.history=per_turn"))
    with pytest.raises(InputError, match=r"the chat template rewrites earlier turns.*rollout\.episodes\.history=keep"):
        player_of(tiny, settings=EpisodeSettings())


def test_the_settings_reach_the_agent_loop_and_a_misspelled_one_does_not():
    found = read_settings({"adv_estimator": "grpo", "egpo": {"episodes": {"max_turns": 3, "history": "keep"}}})
    assert (found.episodes.max_turns, found.episodes.history, found.asked) == (3, "keep", True)
    assert "episodes" not in found.arguments
    with pytest.raises(ConfigError, match="max_turns"):
        read_settings({"adv_estimator": "egpo", "egpo": {"episodes": {"max_turn": 3}}})


def test_a_record_is_read_back_from_verl_s_fields(both):
    for fields in rows_of(both.rollouts, both.played).loop_fields:
        record = EpisodeRecord.from_json(fields[COLUMN])
        assert json.loads(record.to_json()) == json.loads(fields[COLUMN])
