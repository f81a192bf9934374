"""The largest tool call that is accepted.

Rewards (which read calls) and data (which writes them) use the same bounds, so that no prepared row is rejected during
a run.
"""

MAX_DEPTH = 64
"""Levels of nested objects and lists."""
MAX_NUMBER_CHARS = 300
"""Characters of one number: below the largest double (1.8e308), so that every integer can become a float."""
MAX_CALLS_CHARS = 1_000_000
"""Characters of the text that contains the calls. Bounds the memory of parsing; other text may be longer."""
