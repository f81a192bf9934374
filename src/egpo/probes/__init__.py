"""Is there a signal before we train? The first stages of a step without an update, and what they say of the data."""
