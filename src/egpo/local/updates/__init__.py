"""From advantages to weights."""
