"""GGUF files become model folders that compute what the original computes; files that cannot are named."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.config.machine import model_folder, require_model_place
from egpo.config.schema import Model
from egpo.errors import EgpoError, InputError
from egpo.evals.targets import find_model
from egpo.local.models.loading import load_policy
from egpo.model_sources import conversion, local_folder, origin_facts
from egpo.model_sources.quantisations import QUANTISATIONS
from tests.model_sources.gguf_files import build_model, build_tokenizer, tokenizer_metadata, write_gguf, write_model

TOKENS = torch.tensor([[5, 17, 200, 3, 3, 99, 42, 7, 8, 260]])
GOLDEN = json.loads((Path(__file__).parent / "quantised_blocks.json").read_text())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "egpo"


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_file_in_float32_gives_the_models_own_bits(tmp_path, architecture):
    folder = local_folder(str(write_model(tmp_path / "m.gguf", architecture)))
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    original = build_model(architecture)
    assert loaded.state_dict().keys() == original.state_dict().keys()
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in original.state_dict().items())
    assert torch.equal(logits(loaded), logits(original))


@pytest.mark.parametrize(("kind", "most"), [(1, 0.02), (8, 0.6)])
def test_a_quantised_file_is_close(tmp_path, kind, most):
    loaded = AutoModelForCausalLM.from_pretrained(local_folder(str(write_model(tmp_path / "m.gguf", kind=kind))))
    distance = float((logits(loaded) - logits(build_model("llama"))).abs().max())
    assert 0 < distance < most


@pytest.mark.parametrize("quantisation", QUANTISATIONS.values(), ids=lambda row: row.name)
def test_dequantised_blocks_are_those_of_the_package_gguf(quantisation):
    """quantised_blocks.json: random blocks, and the sha256 of what gguf 0.19.0 makes of them, in float32."""
    known = GOLDEN[quantisation.name]
    raw = np.frombuffer(bytes.fromhex(known["raw"]), np.uint8).reshape(-1, quantisation.block_bytes)
    assert hashlib.sha256(quantisation.dequantise(raw).astype("<f4").tobytes()).hexdigest() == known["sha256"]


def test_the_tokenizer_is_the_one_in_the_file(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(local_folder(str(write_model(tmp_path / "m.gguf"))))
    original = build_tokenizer()
    for text in ("the cat sat in 1234 mats", "  two  spaces\n\nand ünï<|im_end|>", "<|im_start|>user\n7*8"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == original.encode(text).ids
        assert tokenizer.decode(ids) == text


def test_the_templates_end_of_turn_stops_a_response(tmp_path):
    """The file's own end token, <|endoftext|> here, is often the base model's; both stop."""
    path = write_model(tmp_path / "m.gguf")
    policy = load_policy(Model(path=str(path), device="cpu"))
    assert policy.tokenizer.eos_token == "<|im_end|>"
    assert policy.stop_ids == {0, 2}


def test_it_is_converted_once_and_again_when_damaged(tmp_path, cache, recwarn):
    path = write_model(tmp_path / "m.gguf")
    folder = Path(local_folder(str(path)))
    first = (folder / "model.safetensors").stat().st_mtime_ns
    assert Path(local_folder(str(path))) == folder == Path(model_folder(str(tmp_path)))
    assert (folder / "model.safetensors").stat().st_mtime_ns == first
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.warns(match="damaged"):
        assert Path(local_folder(str(path))) == folder
    assert (folder / "model.safetensors").stat().st_size > 1000


def test_a_killed_conversion_keeps_the_shards_that_were_finished(tmp_path, cache):
    """The child ends itself after its second shard; what it left is no model, and is used by the next process."""
    path = write_model(tmp_path / "m.gguf")
    code = (
        "import os, sys\n"
        "from egpo.model_sources import conversion, local_folder\n"
        "conversion.SHARD_BYTES = 60_000\n"
        "tensor, seen = conversion.GgufModel.tensor, []\n"
        "def dying(self, name):\n"
        "    seen.append(name)\n"
        "    return os.kill(os.getpid(), 9) if len(seen) > 6 else tensor(self, name)\n"
        "conversion.GgufModel.tensor = dying if sys.argv[2] == 'dies' else tensor\n"
        "print(local_folder(sys.argv[1]))\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    assert subprocess.run([*words, "dies"], capture_output=True).returncode == -9
    (left,) = [place for place in (cache / "models").iterdir() if place.is_dir()]
    finished = {shard.name: shard.stat().st_mtime_ns for shard in left.glob("model-*")}
    assert left.name.startswith(".egpo-")
    assert finished
    done = subprocess.run([*words, "lives"], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    assert {name: (folder / name).stat().st_mtime_ns for name in finished} == finished
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(build_model("llama")))


def test_what_a_killed_conversion_left_half_written_is_not_in_the_model(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    folder = Path(local_folder(str(path)))
    names = sorted(entry.name for entry in folder.iterdir())
    left = folder.rename(folder.with_name(f".egpo-{folder.name}"))
    (left / "egpo_source.json").unlink()
    for name in (".egpo-config.json-0123abcd", ".tmpAbCdEf", ".egpo-model.safetensors"):
        (left / name).write_text("half")
    assert sorted(entry.name for entry in Path(local_folder(str(path))).iterdir()) == names
    assert set(conversion.origin_of(folder).sizes) == {*names} - {"egpo_source.json"}


def test_every_file_of_a_converted_model_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    """With an empty or zeroed tokenizer of the right size, the folder would be used for ever."""
    synced, replace = set(), os.replace

    def fsync(handle):
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

    def replaced(source, target):
        if Path(source).is_dir():
            assert {entry.name.removeprefix(".egpo-") for entry in Path(source).iterdir()} <= synced
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    local_folder(str(write_model(tmp_path / "m.gguf")))


def test_a_converted_model_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path, monkeypatch):
    """With too many files open, the folder was removed and the model evaluated under another name."""
    path = write_model(tmp_path / "m.gguf")
    folder, read_text = Path(local_folder(str(path))), Path.read_text

    def refuse(file, *rest, **more):
        if file.name == "egpo_source.json":
            raise OSError(errno.EMFILE, "Too many open files", str(file))
        return read_text(file, *rest, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        local_folder(str(path))
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("part", ["tokenizer.json", "model.safetensors"])
def test_a_full_disk_during_a_conversion_is_an_error_of_the_machine(tmp_path, monkeypatch, part):
    """safetensors and tokenizers do not raise OSError."""

    def full(*_, **__):
        raise Exception("I/O error: No space left on device (os error 28)")

    if part == "tokenizer.json":
        monkeypatch.setattr(conversion, "write_tokenizer", full)
    else:
        monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(EgpoError, match=r"cannot be written \(No space left on device\)"):
        local_folder(str(write_model(tmp_path / "m.gguf")))


def test_its_name_and_its_digest_are_known(tmp_path):
    path = write_model(tmp_path / "Tiny-1M.Q8_0.gguf", kind=8)
    assert find_model(str(path)).label == "Tiny-1M (dequantised from Q8_0)"
    facts = origin_facts(model_folder(str(path)))["model"]
    assert facts == f"Tiny-1M (dequantised from Q8_0); GGUF sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_tokenizer_files_beside_it_come_first(tmp_path):
    path = write_model(tmp_path / "m.gguf", without=("tokenizer.ggml.pre",))
    with pytest.raises(InputError, match="splits text by `None`"):
        local_folder(str(path))
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert AutoTokenizer.from_pretrained(local_folder(str(path))).encode("the") == build_tokenizer().encode("the").ids


BAD = {
    "of another architecture": ({"general.architecture": "gemma3"}, (), "architecture `gemma3` is not supported"),
    "of experts": ({"llama.expert_count": 8}, (), "`llama.expert_count` is 8"),
    "with a missing tokenizer": ({}, ("tokenizer.ggml",), "holds no tokenizer"),
    "with another tokenizer": ({"tokenizer.ggml.model": "t5"}, (), "of the kind `t5`"),
    "with another split": ({"tokenizer.ggml.pre": "tekken"}, (), "splits text by `tekken`"),
    "with a missing size": ({}, ("llama.feed_forward",), "`llama.feed_forward_length` is None"),
    "with a wrong size": ({"llama.feed_forward_length": 95}, (), "its metadata ask for"),
    "with more layers": ({"llama.block_count": 3}, (), "9 tensors are missing"),
    "with other positions": ({"llama.rope.scaling.type": "yarn"}, (), "rotary positions of the kind `yarn`"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_file_that_cannot_be_converted_is_named(tmp_path, which):
    metadata, without, message = BAD[which]
    path = write_model(tmp_path / "m.gguf", metadata=metadata, without=without)
    with pytest.raises(InputError, match=message) as caught:
        require_model_place(str(path), "model")
    assert len(str(caught.value).splitlines()) <= 2
    assert caught.value.faults[0].fix


def test_an_unknown_quantisation_is_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", tokenizer_metadata(), {"token_embd.weight": ((8, 32), 19, b"\0" * 64)})
    with pytest.raises(InputError, match=r"`token_embd.weight` has the quantisation IQ1_S"):
        local_folder(str(path))


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.001, 0.01, 0.3, 0.99])
def test_a_truncated_file_is_named_wherever_it_ends(tmp_path, share):
    path = write_model(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"truncated or damaged|not a GGUF|cannot be read"):
        local_folder(str(path))


def test_damaged_headers_are_never_more_than_an_input_error(tmp_path):
    """Bytes of the header replaced one at a time: the file is read, or refused, and no memory is reserved for it."""
    content = bytearray(write_model(tmp_path / "m.gguf").read_bytes())
    from egpo.model_sources.container import read_gguf

    refused = 0
    for place in range(4, 900, 3):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        (tmp_path / "x.gguf").write_bytes(changed)
        try:
            read_gguf(tmp_path / "x.gguf")
        except InputError:
            refused += 1
    assert refused > 50


def test_paths_that_are_no_model(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        require_model_place("nothing.gguf", "model")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InputError, match="holds 2 GGUF files"):
        require_model_place(str(tmp_path), "model")


def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    command = [sys.executable, "-m", "egpo", "eval", str(tmp_path / "m.gguf"), "--task", "countdown", "--n", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "truncated or damaged GGUF" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_was_converted_elsewhere_is_no_origin(tmp_path):
    assert origin_facts(str(tmp_path)) == {}
    assert conversion.origin_of(tmp_path) is None
