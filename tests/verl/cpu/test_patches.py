"""The platform inside the verl it is written for: each in a process of its own, as verl starts them."""

import json
import os
import subprocess
import sys

import pytest

from egpo.verl.cpu.launch_settings import ENVIRONMENT

pytestmark = pytest.mark.verl
pytest.importorskip("verl")


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, **environment},
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


ON_A_CPU = """
import asyncio, importlib, json, tempfile, threading, torch
import verl
from egpo.verl.cpu.register import PATCHES
from verl.utils.device import get_device_id, get_nccl_backend, get_torch_device, is_support_ipc

for name in PATCHES:
    importlib.import_module(name)

from verl.third_party.vllm import vllm_version
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

poll_interval = ReplayBufferAsync("colocate_async", {}, 8, "drop", {}).poll_interval
platform = [str(one) for one in (get_device_id(), get_nccl_backend(), is_support_ipc(), vllm_version, poll_interval)]

from egpo.errors import EgpoError
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver, BucketedWeightSender

handle = "ipc://" + tempfile.mkdtemp() + "/weights.sock"
received = {}

def refuse(weights, is_last):
    raise KeyError("lm_head.weight")

def receive(load):
    try:
        BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True).receive_weights(load)
    except KeyError:
        pass

def send(weights, load=None):
    receivers = [threading.Thread(target=receive, args=[load])] if load else []
    for receiver in receivers:
        receiver.start()
    try:
        asyncio.run(BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True).async_send_weights(iter(weights)))
        return "sent"
    except EgpoError as error:
        return str(error)
    finally:
        for receiver in receivers:
            receiver.join()

# Three buckets through one piece of memory: a tensor that was not copied would hold the last one's values.
weights = [(str(i), torch.full((200_000,), float(i))) for i in range(3)]
sent = send(weights, lambda bucket, is_last: received.update(bucket))
answers = {
    "platform": platform,
    "sent": sent,
    "received": {name: tensor.unique().tolist() for name, tensor in received.items()},
    "refused": send([("lm_head.weight", torch.ones(4))], refuse),
    "nobody there": send([("w", torch.ones(4))]),
}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_a_cpu():
    """One process for all of these: it takes long to import verl and vLLM."""
    return json.loads(run(ON_A_CPU, EGPO_WEIGHTS_TIMEOUT_S="2").splitlines()[-1])


def test_every_patch_finds_what_it_replaces(on_a_cpu):
    """A patch whose target is gone raises, so importing every module that is patched is the test."""
    assert on_a_cpu["platform"] == ["cpu", "gloo", "False", "0.32.0+cpu", "0.1"]


def test_weights_of_every_bucket_arrive_and_stay(on_a_cpu):
    assert on_a_cpu["sent"] == "sent"
    assert on_a_cpu["received"] == {"0": [0.0], "1": [1.0], "2": [2.0]}


def test_a_weight_that_cannot_be_loaded_ends_the_run_with_the_reason(on_a_cpu):
    """In verl itself the trainer waits for ever."""
    assert on_a_cpu["refused"] == "vLLM could not load the weights: KeyError: 'lm_head.weight'"


def test_a_server_that_is_gone_ends_the_run_in_time(on_a_cpu):
    assert on_a_cpu["nobody there"].startswith("vLLM accepted no weights for 2 s; ")
    assert "EGPO_WEIGHTS_TIMEOUT_S=600" in on_a_cpu["nobody there"]


def test_a_plain_import_of_verl_neither_trains_on_the_cpu_unasked_nor_loads_the_trainers():
    """Most processes of verl never train: they are spared what the plug-in's trainers import."""
    code = """
import sys, verl
print(*(name in sys.modules for name in ("verl.trainer.ppo.v1", "egpo.verl.trainers")))
from verl.utils.device import get_device_name
print(get_device_name())
"""
    assert run(code, VERL_PLATFORM="").splitlines()[-2:] == ["False False", "cuda"]
