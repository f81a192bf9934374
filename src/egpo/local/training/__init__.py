"""A run while it is trained: opening, checks before the first step, sessions."""
