"""Limits for BFCL's handlers (its model classes): on the length of each answer, and on each wait for the server.

Runs in BFCL's environment, where egpo is not installed.
"""

import time
from collections.abc import Callable
from typing import Any

BFCLS_OWN = 4096
READY_S = 120.0
"""Seconds to wait for the server's list of models. The server was already running before BFCL was started."""
_PAUSE_S = 1.0


class ServerNotReadyError(Exception):
    """The server did not list its models in time. The message is one line, shown to the user."""


def bounded(handler: type[Any], longest: int | None, context: int | None, timeout_s: float) -> type[Any]:
    """Return a subclass of `handler` that limits each answer to `longest` tokens (None: BFCL's own limit).

    If `longest` or `context` is given, prompt and answer together are also limited to the model's context length
    and to that of the server (`context`; None: equal to the model's). Each request times out after `timeout_s`
    seconds; BFCL's own timeout is 20 hours.
    """
    bounds_length = bool(longest or context)

    class Bounded(handler):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            completions = self.client.completions  # the same object at every use
            ask = completions.create

            def create(*, prompt: str, max_tokens: int, **others: Any) -> Any:
                others["timeout"] = timeout_s
                if not bounds_length:
                    return ask(prompt=prompt, max_tokens=max_tokens, **others)
                room = self._room_after(prompt)
                # A prompt that does not fit is sent unchanged; the server refuses it.
                wanted = max_tokens if room < 0 else min(longest or BFCLS_OWN, room)
                return ask(prompt=prompt, max_tokens=wanted, **others)

            completions.create = create

        def _room_after(self, prompt: str) -> int:
            """Return the number of tokens that the prompt leaves of the context; negative if the prompt is too long.

            As in BFCL, tokens are counted with the model's tokenizer, and two are held in reserve.
            """
            whole = min(self.max_context_length, context or self.max_context_length)
            return int(whole - len(self.tokenizer.tokenize(prompt)) - 2)

    return Bounded


def patient(get: Callable[..., Any], within_s: float = READY_S) -> Callable[[str], Any]:
    """Return a replacement for `requests.get` that retries every second until the server answers with status 200.

    After `within_s` seconds it raises ServerNotReadyError. BFCL waits for the server in a loop that calls `get`. The
    loop has no deadline, and does not pause after a status other than 200.
    """

    def ask_until_ready(url: str) -> Any:
        deadline = time.monotonic() + within_s
        while True:
            try:
                reply = get(url, timeout=30)
                if reply.status_code == 200:
                    return reply
                said = f"its last answer was {reply.status_code} {reply.reason}"
            except OSError as error:  # the exceptions of requests and of sockets are both OSErrors
                said = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise ServerNotReadyError(f"{url}: the server did not list its models within {within_s:g} s ({said})")
            time.sleep(_PAUSE_S)

    return ask_until_ready
