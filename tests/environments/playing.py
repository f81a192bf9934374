"""Episodes from texts: what an engine would do, without a model."""

import json

from egpo.environments import Episode


def call(name, /, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(host, row, texts, limits=None):
    """Play the texts until the episode ends; stop it if it goes on after the last. Return its record."""
    episode = Episode(host, row, limits)
    episode.start()
    for text in texts:
        if episode.ending:
            break
        episode.assistant(text)
    if not episode.ending:
        episode.stop()
    return episode.record()
