"""What `transformers serve` finds."""

import json
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir
from transformers import AutoModelForCausalLM, GenerationConfig

from egpo.assets import MODELS
from egpo.errors import InputError
from egpo.serving.commands import Serving
from egpo.serving.served import offer

TINY = MODELS["egpo-tiny"]


def test_the_model_under_its_name_told_to_sample(tmp_path):
    offer(tmp_path, Serving(str(TINY), "org/mine"))
    place = tmp_path / "org" / "mine"
    assert {path.name for path in place.iterdir()} == {path.name for path in TINY.iterdir()}
    found = GenerationConfig.from_pretrained(place)
    assert (found.do_sample, found.temperature, found.top_k, found.top_p) == (True, 1.0, 0, 1.0)
    assert found.eos_token_id == 2
    assert AutoModelForCausalLM.from_pretrained(place).num_parameters() == 2_558_784
    assert "do_sample" not in json.loads((TINY / "generation_config.json").read_text())


def test_the_server_gets_a_cache_of_the_hub_that_exists(tmp_path):
    """`/v1/models` of `transformers serve` lists it, and answers 500 where it does not exist."""
    variables = offer(tmp_path, Serving(str(TINY), "mine"))
    cache = Path(variables["HF_HUB_CACHE"])
    assert cache.is_dir()
    assert cache.is_relative_to(tmp_path)
    assert len(scan_cache_dir(cache).repos) == 0


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/elsewhere"])
def test_a_name_stays_in_its_folder(tmp_path, name):
    with pytest.raises(InputError, match="--name: "):
        offer(tmp_path / "here", Serving(str(TINY), name))
    assert not list(tmp_path.iterdir())


def test_a_name_of_the_hub_would_be_sampled_otherwise(tmp_path):
    with pytest.raises(InputError, match="would use the sampling settings of the model on the hub"):
        offer(tmp_path, Serving("Qwen/Qwen3-0.6B", "m"))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_generation_config_that_is_none(tmp_path, content):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "generation_config.json").write_text(content)
    with pytest.raises(InputError, match=r"generation_config\.json: the file (cannot be read|is not a JSON object)"):
        offer(tmp_path, Serving(str(tmp_path / "model"), "m"))
