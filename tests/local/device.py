"""Where the tests' policies live: on a CPU, or with `EGPO_TEST_DEVICE=cuda` (`make test-gpu`) on a GPU, where the same
laws hold to the same tolerances: in float32, by deterministic algorithms."""

import os

DEVICE = os.environ.get("EGPO_TEST_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
MODEL = {"device": "cuda", "dtype": "float32", "deterministic": True} if ON_GPU else {"device": "cpu"}
"""Settings of `model`."""
WORDS = tuple(f"model.{name}={value}" for name, value in MODEL.items())
"""The same, as on a command line."""
