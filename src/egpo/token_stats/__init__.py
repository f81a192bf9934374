"""Log-probability and exact entropy of tokens, straight from hidden states: the logits never stand whole in memory."""

from egpo.token_stats.chunked import token_stats

__all__ = ["token_stats"]
