"""Episodes in verl for real, on this CPU, through our launcher: vLLM samples the turns, environments answer in between.

One run shows everything: `toolbox`, an outside environment in worker processes, and one that cannot start.
"""

import json
import subprocess
import sys

import pytest

from egpo.environments import EpisodeRecord, replay
from egpo.runs.dump import read_dump
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import read_metrics
from tests.verl.live import BY_CALIBRATION, EVERY_STEP, records_in
from tests.verl.replay import turns_of
from tests.verl.test_conformance import assert_conforms

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1300)]
pytest.importorskip("verl")

STEPS, PROMPTS, SAMPLES = 2, 4, 4
RECIPE = (
    "engine=verl",
    "verl.device=cpu",
    "verl.patience_minutes=15",
    "model.path=egpo-tiny",
    "task.name=tests.verl.live_episodes:LiveEpisodes",
    "algorithm.estimator=egpo_calibrated",
    "algorithm.egpo_calibrated.sides=asymmetric",
    f"rollout.prompts={PROMPTS}",
    f"rollout.n={SAMPLES}",
    "rollout.max_response_tokens=320",
    "rollout.episodes.max_turns=4",
    "rollout.episodes.max_turn_tokens=96",
    # egpo-tiny's template removes earlier thinking; under verl an episode is one sequence.
    "rollout.episodes.history=keep",
    "update.lr=3e-5",
    f"steps={STEPS}",
    "validation.every=2",
    "checkpoints.every=0",
    "watch.rollouts_every=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("episodes")
    words = [*RECIPE, f"verl.algorithm.egpo.record={root / 'record'}", f"runs={root}", "name=run"]
    done = subprocess.run(
        [sys.executable, "-m", "egpo", "train", *words], capture_output=True, text=True, timeout=1200, check=False
    )
    folder = RunFolder(root / "run")
    log = folder.path / "verl.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    return folder


@pytest.fixture(scope="module")
def episodes(run):
    """The dumped rollouts of both steps, each with the record of its episode."""
    dumped = [one for step in range(1, STEPS + 1) for one in read_dump(run.rollouts_of(step))]
    assert len(dumped) == STEPS * PROMPTS * SAMPLES
    return [(one, EpisodeRecord.from_json(json.dumps(one.extra_info["episode"]))) for one in dumped]


def test_every_step_has_the_metrics_of_every_run_and_counts_turns(run):
    lines = read_metrics(run.metrics)
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert set(line) >= EVERY_STEP | BY_CALIBRATION
        assert line["num_turns/max"] >= 6, "the prompt, three turns, two answers"
        assert line["training/rollout_probs_diff_max"] < 1e-4
    assert [line["step"] for line in lines if "val-core/tests.verl.live_episodes:LiveEpisodes/acc/mean@1" in line] == [
        0,
        2,
    ]


def test_state_survives_turns(episodes):
    """The environment numbers its calls: those of later turns go on where the earlier ones stopped."""
    counted = [record for _, record in episodes if record.environment.endswith("Counting")]
    numbers = [[c.result for turn in one.turns for c in turn.calls if not c.fault] for one in counted]
    assert all(results == [f"call {n + 1}" for n in range(len(results))] for results in numbers)
    over_turns = [sum(any(not c.fault for c in turn.calls) for turn in one.turns) for one in counted]
    assert max(over_turns) > 1


def test_every_environment_was_played(episodes):
    kinds = {record.environment.rpartition(":")[2] for _, record in episodes}
    assert kinds == {"toolbox", "Counting", "Broken"}
    assert max(len(record.turns) for _, record in episodes) > 2
    for _, record in episodes:
        assert record.verdict.failed or replay(record).is_same


def test_an_environment_that_fails_is_no_wrong_answer(run, episodes):
    failed = [one for one, record in episodes if record.environment.endswith("Broken")]
    assert len(failed) == STEPS * SAMPLES
    assert all(one.failed and one.reason == "environment_reset" and not one.advantage for one in failed)
    for line in read_metrics(run.metrics)[1:]:
        assert line["reward/error_frac"] == 1 / PROMPTS
    for step, line in enumerate(read_metrics(run.metrics)[1:], 1):
        judged = [one.score for one, record in episodes if one.step == step and not record.verdict.failed]
        assert line["critic/score/mean"] == pytest.approx(sum(judged) / len(judged))


def test_a_validation_leaves_out_the_environment_that_fails(run):
    source = "tests.verl.live_episodes:LiveEpisodes"
    validated = {line["step"]: line for line in read_metrics(run.metrics) if f"val-aux/{source}/error_frac" in line}
    assert sorted(validated) == [0, 2]
    for step, line in validated.items():
        rows = [json.loads(row) for row in (run.path / f"verl/validations/{step}.jsonl").read_text().splitlines()]
        judged = [row for row in rows if not row["failed"]]
        assert (len(rows), len(judged)) == (4, 3)
        assert line[f"val-aux/{source}/error_frac"] == 1 / 4
        assert line[f"val-core/{source}/acc/mean@1"] == pytest.approx(sum(row["acc"] for row in judged) / 3)
        assert line[f"val-aux/{source}/reward/mean@1"] == pytest.approx(sum(row["score"] for row in judged) / 3)
    assert max(line[f"val-aux/{source}/reward/mean@1"] for line in validated.values()) > 0


@pytest.mark.filterwarnings("ignore:.*have neither `<think>`:egpo.errors.EgpoWarning")  # egpo-tiny leaves some out
def test_the_environment_s_tokens_are_not_the_model_s(run):
    """As many runs of tokens in `response_mask` as turns, and no advantage in between; the embedded engine agrees."""
    recorded = records_in(run.path.parent / "record")
    assert len(recorded) == STEPS
    for one in recorded:
        turns = [turns_of(mask_T.tolist()) for mask_T in one.mask_BT]
        assert max(map(len, turns)) > 2
        assert_conforms(one)
    assert max(abs(one.advantage_BT).max() for one in recorded) > 0.1


def test_the_rollouts_tell_the_model_s_tokens_from_the_others(episodes):
    for one, record in episodes:
        assert len(turns_of([entropy is not None for entropy in one.token_entropy])) == len(record.turns)
        for span in one.token_segment:
            assert None not in one.token_entropy[span.start : span.end]
