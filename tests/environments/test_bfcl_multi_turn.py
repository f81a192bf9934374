"""BFCL's multi-turn cases: our verdict against BFCL's own checker; the split; trained cases; crashes; isolation.

`python -m tests.environments.test_bfcl_multi_turn` compares all 800 cases (minutes); the test takes a sample.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from egpo.environments import EnvironmentHost, Episode, EpisodeLimits, replay
from egpo.environments.bfcl.cases import (
    NUM_SCENARIOS,
    TRAINED_FILE,
    VARIANTS,
    read_cases,
    read_trained_cases,
    require_untrained,
    scenario_of,
    split_of,
    trained_scenarios,
    write_trained_cases,
)
from egpo.environments.bfcl.interpreter import data_folder
from egpo.environments.bfcl.multi_turn import REASONS
from egpo.errors import InputError
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, _require_untrained, evaluate_bfcl
from egpo.evals.bfcl.passes import BfclSettings
from egpo.evals.bfcl.targets import BfclTarget
from egpo.evals.targets import ModelPlace
from egpo.rewards.verdict import Verdict
from egpo.tasks import check_gold, load_task
from egpo.tasks.episodes import environment_row
from egpo.tool_calls.calls import Call
from tests.bfcl.cases import PYTHON
from tests.environments.bfcl_mutations import mutations
from tests.environments.playing import call, play

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="BFCL's environment is not built (make test builds it)")
LONG = EpisodeLimits(turns=400, calls_per_turn=64, result_chars=200_000)
SAMPLED = 5
"""Scenarios of each variant in the test; the full comparison has 200."""


@pytest.fixture(scope="module", autouse=True)
def interpreter():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGPO_BFCL_PYTHON", str(PYTHON))
        yield


@pytest.fixture(scope="module")
def cases():
    return {case.id: case for case in read_cases(data_folder(PYTHON))}


@pytest.fixture(scope="module")
def host():
    with EnvironmentHost("bfcl_multi_turn", num_workers=2) as host:
        yield host


def row_of(case_id):
    return {"prompt": [{"role": "user", "content": "?"}], "case": case_id}


def ours(host, case, trajectory):
    """Play a trajectory through the whole driver: texts, strict reader, worker process."""
    texts = []
    for turn in trajectory:
        texts += ["\n".join(Call(name, given).hermes() for name, given in step) for step in turn]
        texts.append("Done.")
    record = play(host, row_of(case.id), texts, LONG)
    assert not record.verdict.failed, (case.id, record.fault)
    return record.verdict


def attempts_of(cases, chosen, seed=0):
    """Every case with its attempts: (kind, trajectory)."""
    involved, foreign, harmless = _calls_by_classes(cases)
    for case_id in chosen:
        rng = random.Random(f"{seed}:{case_id}")
        calls = [one for name in involved[case_id] for one in foreign[name]]
        reading = [one for name in involved[case_id] for one in harmless[name]]
        yield cases[case_id], list(mutations(cases[case_id], calls, reading, rng))


def _calls_by_classes(cases):
    data = data_folder(PYTHON)
    involved, owner, harmless = {}, {}, defaultdict(list)
    for variant in VARIANTS:
        for line in (data / f"BFCL_v4_multi_turn_{variant}.json").read_text().splitlines():
            row = json.loads(line)
            involved[row["id"]] = row["involved_classes"]
    files = {"GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api",
             "TwitterAPI": "posting_api", "TicketAPI": "ticket_api", "TradingBot": "trading_bot",
             "TravelAPI": "travel_booking", "VehicleControlAPI": "vehicle_control"}  # fmt: skip
    for name, file in files.items():
        for line in (data / "multi_turn_func_doc" / f"{file}.json").read_text().splitlines():
            doc = json.loads(line)
            owner.setdefault(doc["name"], name)
            if not doc["parameters"]["required"]:
                harmless[name].append(doc["name"])
    foreign = defaultdict(list)
    for case in cases.values():
        for one in (one for turn in case.truth for one in turn):
            foreign[owner[one.name]].append([one.name, dict(one.arguments)])
    return involved, foreign, harmless


def compare(host, cases, chosen, seed=0):
    """Return a count of (kind, our reason, BFCL's error type) over all attempts, and the gold that BFCL refuses."""
    attempts = list(attempts_of(cases, chosen, seed))
    lines = [json.dumps({"case": case.id, "attempts": [t for _, t in tried]}) for case, tried in attempts]
    script = Path(__file__).with_name("official_multi_turn.py")
    done = subprocess.run(
        [PYTHON, script], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=3600
    )
    official = [json.loads(line) for line in done.stdout.splitlines()]
    outcomes, refused = Counter(), []
    for (case, tried), verdicts in zip(attempts, official, strict=True):
        for (kind, trajectory), error in zip(tried, verdicts, strict=True):
            verdict = ours(host, case, trajectory)
            assert verdict == Verdict(float(verdict.correct), verdict.correct, verdict.reason)
            outcomes[kind, verdict.reason, error.rpartition(":")[2] or "correct"] += 1
            if kind == "gold" and error:
                refused.append(case.id)
    return outcomes, refused


def test_our_verdict_is_that_of_the_official_checker(host, cases):
    rng = random.Random(1)
    chosen = [f"multi_turn_{v}_{n}" for v in VARIANTS for n in rng.sample(range(NUM_SCENARIOS), SAMPLED)]
    outcomes, refused = compare(host, cases, chosen)
    different = {key: count for key, count in outcomes.items() if key[1] != key[2]}
    assert not different
    assert refused == []
    found = Counter()
    for (_, reason, _), count in outcomes.items():
        found[reason] += count
    assert set(found) == set(REASONS), "every verdict has to occur for agreement to mean something"
    assert sum(outcomes.values()) > 13 * len(chosen)


def test_gold_trajectories_of_the_task_score_one(host):
    task = load_task("bfcl_multi_turn", train=6, test=6)
    assert check_gold(task, "train", 6) == check_gold(task, "test", 6) == []
    problem = task.problems("test")[0]
    record = play(host, environment_row(problem), task.gold_turns(problem), LONG)
    assert replay(record, host).is_same
    assert record.messages[0]["role"] == "user"


def test_siblings_do_not_share_state(host, cases):
    """Two rollouts of one case: what one creates, the other does not see. BFCL's own executor shares its instances."""
    first, second = (Episode(host, row_of("multi_turn_base_0")) for _ in range(2))
    first.start()
    second.start()
    first.assistant(call("mkdir", dir_name="mine"))
    assert "mine" in first.assistant(call("ls")).messages[0]["content"]
    assert "mine" not in second.assistant(call("ls")).messages[0]["content"]
    first.stop()
    second.stop()


def test_model_text_is_never_evaluated(host, tmp_path):
    episode = Episode(host, row_of("multi_turn_base_0"))
    episode.start()
    target = tmp_path / "written"
    for name in (f"open('{target}', 'w').write", "__import__('os').system", "print", "exec", "eval", "_load_scenario"):
        outcome = episode.assistant(call(name, text="x"))
        assert "Error during execution: name" in outcome.messages[0]["content"]
    assert episode.assistant(call("exit")).messages[0]["content"].endswith("Function call exit is not allowed.")
    assert not target.exists()
    episode.stop()


def test_held_back_functions_come_with_the_users_words(host, cases):
    case = cases["multi_turn_miss_func_0"]
    episode = Episode(host, row_of(case.id), LONG)
    names = {tool["function"]["name"] for tool in episode.start().tools}
    for text in case.gold_turns():
        outcome = episode.assistant(text)
    record = episode.record()
    assert record.verdict.correct
    added = {tool["function"]["name"] for tool in record.tools} - names
    assert added
    said = [turn.user for turn in record.turns if turn.user and "updated some more functions" in turn.user]
    assert len(said) == 1
    assert all(name in said[0] for name in added)
    assert outcome.ending == "finished"


def test_a_worker_that_dies_or_hangs_is_a_failure():
    with EnvironmentHost("bfcl_multi_turn", num_workers=1) as host:
        for signum, reason in ((signal.SIGKILL, "environment_died"), (signal.SIGSTOP, "environment_timeout")):
            episode = Episode(host, row_of("multi_turn_base_1"), EpisodeLimits(call_s=2.0))
            episode.start()
            os.kill(host._workers[-1].pid, signum)
            assert episode.assistant(call("ls")).ending == "failed"
            assert episode.record().verdict == Verdict(0.0, False, reason, failed=True)
        assert play(host, row_of("multi_turn_base_1"), ["Done."]).verdict.reason == "force_terminated"


def test_a_case_that_does_not_exist_is_a_failure(host):
    record = play(host, row_of("multi_turn_base_900"), ["x"])
    assert (record.verdict.reason, record.fault) == ("environment_reset", "BFCL has no case 'multi_turn_base_900'")


def test_the_split_is_by_scenario():
    assert len(trained_scenarios()) == 150
    assert {split_of(f"multi_turn_{variant}_7") for variant in VARIANTS} == {split_of("multi_turn_base_7")}
    # It must never change: results on its test split were reported.
    assert sum(n * n for n in trained_scenarios()) == 2022019
    task = load_task("bfcl_multi_turn")
    keys = {split: {problem.key for problem in task.problems(split)} for split in ("train", "test")}
    assert (len(keys["train"]), len(keys["test"])) == (600, 200)
    scenarios = {split: {scenario_of(key) for key in found} for split, found in keys.items()}
    assert not scenarios["train"] & scenarios["test"]


def test_trained_cases_are_refused_as_an_evaluation(tmp_path):
    require_untrained(["multi_turn_base_3"], tmp_path)
    write_trained_cases(tmp_path, ["multi_turn_base_3", "multi_turn_base_5"])
    write_trained_cases(tmp_path, ["multi_turn_base_5", "multi_turn_miss_func_9"])
    assert read_trained_cases(tmp_path) == ["multi_turn_base_3", "multi_turn_base_5", "multi_turn_miss_func_9"]
    require_untrained(["multi_turn_base_4", "simple_python_3"], tmp_path)
    with pytest.raises(
        InputError, match=r"trained on 1 of these cases, or on variants of them \(`multi_turn_miss_param_3`"
    ):
        require_untrained(["multi_turn_base_4", "multi_turn_miss_param_3"], tmp_path)
    (tmp_path / TRAINED_FILE).write_text("{}")
    with pytest.raises(InputError, match="not a list of cases"):
        read_trained_cases(tmp_path)


def test_the_evaluation_with_bfcl_refuses_trained_cases(tmp_path):
    """Before anything is started. Other categories, and models without a record, are evaluated as before."""
    place = ModelPlace(str(tmp_path), "mine")
    target = BfclTarget("mine", str(tmp_path), place=place)
    asked = BfclSettings("", "mine", str(tmp_path), ("multi_turn_base", "simple_python"))
    _require_untrained(target, asked)
    write_trained_cases(tmp_path, ["multi_turn_miss_func_3"])
    with pytest.raises(InputError, match="model mine: the model was trained on 1 of these cases"):
        evaluate_bfcl(target, asked, BfclOptions(offline=True), lambda line: None)
    _require_untrained(target, replace(asked, categories=("simple_python",)))
    _require_untrained(target, replace(asked, cases={"multi_turn_base": ["multi_turn_base_4"]}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"variants": ["bas"]}, "unknown variant `bas`; did you mean `base`"),
        ({"variants": "base"}, "`variants` is not a list"),
        ({"test": 0}, "test=0 is not allowed"),
        ({"seed": 3}, "unknown setting `seed`"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings, said):
    with pytest.raises(InputError, match=said):
        load_task("bfcl_multi_turn", **settings)


def main():
    os.environ["EGPO_BFCL_PYTHON"] = str(PYTHON)
    cases, began = {case.id: case for case in read_cases(data_folder(PYTHON))}, time.monotonic()
    with EnvironmentHost("bfcl_multi_turn", num_workers=2) as host:
        outcomes, refused = compare(host, cases, list(cases), int((sys.argv[1:] or ["0"])[0]))
    same = sum(count for (_, ours_, theirs), count in outcomes.items() if ours_ == theirs)
    print(f"{same:,} of {sum(outcomes.values()):,} verdicts are the same, in {time.monotonic() - began:.0f} s")
    print("gold trajectories that BFCL refuses:", refused or "none")
    for kind in dict.fromkeys(key[0] for key in outcomes):
        print(f"  {kind}:", {key[1:]: count for key, count in outcomes.items() if key[0] == kind})


if __name__ == "__main__":
    main()
