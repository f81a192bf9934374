"""Which checkpoints stay."""

from collections.abc import Mapping


def kept_steps(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> set[int]:
    """The last so many, and besides those of the highest scores; of equal scores the later. A checkpoint without a
    score is never among the best."""
    steps = sorted(score_of)
    scored = [(score, step) for step, score in score_of.items() if score is not None]
    best = sorted(scored, reverse=True)[:keep_best]
    return {*steps[-keep_last:], *(step for _, step in best)}
