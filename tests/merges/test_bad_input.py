"""What cannot be merged is refused with its reason, and nothing is lost."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

from egpo.errors import InputError
from egpo.merges import output
from egpo.merges.merge import merge
from tests.merges.sharded import TINY, Sharding, save_sharded, trained_model


@pytest.fixture
def actor(two_shards, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(two_shards, tmp_path / "checkpoints" / "global_step_7" / "actor")


def fault(source, out, **settings):
    with pytest.raises(InputError) as caught:
        merge(source, out, **settings)
    return str(caught.value)


def shard(actor, rank, world_size=2):
    return actor / f"model_world_size_{world_size}_rank_{rank}.pt"


def rewrite(path, change):
    state = torch.load(path, weights_only=True)
    torch.save(change(state), path)


def test_missing_shards_are_named(actor, tmp_path):
    for rank in (1, 2, 3):
        shutil.copy(shard(actor, 0), shard(actor, rank, world_size=5))
    shard(actor, 0).unlink()
    shard(actor, 1).unlink()
    assert "2 of 5 shards are missing: rank 0, 4" in fault(actor, tmp_path / "out")


def test_a_missing_shard_after_the_first_is_named(actor, tmp_path):
    shard(actor, 1).unlink()
    assert "1 of 2 shards are missing: rank 1" in fault(actor, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_world_sizes_are_refused(actor, tmp_path):
    shutil.copy(shard(actor, 0), shard(actor, 0, world_size=1))
    assert "shards of several world sizes: 1, 2" in fault(actor, tmp_path / "out")


def test_a_truncated_shard(actor, tmp_path):
    content = shard(actor, 1).read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 1):
        shard(actor, 1).write_bytes(content[:size])
        assert "rank_1.pt: the file cannot be read as a shard" in fault(actor, tmp_path / "out")


class _Payload:
    """What a pickle may do when it is loaded."""

    def __reduce__(self):
        return print, ("the file ran code",)


def test_a_shard_that_would_run_code_is_not_run(actor, tmp_path, capsys):
    torch.save({"model.norm.weight": _Payload()}, shard(actor, 1))
    assert "cannot be read as a shard" in fault(actor, tmp_path / "out")
    assert "ran code" not in capsys.readouterr().out


def test_a_shard_of_something_else(actor, tmp_path):
    torch.save([1, 2], shard(actor, 0))
    assert "the file is not a state dict" in fault(actor, tmp_path / "out")


def test_shards_of_two_saves(actor, tmp_path):
    rewrite(shard(actor, 1), lambda state: {name: state[name] for name in list(state)[:-1]})
    assert "a tensor is only in this file or only in that of rank 0: lm_head.weight" in fault(actor, tmp_path / "out")


def test_whole_tensors_that_the_ranks_disagree_on(actor, tmp_path):
    for rank in (0, 1):
        rewrite(shard(actor, rank), lambda state, rank=rank: {**state, "model.norm.weight": torch.full((192,), rank)})
    assert "[model.norm.weight]: a tensor that all ranks share has different values" in fault(actor, tmp_path / "out")


def test_weights_that_are_not_the_config_s(actor, tmp_path):
    path = actor / "huggingface" / "config.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {"num_hidden_layers": 7, "layer_types": ["full_attention"] * 7}))
    assert "the weights do not match the config: 11 missing, such as model.layers.6." in fault(actor, tmp_path / "out")
    path.write_text(json.dumps(described | {"intermediate_size": 256}))
    assert "18 mismatched, such as model.layers.0.mlp.down_proj.weight" in fault(actor, tmp_path / "out")
    path.write_text(json.dumps(described | {"architectures": ["TheirOwnModel"]}))
    assert "the model class `TheirOwnModel` is not part of transformers" in fault(actor, tmp_path / "out")


def test_a_tied_head_that_differs(actor, tmp_path):
    rewrite(shard(actor, 0), lambda state: {**state, "lm_head.weight": state["lm_head.weight"] * 2})
    assert "lm_head.weight and model.embed_tokens.weight are tied but differ" in fault(actor, tmp_path / "out")


def test_a_missing_config_and_a_missing_tokenizer(actor, tmp_path):
    for path in (actor / "huggingface").glob("tokenizer*"):
        path.unlink()
    assert "no tokenizer" in fault(actor, tmp_path / "out")
    (actor / "huggingface" / "config.json").unlink()
    assert "huggingface: the folder has no config.json; copy config.json" in fault(actor, tmp_path / "out")


def test_a_tokenizer_with_more_tokens_than_the_model(actor, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.add_tokens(["one-more"])
    tokenizer.save_pretrained(actor / "huggingface")
    assert "the tokenizer has 1025 tokens, but the model has embeddings for only 1024" in fault(actor, tmp_path / "out")


def test_a_model_that_diverged(actor, tmp_path):
    rewrite(shard(actor, 0), lambda state: {**state, "model.norm.weight": state["model.norm.weight"] * float("nan")})
    assert "logits are not finite; the training diverged" in fault(actor, tmp_path / "out")


def test_neither_shards_nor_weights(actor, tmp_path):
    for rank in (0, 1):
        shard(actor, rank).unlink()
    assert "neither shards nor weights" in fault(actor, tmp_path / "out")


LORA = {"r": 4, "lora_alpha": 24, "target_modules": ["q_proj"], "init_lora_weights": False}


def test_adapters_without_their_alpha_and_without_their_base(tmp_path):
    """verl's own merger takes 0 for an alpha that it does not find, and the training is lost without a word."""
    actor = tmp_path / "actor"
    save_sharded(actor, Sharding(1, lora=LORA, lora_only=True))
    assert "has only adapters, without their base model; give the model that the training started from" in fault(
        actor, tmp_path / "out"
    )
    assert "the folder does not exist" in fault(actor, tmp_path / "out", base="nobody/nothing")
    meta = actor / "lora_train_meta.json"
    meta.write_text('{"r": 8, "lora_alpha": 24}')
    assert "and rank 8 do not fit the weight" in fault(actor, tmp_path / "out", base=str(TINY))
    meta.write_text('{"r": 4, "lora_alpha": 0}')
    assert "rank 4 and alpha 0 must both be above 0; write" in fault(actor, tmp_path / "out", base=str(TINY))
    meta.write_text('{"r": 4}')
    assert "has no valid rank and alpha" in fault(actor, tmp_path / "out", base=str(TINY))
    meta.unlink()
    assert "has LoRA adapters, but their alpha is not recorded" in fault(actor, tmp_path / "out", base=str(TINY))


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_there_is_not_replaced(actor, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for force in (False, True):
        assert "already contains thesis.tex; choose another --out" in fault(actor, out, force=force)
    (out / "config.json").touch()  # many a program has one: it takes weights to be a model
    assert fault(actor, out, force=True).endswith("; choose another --out")
    (out / "model.safetensors").touch()
    assert "or replace the model with --force" in fault(actor, out)
    assert (out / "thesis.tex").read_text() == "years of work"
    merge(actor, out, force=True)
    assert not (out / "thesis.tex").exists()
    assert "the output is a file, not a folder" in fault(actor, out / "config.json")


def test_a_merge_may_be_made_again(actor, tmp_path):
    out = tmp_path / "out"
    merge(actor, out)
    before = listing(out)
    merge(actor, out)
    assert listing(out) == before
    other = shutil.copytree(actor, tmp_path / "other" / "actor")
    assert "already contains" in fault(other, out)


def test_a_link_stays_and_the_model_goes_where_it_leads(actor, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "model")
    for _ in range(2):
        merge(actor, tmp_path / "out")
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk" / "model" / "config.json").is_file()


def test_what_a_killed_merge_left_is_removed_by_the_next(actor, tmp_path):
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from egpo.merges.merge import merge\n"
        "end = lambda stage, done, total: os.kill(os.getpid(), 9) if stage == 'weights written' else None\n"
        "merge(Path(sys.argv[1]), Path(sys.argv[2]), watch=end)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(actor), str(tmp_path / "out")], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".egpo-*"))
    merge(actor, tmp_path / "out")
    assert not list(tmp_path.glob(".egpo-*"))


def test_a_model_does_not_go_into_its_checkpoint(actor):
    for out in (actor, actor / "huggingface", actor.parent, actor / "out"):
        assert "is inside the checkpoint, or contains it" in fault(actor, out, force=True)
    assert shard(actor, 0).exists()


def test_too_little_room_is_seen_before_anything_is_written(actor, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda path: usage)
    assert "the model needs 0.01 GB and 0.00 GB are free" in fault(actor, tmp_path / "out")


def test_a_full_disk_leaves_the_earlier_merge(actor, tmp_path):
    """RLIMIT_FSIZE makes the kernel refuse the bytes, as a full disk does."""
    out = tmp_path / "out"
    merge(actor, out)
    before = listing(out)
    command = [sys.executable, "-m", "egpo", "merge", str(actor), "--out", str(out)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)),
    )
    assert done.returncode == 2, done.stderr
    assert "the folder cannot be written (File too large" in done.stderr
    assert "and is unchanged" in done.stderr
    assert listing(out) == before
    assert not list(tmp_path.glob(".egpo-*"))


def test_the_trained_model_is_not_touched(two_shards, tmp_path):
    before = listing(two_shards / "huggingface"), shard(two_shards, 0).read_bytes()
    merge(two_shards, tmp_path / "out", dtype="bfloat16")
    assert (listing(two_shards / "huggingface"), shard(two_shards, 0).read_bytes()) == before
    assert trained_model(Sharding(2)).dtype == torch.float32


def put_a_new_model(out):
    with output.replaced(out) as new:
        (new / "config.json").write_text("new")


def test_the_earlier_model_stays_where_the_disk_becomes_read_only(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("old")

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(output, "exchange", refuse)
    with pytest.raises(InputError, match="Read-only file system"):
        put_a_new_model(out)
    assert (out / "config.json").read_text() == "old"


def test_an_earlier_model_that_cannot_be_moved_back_is_not_removed(tmp_path, monkeypatch):
    """On a file system that cannot exchange two names, if both renames after the first fail."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("old")
    renamed, rename = [], os.rename

    def rename_once(source, target):
        if renamed:
            raise OSError(errno.EROFS, "Read-only file system")
        renamed.append(rename(source, target))

    monkeypatch.setattr(output, "exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", rename_once)
    with pytest.raises(InputError, match="Read-only file system"):
        put_a_new_model(out)
    (kept,) = tmp_path.glob(".egpo-*/old/config.json")
    assert kept.read_text() == "old"
