"""BFCL's handlers with another bound on the length of an answer than the one that BFCL writes into every request.

Runs in BFCL's environment, where egpo is not installed.
"""

from typing import Any

BFCLS_OWN = 4096


def bounded(handler: type[Any], longest: int | None, context: int | None) -> type[Any]:
    """`handler`, asking for at most `longest` tokens an answer (None: BFCL's own), and never for more than there is
    room for after the prompt, in the model's context and in the server's `context` (None: the same)."""

    class Bounded(handler):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            completions = self.client.completions  # the same object at every use
            ask = completions.create

            def create(*, prompt: str, max_tokens: int, **others: Any) -> Any:
                room = self._room_after(prompt)
                # A prompt that does not fit goes out as BFCL sends it, for the server to refuse.
                wanted = max_tokens if room < 0 else min(longest or BFCLS_OWN, room)
                return ask(prompt=prompt, max_tokens=wanted, **others)

            completions.create = create

        def _room_after(self, prompt: str) -> int:
            """Counted as BFCL counts, with two tokens to spare; negative where the prompt does not fit."""
            whole = min(self.max_context_length, context or self.max_context_length)
            return int(whole - len(self.tokenizer.tokenize(prompt)) - 2)

    return Bounded
