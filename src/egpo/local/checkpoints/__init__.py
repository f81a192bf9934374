"""What is kept of a run's state, and how it comes back."""
