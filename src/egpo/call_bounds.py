"""The limits on the size of a tool call.

Rewards (which read calls) and data (which writes them) use the same limits, so that no prepared row is rejected during
a run.
"""

MAX_DEPTH = 64
"""Maximum number of levels of nested objects and lists."""
MAX_NUMBER_CHARS = 300
"""Maximum number of characters of a number, so that every integer can be converted to a float (at most 1.8e308)."""
MAX_CALLS_CHARS = 1_000_000
"""Maximum number of characters of the text that contains the calls, which limits the memory of parsing. The rest of a
response may be longer."""
