"""The weights' way from the trainer into vLLM, through shared memory: copied, with a time limit, and failures reported.

In verl 0.9.1 a worker of vLLM that cannot load a weight closes its socket without an answer, and the trainer waits for
that answer for ever (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:152). Here the answer is the error.
"""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.verl.cpu.replacements import replace

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
