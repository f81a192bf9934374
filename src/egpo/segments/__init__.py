"""Segments of a response: thinking, answer, all of it. In tokens; `egpo.rewards.answers` cuts text the same way."""

from egpo.segments.masks import Segments, mean_over, opened_by_prompt, segment_masks
from egpo.tags import THINK_TAGS

__all__ = ["THINK_TAGS", "Segments", "mean_over", "opened_by_prompt", "segment_masks"]
