"""Runs against each other: was it fair, is there a difference, and could one have been seen? No torch."""
