"""What a recipe will take on a GPU: memory by part, seconds by stage. No torch."""
