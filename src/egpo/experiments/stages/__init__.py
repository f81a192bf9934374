"""One file a stage: what it needs, what it leaves, and the work."""
