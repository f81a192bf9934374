"""What is found wrong before verl starts, and how it is said."""

import json
import socket
import sys

import pytest

from egpo.errors import InputError
from egpo.serving import engine_options
from egpo.serving.engine_options import ParsedCommand
from egpo.verl.launch.preflight import (
    Installed,
    ask_interpreter,
    hardware_name,
    require_context,
    require_devices,
    require_free_gpus,
    require_free_ports,
    require_vllm_options,
)
from egpo.verl.launch.translation import Setting
from tests.verl.launch.recipes import small


def test_a_cluster_that_lacks_gpus_says_what_was_asked_and_what_is_there():
    config = small("verl.address=head:6379", "verl.gpus=8", "verl.nodes=2", "rollout.prompts=16")
    with pytest.raises(InputError, match=r"head:6379: 16 GPUs are needed .* and the cluster has 8"):
        require_devices(config, Installed("python", {}, 0, {"CPU": 96.0, "GPU": 8.0}))
    require_devices(config, Installed("python", {}, 0, {"CPU": 96.0, "GPU": 16.0}))


@pytest.mark.parametrize(
    ("gpus", "names", "said"),
    [
        (1, ["NVIDIA H200"], "NVIDIA H200"),
        (2, ["A", "A", "B"], "2 x A"),
        (2, ["A", "B"], "2 for verl"),
        (2, [], "2 for verl"),
    ],
)
def test_provenance_names_the_gpus_that_verl_uses(gpus, names, said):
    config = small("verl.device=cuda", f"verl.gpus={gpus}", "rollout.prompts=16")
    assert hardware_name(config, Installed("python", {}, len(names), None, names=names)) == said
    assert hardware_name(small(), Installed("python", {}, 0, None)) is None


FULL_GPU = """
from types import SimpleNamespace
def no_memory(index):
    raise RuntimeError("CUDA error: out of memory\\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.")
cuda = SimpleNamespace(device_count=lambda: 1, mem_get_info=no_memory, get_device_name=lambda index: "NVIDIA H200",
                       get_device_properties=lambda index: SimpleNamespace(total_memory=80 * 2**30))
"""
"""torch where another process leaves the driver no memory for a second one."""


def test_a_gpu_without_room_for_another_process_is_named(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(FULL_GPU)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    installed = ask_interpreter(small("verl.device=cuda", f"verl.python={sys.executable}"))
    assert (installed.gpus, installed.names) == (1, ["NVIDIA H200"])
    with pytest.raises(InputError, match=r"^GPU 0: 80\.0 of 80\.0 GiB are in use by other processes"):
        require_free_gpus([Setting("trainer.n_gpus_per_node", 1, "")], installed)


def test_a_port_in_use_is_named_with_its_key():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        key = "ray_kwargs.ray_init.dashboard_port"
        with pytest.raises(InputError, match=rf"verl\.{key}: port {port} cannot be used"):
            require_free_ports([Setting(key, port, "verl")])
    require_free_ports([Setting(key, port, "verl")])


def test_a_context_that_is_too_short(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 100}))
    with pytest.raises(InputError, match="take up to 101 tokens, and the model's context is 100"):
        require_context(str(tmp_path), 101)
    require_context(str(tmp_path), 100)
    require_context("owner/name", 10**9)


def test_options_of_vllm_are_checked_as_verl_writes_them(monkeypatch):
    """verl leaves out a switch that is off, and writes lists and mappings in its own way."""
    asked = []

    def parsed(python, words):
        asked.append(words)
        names = ("disable-log-stats", "max-num-seqs", "compilation-config", "cudagraph-capture-sizes")
        return ParsedCommand(names, "", 1, 1, 1, 0.9)

    monkeypatch.setattr(engine_options, "ask_parser", parsed)
    kwargs = "verl.actor_rollout_ref.rollout.engine_kwargs.vllm"
    words = [f"{kwargs}.{word}" for word in ("disable_log_stats=false", "max_num_seqs=3", "compilation_config.mode=0")]
    require_vllm_options(small(*words, f"{kwargs}.cudagraph_capture_sizes=[1,2]"), "python")
    assert asked == [("--max-num-seqs", "3")]
