"""Stop strings in text that was sampled a few tokens at a time."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from egpo.local.sampling.stops import Stops


def first_stop(tokens: Sequence[int], known: int, stops: Stops, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The length at which a response would have ended, had it been looked at after every token; None where no stop
    string is in it. The first `known` tokens have been looked at."""
    reach = stops.num_tail_tokens
    window = tokenizer.decode(tokens[max(0, known + 1 - reach) :])
    if not any(string in window for string in stops.strings):
        return None
    for length in range(known + 1, len(tokens) + 1):
        tail = tokenizer.decode(tokens[max(0, length - reach) : length])
        if any(string in tail for string in stops.strings):
            return length
    return None
