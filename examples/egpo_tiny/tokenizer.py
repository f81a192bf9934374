"""The tokenizer of egpo-tiny: byte-level BPE trained on the corpus, with one token per digit.

Decoding the tokens of any text gives the same text: there is no normalisation, and every byte is in the vocabulary.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1024
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, TURN_START, TURN_END)
"""Special tokens, which decoding may skip."""
TAGS = tuple(f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response", "answer") for slash in ("", "/"))
"""Tags of one token each. As in Qwen3 they are not special tokens, so that a reward sees them in decoded text."""
PIECES = r" ?[\p{L}_]+|\p{N}| ?[-+*/=()]| ?[^\s\p{L}\p{N}_+*/=()-]+|\n+ *|\s"
"""The pieces within which BPE merges: a word, a digit, an operator, a run of other signs, or a line end with the indent
of the next line."""
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(texts: Iterable[str], context: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer. The order of the ids is: special tokens, bytes, merges learned from `texts`, tags."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAGS),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_between_tags(texts), trainer)
    # A tag given to the trainer would become a special token, and be missing from the text that a reward reads.
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save the tokenizer with a class name that transformers before version 5 knows too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _between_tags(texts: Iterable[str]) -> Iterable[str]:
    """Yield the texts without their tags. Otherwise the trainer would spend merges on `</`, `think` and `>`."""
    split = pre_tokenizers.Split(Regex("|".join(map(re.escape, (*CONTROL, *TAGS)))), behavior="removed")
    for text in texts:
        yield from (piece for piece, _ in split.pre_tokenize_str(text))
