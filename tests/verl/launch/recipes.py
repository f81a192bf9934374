"""A small recipe for the launcher's tests."""

from egpo.config import load_config

SMALL = (
    "engine=verl",
    "verl.device=cpu",
    "model.path=egpo-tiny",
    "task.name=countdown",
    "task.settings.train=32",
    "task.settings.test=8",
    "rollout.prompts=4",
    "rollout.n=4",
    "rollout.max_response_tokens=64",
    "steps=3",
)


def small(*overrides):
    return load_config(None, [*SMALL, *overrides])
