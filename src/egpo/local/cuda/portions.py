"""Prompts, some at a time."""

from collections.abc import Iterator, Sequence

Prompt = Sequence[int]


def portions(prompts: Sequence[Prompt], most_tokens: int) -> Iterator[Sequence[Prompt]]:
    """In order, of so many tokens at most; a longer prompt is one by itself."""
    first = tokens = 0
    for place, prompt in enumerate(prompts):
        if tokens and tokens + len(prompt) > most_tokens:
            yield prompts[first:place]
            first, tokens = place, 0
        tokens += len(prompt)
    yield prompts[first:]
