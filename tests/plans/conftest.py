"""The tiny models of the engine's tests."""

from tests.local.conftest import model_folder

__all__ = ["model_folder"]
