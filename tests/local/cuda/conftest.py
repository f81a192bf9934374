"""Policies on a GPU."""

import pytest

from egpo.config.schema import Model
from egpo.local.models import load


@pytest.fixture
def gpu():
    return load.choose_device("cuda")


@pytest.fixture
def load_on_gpu(model_folder):
    """`load_on_gpu("qwen3")` is a fresh policy there, in float32 unless told."""

    def load_shape(shape="qwen3", dtype="float32", **settings):
        return load.load_policy(Model(path=str(model_folder(shape)), device="cuda", dtype=dtype, **settings))

    return load_shape
