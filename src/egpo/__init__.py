"""egpo."""
