"""A merged checkpoint is the model that was trained, to the bit, whatever ranks wrote it."""

import json
import os
import shutil
import stat

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from egpo.merges.merge import merge
from egpo.merges.models import Lora
from tests.merges.sharded import TINY, Sharding, save_sharded, trained_model


def load(folder, **settings):
    return AutoModelForCausalLM.from_pretrained(folder, **settings)


def require_equal(found, expected):
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("sharding", [Sharding(1), Sharding(2), Sharding(3), Sharding(2, replicas=2)], ids=str)
def test_shards_of_any_number_of_ranks_make_the_model_that_was_trained(sharding, tmp_path):
    """1024 rows over 3 ranks: the parts are of different sizes."""
    save_sharded(tmp_path / "actor", sharding)
    merged = merge(tmp_path / "actor", tmp_path / "out")
    require_equal(load(tmp_path / "out"), trained_model(sharding))
    assert (merged.world_size, merged.dtype, merged.logits_difference) == (sharding.world_size, "float32", 0)
    assert merged.lora is None


def test_replicas_need_only_one_copy_of_the_shards(tmp_path):
    sharding = Sharding(2, replicas=2)
    save_sharded(tmp_path / "actor", sharding)
    for rank in (2, 3):
        (tmp_path / "actor" / f"model_world_size_4_rank_{rank}.pt").unlink()
    merge(tmp_path / "actor", tmp_path / "out")
    require_equal(load(tmp_path / "out"), trained_model(sharding))


def test_the_model_says_where_it_comes_from(two_shards, tmp_path):
    merge(two_shards, tmp_path / "out")
    note = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert note["source"]["checkpoint"] == str(two_shards)
    assert note["source"]["step"] == 7
    assert sorted(note["source"]["files"]) == [f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)]
    written = {path.name for path in (tmp_path / "out").iterdir()} - {"merge.json"}
    assert note["merged"]["files"].keys() == written
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_the_tokenizer_and_its_template_are_the_training_s(two_shards, tmp_path):
    merge(two_shards, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (two_shards / "huggingface" / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_others_may_read_it(two_shards, tmp_path):
    merge(two_shards, tmp_path / "out")
    mask = os.umask(0o022)
    os.umask(mask)
    for path in (tmp_path / "out").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path.name


def test_the_dtype_may_be_chosen(two_shards, tmp_path):
    merged = merge(two_shards, tmp_path / "out", dtype="bfloat16")
    assert merged.dtype == "bfloat16"
    require_equal(load(tmp_path / "out"), trained_model(Sharding(2)).bfloat16())


@pytest.mark.parametrize("name", ["egpo_packed", "flash_attention_2"])
def test_a_model_is_merged_and_loads_without_the_attention_of_its_training(two_shards, tmp_path, name):
    """verl had written `egpo_packed` into config.json, and neither we nor transformers could load the model."""
    actor = shutil.copytree(two_shards, tmp_path / "actor")
    path = actor / "huggingface" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attn_implementation": name}))
    merge(actor, tmp_path / "out")
    assert "attn_implementation" not in json.loads((tmp_path / "out" / "config.json").read_text())
    require_equal(load(tmp_path / "out"), trained_model(Sharding(2)))


def test_the_config_names_the_dtype_that_auto_takes(tmp_path):
    """Trained in float32, as master weights are, and called a bfloat16 model."""
    save_sharded(tmp_path / "actor", Sharding(1))
    path = tmp_path / "actor" / "huggingface" / "config.json"
    path.write_text(path.read_text().replace('"float32"', '"bfloat16"'))
    assert merge(tmp_path / "actor", tmp_path / "out").dtype == "bfloat16"
    assert load(tmp_path / "out").dtype == torch.bfloat16


def test_without_a_word_the_dtype_is_the_stored_one(tmp_path):
    save_sharded(tmp_path / "actor", Sharding(1))
    path = tmp_path / "actor" / "huggingface" / "config.json"
    described = json.loads(path.read_text())
    del described["dtype"]
    path.write_text(json.dumps(described))
    assert merge(tmp_path / "actor", tmp_path / "out").dtype == "float32"


@pytest.mark.parametrize("lora_only", [False, True], ids=["with the base", "adapters only"])
def test_lora_is_folded_in_as_peft_does_it(lora_only, tmp_path):
    lora = {"r": 4, "lora_alpha": 24, "target_modules": "all-linear", "init_lora_weights": False}
    sharding = Sharding(2, lora=lora, lora_only=lora_only)
    save_sharded(tmp_path / "actor", sharding)
    merged = merge(tmp_path / "actor", tmp_path / "out", base=str(TINY) if lora_only else None, dtype="float32")
    expected = trained_model(sharding).merge_and_unload()
    found, theirs = load(tmp_path / "out").state_dict(), expected.state_dict()
    assert found.keys() == theirs.keys()
    for name in found:
        torch.testing.assert_close(found[name], theirs[name], atol=1e-6, rtol=1e-5)
    base = load(TINY, dtype=torch.float32).state_dict()
    moved = [name for name in found if not torch.equal(found[name], base[name])]
    assert len(moved) == 6 * 7
    assert merged.lora == Lora(4, 24)


def test_a_mixture_of_experts_is_written_as_it_is_published(tmp_path):
    """In memory its experts are one tensor; vLLM and others read one file entry for each."""
    base = tmp_path / "base"
    config = Qwen3MoeConfig(
        vocab_size=1024, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(base)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(base)
    sharding = Sharding(2, model=base)
    save_sharded(tmp_path / "actor", sharding)
    merge(tmp_path / "actor", tmp_path / "out")
    require_equal(load(tmp_path / "out"), trained_model(sharding))
    assert b"model.layers.0.mlp.experts.3.up_proj.weight" in (tmp_path / "out" / "model.safetensors").read_bytes()
