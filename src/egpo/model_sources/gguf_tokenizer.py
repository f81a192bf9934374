"""The tokenizer of a GGUF file, as the files of a model folder; and the tokens that end a response.

Byte-level BPE is covered, with the splitting rules of PRE_TOKENIZERS. For any other tokenizer, put tokenizer.json and
tokenizer_config.json beside the GGUF file in a folder of its own: they are then used instead.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from egpo.chat_templates import render
from egpo.errors import InputError
from egpo.model_sources.container import GgufFile

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_CONTROL, _USER_DEFINED = 3, 4
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _single_digits() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "smollm": _single_digits,
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
    "llama-bpe": lambda: _split(_LLAMA3),
}
"""How text is split before BPE, by `tokenizer.ggml.pre`."""


def require_tokenizer(file: GgufFile) -> None:
    """Raise InputError if the file holds no tokenizer that can be converted, and none lies beside it."""
    if (file.path.parent / "tokenizer.json").is_file():
        return
    kind, split = file.metadata.get("tokenizer.ggml.model"), file.metadata.get("tokenizer.ggml.pre")
    where, fix = f"model {file.path}", "put tokenizer.json and tokenizer_config.json of the model beside the file"
    tokens, merges = (file.metadata.get(f"tokenizer.ggml.{part}") for part in ("tokens", "merges"))
    if kind is None or not tokens:
        raise InputError("the file holds no tokenizer", where=where, fix=fix)
    if kind != "gpt2":
        raise InputError(f"its tokenizer is of the kind `{kind}`; `gpt2` is supported", where=where, fix=fix)
    if split not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise InputError(f"its tokenizer splits text by `{split}`; supported: {known}", where=where, fix=fix)
    if not merges or len(set(tokens)) != len(tokens):
        raise InputError("its tokenizer has no merges, or a token twice", where=where, fix=fix)


def write_tokenizer(file: GgufFile, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into a model folder, after
    `require_tokenizer`.

    Files of these names beside the GGUF file are used instead of what the GGUF file holds."""
    beside = [name for name in TOKENIZER_FILES if (file.path.parent / name).is_file()]
    if "tokenizer.json" not in beside:
        _tokenizer(file).save(str(folder / "tokenizer.json"))
    if template := file.metadata.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_config(file), indent=2) + "\n", encoding="utf-8")
    for name in beside:
        (folder / name).write_bytes((file.path.parent / name).read_bytes())


def stop_tokens(file: GgufFile, folder: Path) -> list[int]:
    """Return the ids of the tokens that end a response, the end of a turn first, and make that the `eos_token`.

    These are the token that follows an assistant's message in the chat template, and what the file calls the ends of a
    text, a turn and a message. The template counts most: metadata are often those of the base model."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        what = f"its tokenizer cannot be loaded ({str(error).splitlines()[0]:.120})"
        raise InputError(what, where=f"model {file.path}", fix="put a tokenizer.json beside the file") from error
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(id for id in (_turn_end(tokenizer), *named) if id is not None))
    if not ids:
        what, fix = "no end token in its metadata or its chat template", "put a tokenizer_config.json beside the file"
        raise InputError(what, where=f"model {file.path}", fix=fix)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"eos_token": tokenizer.convert_ids_to_tokens(ids[0])}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return ids


def _turn_end(tokenizer: Any) -> int | None:
    """Return the special token that follows an assistant's message in the chat template, if one does."""
    if not tokenizer.chat_template:
        return None
    answer = "forty-two"
    messages = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": answer}]
    try:
        text = render(tokenizer, messages, prompt=False)
    except (TemplateError, TypeError, ValueError, LookupError):
        return None
    rest = tokenizer.encode(text.rpartition(answer)[2].lstrip(), add_special_tokens=False)
    return rest[0] if rest and rest[0] in tokenizer.all_special_ids + list(tokenizer.added_tokens_decoder) else None


def _tokenizer(file: GgufFile) -> Tokenizer:
    tokens, merges = (file.metadata[f"tokenizer.ggml.{part}"] for part in ("tokens", "merges"))
    return _built(file, str(file.metadata["tokenizer.ggml.pre"]), tokens, merges)


def _built(file: GgufFile, split: str, tokens: list[str], merges: list[str]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=split == "llama-bpe"))
    if split in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer, tokenizer.decoder = PRE_TOKENIZERS[split](), decoders.ByteLevel()
    kinds = file.metadata.get("tokenizer.ggml.token_type") or []
    for wanted in (_CONTROL, _USER_DEFINED):
        chosen = [token for token, kind in zip(tokens, kinds, strict=False) if kind == wanted]
        is_special = wanted == _CONTROL
        tokenizer.add_tokens([AddedToken(token, special=is_special, normalized=False) for token in chosen])
    first = file.metadata.get("tokenizer.ggml.bos_token_id")
    if file.metadata.get("tokenizer.ggml.add_bos_token") and first is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[first]} $A", pair=f"{tokens[first]} $A $B", special_tokens=[(tokens[first], first)]
        )
    return tokenizer


def _config(file: GgufFile) -> dict[str, Any]:
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    ids = {kind: file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding", "unknown")}
    named = {
        kind: tokens[id] if isinstance(id, int) and 0 <= id < len(tokens) else None
        for kind, id in zip(("bos_token", "eos_token", "pad_token", "unk_token"), ids.values(), strict=True)
    }
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{kind: token for kind, token in named.items() if token is not None},
    }
