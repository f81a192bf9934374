"""Supervised fine-tuning: conversations in, a cold start out. What the assistant says is learned, and nothing else."""
