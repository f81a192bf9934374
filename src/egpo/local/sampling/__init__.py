"""Responses, one token a row at a time."""
