"""Small tokenizers of every kind: the tags are one token, several, glued to their neighbours, or single characters."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "<think>\nlet me see: 3 + 4 = 7.\n</think>\n\nThe answer is 7.",
    "<thinking>a > b, so </thinking> <tool_call>{}</tool_call>",
    "so x>1 and y<2.</think>\n\n<answer>x</answer>\n",
    "◁think▷ écoute ◁/think▷ voilà",
] * 8


def _wrap(tokenizer):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def _byte_level(vocab_size, added=(), use_regex=True, special=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken(tag, normalized=False) for tag in added])
    return _wrap(tokenizer)


def _sentencepiece():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False, max_token_length=6)
    tokenizer.train_from_iterator([text.replace("é", "").replace("◁", "") for text in CORPUS], trainer)
    return _wrap(tokenizer)


def _characters():
    symbols = sorted(set("".join(CORPUS)) | set("0123456789"))
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate([*symbols, "<unk>"])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrap(tokenizer)


BUILDERS = {
    "one token": lambda: _byte_level(300, added=("<think>", "</think>", "◁think▷", "◁/think▷")),
    "one special token": lambda: _byte_level(300, added=("<think>", "</think>"), special=True),
    "several tokens": lambda: _byte_level(330),
    "glued tokens": lambda: _byte_level(420, use_regex=False),
    "sentencepiece": _sentencepiece,
    "characters": _characters,
}


@cache
def tokenizer_named(kind):
    return BUILDERS[kind]()
