"""Why verl ended, out of logs as Ray writes them."""

import os
import signal
import subprocess
import sys

import pytest

from egpo.processes.table import process_id
from egpo.verl.launch.watch import DeadProcess, Ending, Roster, process_that_died, root_cause, stage_of

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


DEAD_ACTOR = """\
Traceback (most recent call last):
  File "main_ppo.py", line 93, in run_ppo
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(ActorDiedError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=10736, ip=192.0.2.2)
  File "main_ppo.py", line 155, in run
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict
\tactor_id: 8f0c0a6d1c3b8a7e9d5be6a901000000
\tpid: 10940
\tnamespace: 7d1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
"""


def ended(path, kind="exited", *missing):
    return Ending(kind, path.stat().st_size, 1, missing)


def test_the_process_that_ray_calls_dead_is_named(tmp_path):
    path = written(tmp_path, "step 1 done\n" + DEAD_ACTOR)
    said = str(process_that_died(path, 0, ended(path)))
    assert said == "process 10940 of verl (WorkerDict, the trainer)"
    prefixed = "".join(f"\x1b[36m(AgentLoopWorkerTQ pid=14301)\x1b[0m {line}\n" for line in DEAD_ACTOR.splitlines())
    path = written(tmp_path, prefixed.replace("create_colocated_worker_cls.<locals>.WorkerDict", "vLLMHttpServer"))
    assert str(process_that_died(path, 0, ended(path))) == "process 10940 of verl (vLLMHttpServer, a server of vLLM)"


def test_actors_that_die_of_another_error_are_not_its_cause(tmp_path):
    path = written(tmp_path, WORKER + DEAD_ACTOR)
    assert process_that_died(path, 0, ended(path, "exited", DeadProcess("WorkerDict", 7))) is None


def test_an_engine_is_named_where_its_server_says_that_it_is_dead(tmp_path):
    text = "Traceback (most recent call last):\n  File x\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore died\n"
    path, engine = written(tmp_path, text), DeadProcess("EngineCore", 8)
    assert process_that_died(path, 0, ended(path, "exited", DeadProcess("vLLMHttpServer", 7), engine)) == engine
    assert process_that_died(path, 0, ended(path)) is None


def test_a_process_that_verl_waits_for_is_named(tmp_path):
    path, storage = written(tmp_path, "step 1 done\n"), DeadProcess("SimpleStorageUnit", 7)
    assert process_that_died(path, 0, ended(path, "died", storage)) == storage
    assert process_that_died(path, 0, ended(path, "exited", storage)) is None


def test_the_roster_notices_only_processes_that_live_as_long_as_the_training():
    code = "import sys, time; print(flush=True); time.sleep(600)"
    titles = ["ray::WorkerDict.update_actor", "ray::IDLE", "VLLM::EngineCore"]
    started = [
        subprocess.Popen([title, "-c", code], executable=sys.executable, stdout=subprocess.PIPE) for title in titles
    ]
    try:
        for one in started:
            one.stdout.readline()
        alive, roster = {process_id(one.pid) for one in started}, Roster()
        roster.note(alive)
        assert roster.missing == []
        roster.note({process_id(started[2].pid)})
        assert roster.missing == [DeadProcess("WorkerDict", started[0].pid)]
        roster.forget()
        roster.note(set())
        assert roster.missing == [DeadProcess("EngineCore", started[2].pid)]
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_copies_that_a_process_made_of_itself_may_end_at_any_time():
    """verl's controller forks workers of a data loader, which have its title and end after each epoch."""
    code = "import os, time; child = os.fork(); child and print(child, flush=True); time.sleep(600)"
    controller = subprocess.Popen(
        ["ray::TaskRunnerV1.run", "-c", code], executable=sys.executable, stdout=subprocess.PIPE, text=True
    )
    loader = process_id(int(controller.stdout.readline()))
    roster, alive = Roster(), {process_id(controller.pid), loader}
    try:
        roster.note(alive)
        roster.note({process_id(controller.pid)})
        assert roster.missing == []
        roster.note(alive)
        controller.kill()
        controller.wait()
        roster.note({loader})
        roster.note(set())
        assert roster.missing == [DeadProcess("TaskRunnerV1", controller.pid)], "and not the copy that outlived it"
    finally:
        controller.kill()
        os.kill(loader.pid, signal.SIGKILL)
        controller.wait()
