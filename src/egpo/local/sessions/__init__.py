"""A run while it is trained: what it writes, who watches, who may stop it."""
