"""A model behind an OpenAI-compatible server, for as long as somebody needs it."""
