"""A model folder from a stranger: whatever its files say, one line within seconds and a bounded size, and no code."""

import json
import os
import pickle
import resource
import shutil

import pytest
import torch

from egpo.config.machine import LARGEST_TEXT, require_model_place
from egpo.config.schema import Model
from egpo.errors import EgpoWarning, InputError
from egpo.local.models.loading import load_policy
from tests.faults.flips import time_limit
from tests.local.conftest import build_model, build_tokenizer

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for shape in ("qwen3", "llama"):
        build_model(shape).save_pretrained(place / shape)
        build_tokenizer().save_pretrained(place / shape)
    return place


@pytest.fixture
def folder(models, tmp_path):
    """A whole model folder, which the test changes. Llama's config has no second place for the number of layers."""
    return shutil.copytree(models / "llama", tmp_path / "model")


def refused(folder, match):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with time_limit(20), pytest.raises(InputError, match=match) as caught:
        load_policy(Model(path=str(folder), device="cpu"))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB: no gigabyte was read


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_ten_gigabytes_is_not_read(folder, name):
    with (folder / name).open("r+b") as file:
        file.truncate(10 << 30)  # sparse: it takes no disk
    refused(folder, rf"{name} has 10,737 MB")
    assert LARGEST_TEXT > (35 << 20)


def test_weights_for_other_programs_are_no_text(folder):
    """A folder of the hub has them beside ours."""
    for name in ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.onnx"):
        with (folder / name).open("wb") as file:
            file.truncate(LARGEST_TEXT + 1)
    require_model_place(str(folder), "model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_json_of_a_hundred_thousand_levels(folder, name):
    (folder / name).write_text(DEEP)
    refused(folder, "recursion")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer.json", "\0" * 100),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": [[1]]}}'),
        ("generation_config.json", "[1]"),
        ("generation_config.json", '{"eos_token_id": "x"}'),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama", "num_attention_heads": 0, "hidden_size": 32}'),
    ],
)
def test_json_of_another_shape(folder, name, content):
    """Each of these once was a traceback: transformers raises whatever its code runs into."""
    (folder / name).write_text(content)
    refused(folder, "cannot be loaded|no tokenizer|not the number of a token|contains a list")


@pytest.mark.parametrize("layers", [10**7, 10**18])
def test_ten_million_layers_are_not_built(folder, layers):
    change(folder / "config.json", num_hidden_layers=layers)
    refused(folder, "num_hidden_layers.*from 1 to 2,000")


@pytest.mark.parametrize("values", [{"hidden_size": 10**9}, {"vocab_size": 10**10}])
def test_sizes_that_no_memory_holds(folder, values):
    change(folder / "config.json", **values)
    refused(folder, "cannot be loaded")


def test_weights_that_the_config_names_and_the_file_lacks_are_not_drawn_at_random(folder):
    """One flipped bit of `num_hidden_layers`: transformers fills the third layer with random numbers."""
    change(folder / "config.json", num_hidden_layers=3)
    refused(folder, r"the weights of \d+ tensors are missing, such as model\.layers\.2\.")


def test_weights_that_the_config_does_not_name_are_said(folder):
    change(folder / "config.json", num_hidden_layers=1)
    with pytest.warns(EgpoWarning, match=r"tensors, such as model\.layers\.1\..*are not part of the model"):
        load_policy(Model(path=str(folder), device="cpu"))


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 10**8 + 1, 0])
def test_a_header_of_any_declared_length(folder, length):
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
    refused(folder, "cannot be loaded")


def test_an_index_that_names_files_outside_of_the_folder(folder):
    (folder / "model.safetensors").rename(folder / "w.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../../../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "cannot be loaded")


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_is_not_run(folder, tmp_path, plain):
    (folder / "model.safetensors").unlink()
    evil = Evil(tmp_path / "it_ran")
    if plain:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(evil, protocol=2))
    else:
        torch.save({"model.norm.weight": evil}, folder / "pytorch_model.bin")
    refused(folder, "contains more than tensors; loading it could run code")
    assert not (tmp_path / "it_ran").exists()
