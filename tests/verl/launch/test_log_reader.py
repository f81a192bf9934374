"""Why verl ended, out of logs as Ray writes them."""

import pytest

from egpo.verl.launch.watch import root_cause, stage_of

WORKER = """\
\x1b[36m(TaskRunner pid=2111)\x1b[0m step 1 done
\x1b[36m(RewardLoopWorker pid=2304)\x1b[0m Traceback (most recent call last):
\x1b[36m(RewardLoopWorker pid=2304)\x1b[0m   File "reward.py", line 3, in compute_score
\x1b[36m(RewardLoopWorker pid=2304)\x1b[0m     raise ValueError("the reward is broken")
\x1b[36m(RewardLoopWorker pid=2304)\x1b[0m ValueError: the reward is broken
\x1b[36m(TaskRunner pid=2111)\x1b[0m some other line
Error executing job with overrides: ['a=b']
Traceback (most recent call last):
  File "main_ppo.py", line 100, in run_ppo
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=2111, ip=127.0.0.1)
  File "trainer.py", line 400, in fit
ValueError: the reward is broken
"""


def written(tmp_path, text):
    path = tmp_path / "verl.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_first_traceback_of_a_worker_is_the_cause_and_not_what_followed_from_it(tmp_path):
    cause = root_cause(written(tmp_path, WORKER + "noise\n" * 2000)).splitlines()
    assert cause[0] == "Traceback (most recent call last):"
    assert cause[-1] == "ValueError: the reward is broken"
    assert 'File "reward.py"' in cause[1]


def test_a_consequence_is_told_where_there_is_nothing_else(tmp_path):
    text = "Traceback (most recent call last):\n  File x\nray.exceptions.ActorDiedError: The actor died unexpectedly\n"
    assert root_cause(written(tmp_path, text)).endswith("ActorDiedError: The actor died unexpectedly")


def test_what_egpo_refused_is_told_where_nothing_was_raised(tmp_path):
    text = "starting\negpo: notice: the CPU\negpo: algorithm.egpo: unknown key `lambda`; did you mean `lam`?\nbye\n"
    assert root_cause(written(tmp_path, text)) == "egpo: algorithm.egpo: unknown key `lambda`; did you mean `lam`?"


def test_without_any_of_these_the_last_lines_are_told(tmp_path):
    assert root_cause(written(tmp_path, "".join(f"line {n}\n" for n in range(99)))).endswith("line 98")
    assert root_cause(written(tmp_path, "")) == ""


def test_only_this_launch_is_looked_at(tmp_path):
    path = written(tmp_path, WORKER)
    start = path.stat().st_size
    with path.open("a") as file:
        file.write("Traceback (most recent call last):\n  File y\nOSError: no space left\n")
    assert root_cause(path, start).endswith("OSError: no space left")


@pytest.mark.parametrize("line", ["", "\x00\xff", "(", "Traceback", "Traceback (most recent call last):"])
def test_odd_lines_are_read_without_complaint(tmp_path, line):
    root_cause(written(tmp_path, f"{line}\n{line}"))
    assert stage_of(line) is None
