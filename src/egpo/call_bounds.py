"""How large a tool call may be. One set of bounds for the rewards, which read calls, and for the data, which writes
them: no prepared row may be refused in the middle of a run."""

MAX_DEPTH = 64
"""Of objects and lists in each other."""
MAX_NUMBER_CHARS = 300
"""Of one number: below the largest double (1.8e308), so that every integer that is read has a float beside it."""
MAX_CALLS_CHARS = 1_000_000
"""Of the text that holds the calls: bounds the memory that reading it takes. Prose may be longer: it is not parsed."""
