"""Segments of a response in tokens: thinking, answer, and the whole response.

In: token ids and mask of responses (B rows, T tokens), a tokenizer and a pair of tags. Out: one boolean mask per
segment, and means over them. `egpo.rewards.answers` splits text by the same rule.

masks.py   `segment_masks` splits at the tags; `opened_by_prompt` finds prompts that open the thinking; `mean_over`
turns.py   `turn_segments`: the same for responses of several turns; `spans_in` finds the turns in a mask with holes
tags.py    the bytes of each token: finds a tag in token ids, and maps the text of a response to its tokens
"""

from egpo.segments.masks import Segments, mean_over, opened_by_prompt, segment_masks
from egpo.tags import THINK_TAGS

__all__ = ["THINK_TAGS", "Segments", "mean_over", "opened_by_prompt", "segment_masks"]
