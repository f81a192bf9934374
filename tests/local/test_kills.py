"""kill -9 at random moments, inside saves too: a run that is resumed until it is done ends in the same bits.

`EGPO_TEST_KILLS=25 pytest tests/local/test_kills.py` for a thorough round.
"""

import json
import os
import random
import time
from itertools import count, cycle, islice

import pytest

from tests.local.runs import Finished, contents, run, start, write_recipe

NUM_KILLS = int(os.environ.get("EGPO_TEST_KILLS", "4"))
KILLS_PER_RUN = 5


def num_lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def staging(folder):
    return {path.name for path in folder.glob("checkpoints/.egpo-*")}


def checkpoints(folder):
    return {path.name for path in folder.glob("checkpoints/global_step_*")}


def num_launches(folder):
    path = folder / "provenance.json"
    return 1 + len(json.loads(path.read_text())["resumptions"]) if path.exists() else 0


# When to strike: a sign of life, how often it changes before that at most, and how many seconds later at most.
MOMENTS = {
    "after a step": (num_lines, 3, 0.1),
    "as a checkpoint appears": (checkpoints, 2, 0.005),
    "inside a save": (staging, 3, 0.03),
    "as it goes on": (num_launches, 1, 0.05),
    "while it loads": (num_launches, 0, 3.0),
}


def strike(process, folder, moment, rng):
    """Kill it then. False where it was done before."""
    sign, times, delay = MOMENTS[moment]
    for _ in range(rng.randint(min(1, times), times)):
        before = sign(folder)
        while process.poll() is None and sign(folder) == before:
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, delay))
    alive = process.poll() is None
    process.kill()
    Finished(process)
    return alive


@pytest.mark.timeout(240 + 60 * NUM_KILLS)
def test_a_killed_run_ends_as_one_that_was_not(model_folder, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml", model_folder())
    whole = run(recipe, "runs=whole", cwd=tmp_path)
    assert whole.code == 0, whole.err
    expected, rng, struck = contents(tmp_path / "whole" / "tiny"), random.Random(0), []
    moments = cycle(MOMENTS)
    for attempt in count():
        folder = tmp_path / f"killed{attempt}" / "tiny"
        for moment in islice(moments, min(KILLS_PER_RUN, NUM_KILLS - len(struck))):
            process = start(recipe, f"runs=killed{attempt}", *resume_word(folder), cwd=tmp_path)
            if not strike(process, folder, moment, rng):
                break
            struck.append(f"{moment}: {num_lines(folder)} lines, {sorted(checkpoints(folder))}, {staging(folder)}")
        last = run(recipe, f"runs=killed{attempt}", *resume_word(folder), cwd=tmp_path)
        assert last.code == 0, (last.err, struck)
        assert contents(folder) == expected, struck
        if len(struck) == NUM_KILLS:
            break
    print(*struck, sep="\n")


def resume_word(folder):
    return ["--resume"] if (folder / "config.yaml").exists() else []
