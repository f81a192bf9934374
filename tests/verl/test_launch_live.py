"""verl, vLLM, Ray and FSDP2 for real, on this CPU, through our launcher. Each run takes a minute or two: few runs, each
of which shows many things."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.processes.launches import LaunchedProcesses
from egpo.processes.table import process_id, process_title
from egpo.runs.dump import read_dump
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import read_provenance
from egpo.tasks.loading import load_task
from egpo.verl.dumps import RECORD_VARIABLE as VARIABLE
from egpo.verl.launch.command import MARK
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.processes import LaunchRecord
from tests.verl.live import BY_EGPO, EVERY_STEP, model_that_opens_the_tag, reasons_of, records_in
from tests.verl.test_conformance import assert_conforms
from tests.verl.updates import SAME_CHANGE, TrainedState, assert_same_steps, distance

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]
pytest.importorskip("verl")

LIMIT_S = 420
EGPO = [sys.executable, "-m", "egpo"]
SHARED_MEMORY = Path("/dev/shm")
RECIPE = (
    "engine=verl",
    "verl.device=cpu",
    "rollout.prompts=4",
    "rollout.n=4",
    "rollout.max_response_tokens=96",
    "checkpoints.every=2",
    "validation.every=2",
    "validation.problems=8",
    "watch.rollouts_every=1",
)
COUNTDOWN = (
    "task.name=countdown",
    "task.settings.mode=binary",
    "task.settings.max_numbers=3",
    "task.settings.max_number=12",
    "task.settings.max_target=60",
    'task.settings.prompt_format="Make {target} from {numbers}."',
    "task.settings.train=64",
    "task.settings.test=16",
)
PROGRAMS = ("task.name=code", "task.settings.train=64", "task.settings.test=8", "rollout.max_prompt_tokens=512")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def launched(runs, name, *words, **environment):
    command = [*EGPO, "train", *RECIPE, f"runs={runs}", f"name={name}", *words]
    environment = os.environ | {"COLUMNS": "200"} | environment
    with open(runs / f"{name}.txt", "a") as screen:
        return subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT, env=environment)


def screen_of(runs, name):
    log = RunFolder(runs / name).path / "verl.log"
    return (runs / f"{name}.txt").read_text() + (log.read_text(errors="replace")[-3000:] if log.exists() else "")


def steps_of(folder):
    return [line["step"] for line in read_metrics(folder.metrics)] if folder.metrics.exists() else []


def wait_for_step(runs, name, step, process):
    folder, deadline = RunFolder(runs / name), time.monotonic() + LIMIT_S
    while step not in steps_of(folder):
        assert process.poll() is None, screen_of(runs, name)
        assert time.monotonic() < deadline, screen_of(runs, name)
        time.sleep(0.2)
    return LaunchRecord.read(VerlPlaces(folder).launch)


def nobody_is_left(record):
    assert LaunchedProcesses(record.launch_id, record.processes).look() == set()
    assert [path for path in record.shared_memory if os.path.exists(path)] == []


@pytest.fixture(scope="module")
def resumed(runs, tmp_path_factory):
    """Two ranks (FSDP2 over gloo, two servers of vLLM) under `egpo`, with a reference policy and prompts that open the
    tag: stopped by Ctrl-C after the first checkpoint, then resumed to the end."""
    left_before = set(SHARED_MEMORY.iterdir())
    model = model_that_opens_the_tag(tmp_path_factory.mktemp("models") / "egpo-tiny-thinking")
    words = [f"model.path={model}", *COUNTDOWN, "algorithm.estimator=egpo", "verl.gpus=2", "steps=6"]
    words += ["update.lr=1e-4", "update.kl=0.001"]
    recorded = {VARIABLE: str(runs / "resumed-record")}
    process = launched(runs, "resumed", *words, **recorded)
    record = wait_for_step(runs, "resumed", 3, process)
    assert len(record.processes) > 5
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=240) == 130, screen_of(runs, "resumed")
    nobody_is_left(record)
    assert re.search(r"newest checkpoint is that of step [24]; continue with: egpo train", screen_of(runs, "resumed"))
    process = launched(runs, "resumed", *words, "--resume", **recorded)
    assert process.wait(timeout=LIMIT_S) == 0, screen_of(runs, "resumed")
    left = {path.name for path in set(SHARED_MEMORY.iterdir()) - left_before}
    assert not {name for name in left if name.startswith(("psm_", "verl_weights_"))}
    return RunFolder(runs / "resumed")


def test_a_stopped_run_goes_on_to_its_end_with_every_step_once(resumed):
    assert steps_of(resumed) == [0, 1, 2, 3, 4, 5, 6]
    (resumption,) = read_provenance(resumed.provenance).resumptions
    assert resumption.after_step in (2, 4), "verl may have saved once more before the signal reached it"
    assert resumed.latest.read_text() == "6"
    shards = {path.name for path in (resumed.checkpoint_of(6) / "actor").glob("*_world_size_*.pt")}
    assert shards >= {f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)}


def test_its_metrics_have_the_names_of_every_engine_and_the_thinking_is_found(resumed):
    lines = read_metrics(resumed.metrics)
    for line in lines[1:]:
        assert set(line) >= EVERY_STEP | BY_EGPO
        # The template opens the tag in the prompt: who looks for it in the response alone finds nothing.
        assert line["egpo/segment/coverage"] > 0.9
    validated = [line["step"] for line in lines if "val-core/countdown/acc/mean@1" in line]
    assert validated == [0, 2, 4, 6]
    assert all("timing_s/step" in line for line in read_metrics(resumed.timings)[1:])


def test_vllm_samples_the_policy_that_is_trained(resumed):
    """After every update: had the weights not arrived, or in bfloat16, this would be 1e-2 and more."""
    steps = read_metrics(resumed.metrics)[1:]
    assert all(line["training/rollout_probs_diff_max"] < 1e-4 for line in steps)
    assert all(line["actor/grad_norm"] > 0 for line in steps)


def test_the_reference_stays_where_the_policy_was(resumed):
    """When the run is resumed too: the policy then comes from the checkpoint, and the reference from the model."""
    kl = [line["actor/kl"] for line in read_metrics(resumed.metrics)[1:]]
    assert abs(kl[0]) < 1e-5
    assert min(kl[1:]) > abs(kl[0])


def test_the_embedded_engine_takes_the_steps_that_two_ranks_took(runs, resumed):
    """From the model, and from a checkpoint with its moments: losses, gradient, and the weights two steps later."""
    lines, recorded = read_metrics(resumed.metrics)[1:], records_in(runs / "resumed-record")
    assert len(recorded) == len(lines) == 6
    names = assert_same_steps(recorded[:2], lines[:2]).names
    start, end = (TrainedState.of_checkpoint(resumed.checkpoint_of(step) / "actor", names) for step in (4, 6))
    trainee = assert_same_steps(recorded[4:], lines[4:], start)
    assert distance(trainee.state().weights, end.weights, start.weights) < SAME_CHANGE


def test_its_rollouts_say_what_was_written_judged_and_measured(resumed):
    for step in (1, 2, 3, 4, 5, 6):
        records = read_dump(resumed.rollouts_of(step))
        assert len(records) == 16
        assert {record.step for record in records} == {step}
        assert len({record.problem for record in records}) == 4
        for record in records:
            assert "".join(record.tokens) == record.output
            assert len(record.token_entropy) == len(record.tokens)
            assert record.reason
            assert record.input.endswith("<think>\n")
            assert record.segments["thinking"] is not None
            assert record.data_source == "countdown"


def test_it_is_reported_as_any_other_run(resumed):
    subprocess.run([*EGPO, "report", str(resumed.path)], check=True, capture_output=True)
    assert resumed.report.stat().st_size > 10_000


_GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
model, prompts, tokens = json.load(sys.stdin)
llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8)
wanted = SamplingParams(temperature=0, max_tokens=tokens, logprobs=0)
outputs = [o.outputs[0] for o in llm.generate([{"prompt_token_ids": p} for p in prompts], wanted, use_tqdm=False)]
said = [[list(o.token_ids), [next(iter(at.values())).logprob for at in o.logprobs]] for o in outputs]
print("ANSWER " + json.dumps(said))
"""
IN_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}


def test_the_merged_model_says_the_same_in_transformers_and_in_vllm(resumed, tmp_path):
    """Plain vLLM: the same greedy tokens, with the same log-probabilities, up to the order of float32 sums."""
    folder = tmp_path / "model"
    done = subprocess.run([*EGPO, "merge", str(resumed.path), "--out", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tasks = [load_task(name) for name in ("countdown", "gsm8k")]
    chats = [task.prompt(problem) for task in tasks for problem in task.problems("test")[:4]]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, (tokens, logps) in zip(prompts, said_by_vllm(folder, prompts, 48), strict=True):
        with torch.no_grad():
            ours = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=48)[0, len(prompt) :]
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert tokens == ours.tolist()
        logp = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logps), logp, atol=1e-4, rtol=1e-4)


def said_by_vllm(folder, prompts, num_tokens):
    """Token ids and their log-probabilities. In a process of its own: what vLLM sets up cannot be undone."""
    asked, environment = json.dumps([str(folder), prompts, num_tokens]), os.environ | IN_ONE_PROCESS
    command = [sys.executable, "-c", _GENERATE]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.split("ANSWER ")[-1])


@contextmanager
def cluster(tmp_path):
    """A Ray cluster of this machine with one logical GPU, started apart from any run: its address."""
    mark, port = f"cluster-{os.getpid()}", free_port()
    words = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}"]
    words += ["--num-cpus=16", "--num-gpus=1", "--include-dashboard=false"]
    with open(tmp_path / "ray.txt", "w") as screen:
        ray = subprocess.Popen(
            words, stdout=screen, stderr=screen, start_new_session=True, env=os.environ | {MARK: mark}
        )
    processes = LaunchedProcesses(mark, driver=process_id(ray.pid))
    deadline = time.monotonic() + 120
    try:
        # Ray puts the node's own address in the place of 127.0.0.1: it says which.
        while not (found := re.search(rf"[\d.]+:{port}\b", (tmp_path / "ray.txt").read_text())):
            assert time.monotonic() < deadline, (tmp_path / "ray.txt").read_text()
            processes.look()
            time.sleep(0.2)
        yield found[0]
    finally:
        processes.end()
        ray.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def joined(runs):
    """A method per token (the plug-in's), a loss form per response and importance weights (verl's own), under the
    colocated asynchronous trainer; the programs are judged in verl's reward worker."""
    words = ["model.path=egpo-tiny", *PROGRAMS, "steps=2", "validation.every=0", "checkpoints.every=0"]
    words += ["algorithm.estimator=token_entropy", "algorithm.token_entropy.alpha=0.3", "update.lr=3e-5"]
    words += ["update.loss=gspo", "update.aggregation=sequence_mean", "update.clip=0.0003", "update.clip_high=0.0004"]
    words += ["verl.algorithm.rollout_correction.rollout_is=token"]
    words += [
        "verl.trainer.v1.trainer_mode=egpo_colocate_async",
        f"verl.algorithm.egpo.record={runs / 'joined-record'}",
    ]
    with cluster(runs) as address:
        process = launched(runs, "asked", *words, "--address", address, "verl.gpus=2")
        assert process.wait(timeout=LIMIT_S) == 2
        assert "2 GPUs are needed (verl.gpus x verl.nodes), and the cluster has 1" in screen_of(runs, "asked")
        process = launched(runs, "joined", *words, "--address", address)
        assert process.wait(timeout=LIMIT_S) == 0, screen_of(runs, "joined")
        with socket.create_connection(address.split(":"), timeout=5):
            pass  # the cluster is its owner's, and still there
    return RunFolder(runs / "joined")


def test_a_cluster_that_is_joined_trains_on_programs_and_is_left_running(joined):
    lines = read_metrics(joined.metrics)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert set(line) >= EVERY_STEP
        assert sum(reasons_of(line).values()) == pytest.approx(1.0)
        assert line["reward/error_frac"] == 0.0
    # Right or wrong is known only of a program that ran; without a sandbox none would have been judged.
    seen = {reason.rpartition("/")[2] for line in lines for reason in reasons_of(line)}
    assert seen & {"correct", "wrong_answer"}


def test_a_method_per_token_and_a_loss_form_per_response(runs, joined):
    for line in read_metrics(joined.metrics):
        assert set(line) >= {"egpo/bonus/mean", "egpo/bonus/max", "rollout_corr/rollout_is_mean"}
    recorded = records_in(runs / "joined-record")
    assert len(recorded) == 2
    for one in recorded:
        assert one.about["arguments"]["alpha"] == 0.3
        assert_conforms(one)
        # A response of a group that differs has an advantage for each token, and the dump their mean.
        values = [len(np.unique(row[mask])) for row, mask in zip(one.advantage_BT, one.mask_BT, strict=True)]
        assert max(values) > 10
    assert_same_steps(recorded, read_metrics(joined.metrics))
    dumped = [row.advantage for row in read_dump(joined.rollouts_of(2))]
    last = recorded[-1]
    means = [row[mask].mean() for row, mask in zip(last.advantage_BT, last.mask_BT, strict=True)]
    assert sorted(dumped) == pytest.approx(sorted(means), abs=1e-5)


@pytest.fixture(scope="module")
def killed(runs):
    """verl's own grpo, on a Ray cluster that the launcher starts. Its trainer is killed after the second step; in the
    resumed run the server of vLLM is, while it samples."""
    words = ["model.path=egpo-tiny", *COUNTDOWN, "steps=50", "validation.every=0", "verl.patience_minutes=5"]
    words += ["update.lr=3e-5"]
    killed_in(runs, words, "WorkerDict", 2, **{VARIABLE: str(runs / "killed-record")})
    killed_in(runs, [*words, "--resume"], "vLLMHttpServer", 3)
    return RunFolder(runs / "killed")


def killed_in(runs, words, name, step, **environment):
    """Kill the process of verl with this name after a step, and wait until the launcher has ended."""
    process = launched(runs, "killed", *words, **environment)
    record = wait_for_step(runs, "killed", step, process)
    victim = next(one.pid for one in record.processes if process_title(one.pid).startswith(f"ray::{name}"))
    os.kill(victim, signal.SIGKILL)
    assert process.wait(timeout=LIMIT_S) == 1, screen_of(runs, "killed")
    nobody_is_left(record)


def test_a_process_killed_in_mid_step_is_named_and_nobody_is_left(runs, killed):
    said = " ".join((runs / "killed.txt").read_text().split())
    assert re.search(
        r"egpo: \S+verl\.log: process \d+ of verl \(WorkerDict, the trainer\) died after step \d+ of 50", said
    )
    assert re.search(
        r"process \d+ of verl \(vLLMHttpServer, a server of vLLM\) died after step \d+ of 50: .*memory", said
    )
    assert said.count("continue with: egpo train") == 2
    assert "Traceback" not in said


def test_a_run_whose_worker_was_killed_goes_on_from_its_checkpoint(killed):
    (resumption,) = read_provenance(killed.provenance).resumptions
    assert resumption.after_step >= 2
    assert steps_of(killed) == [*range(1, max(steps_of(killed)) + 1)]
    assert max(steps_of(killed)) > resumption.after_step
    assert json.loads(killed.latest.read_text()) >= 2


def test_verl_s_own_grpo_has_our_metrics_and_its_own_advantages(runs, killed):
    lines = read_metrics(killed.metrics)
    assert len(lines) >= 2
    for line in lines:
        assert set(line) >= EVERY_STEP
        assert not [key for key in line if key.startswith("egpo/")]
    recorded = records_in(runs / "killed-record")[:2]
    for one in recorded:
        assert one.about["estimator"] == "grpo"
        assert_conforms(one)
    assert_same_steps(recorded, lines[:2])
