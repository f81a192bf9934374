"""Generates everything that the supervised training of egpo-tiny needs:

    python -m examples.egpo_tiny.make --out data/egpo-tiny

writes `corpus.jsonl`, `held_out.jsonl` (conversations for the evaluation loss) and `model/`, a Qwen3 config with its
tokenizer and without weights. Then `egpo sft examples/egpo_tiny/sft.yaml` trains it. `--stage second` writes the corpus
of the second stage (see `second_stage.py`). The same seed gives the same bytes.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from examples.egpo_tiny.corpus import draw_example, write_corpus
from examples.egpo_tiny.lessons import FIRST, STAGES
from examples.egpo_tiny.model import CONTEXT, write_model_folder
from examples.egpo_tiny.tokenizer import CHAT_TEMPLATE, train_tokenizer

CONVERSATIONS = {"first": 400_000, "second": 300_000}
SEEDS = {"first": 0, "second": 10}
"""Number of conversations and seed of each stage."""
HELD_OUT = 2_000
TEXTS_PER_LESSON = 2_000
"""Number of texts per lesson for training the tokenizer. It is equal for all lessons, so that words of the rarer ones
get tokens too."""


def make(folder: Path, conversations: int, held_out: int, seed: int, stage: str = "first") -> None:
    write_corpus(folder / "corpus.jsonl", conversations, seed, stage)
    write_corpus(folder / "held_out.jsonl", held_out, seed + 1, stage)
    tokenizer = train_tokenizer(rendered_texts(TEXTS_PER_LESSON, seed), CONTEXT)
    write_model_folder(folder / "model", tokenizer)


def rendered_texts(per_lesson: int, seed: int) -> Iterator[str]:
    """Yield conversations rendered by the chat template. The tokenizer does not exist yet, so `egpo.chat_templates`,
    which needs one, cannot be used."""
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    rng = random.Random(f"egpo-tiny tokenizer:{seed}")
    for lesson in FIRST:  # the words of the second stage have two to four tokens each
        messages = [draw_example(lesson, rng).messages for _ in range(per_lesson)]
        yield from render_jinja_template(messages, chat_template=template)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--stage", choices=list(STAGES), default="first", help="default: first")
    parser.add_argument("--conversations", type=int, help="default: that of the stage")
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    parser.add_argument("--seed", type=int, help="default: that of the stage")
    given = parser.parse_args()
    conversations = CONVERSATIONS[given.stage] if given.conversations is None else given.conversations
    seed = SEEDS[given.stage] if given.seed is None else given.seed
    make(given.out, conversations, given.held_out, seed, given.stage)


if __name__ == "__main__":
    main()
