"""Generates everything that the supervised training of egpo-tiny needs:

    python -m examples.egpo_tiny.make --out data/egpo-tiny

writes `corpus.jsonl`, `held_out.jsonl` (conversations for the evaluation loss) and `model/`, a Qwen3 config with its
tokenizer and without weights. Then `egpo sft examples/egpo_tiny/sft.yaml` trains it. The same seed gives the same
bytes.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from examples.egpo_tiny.corpus import draw_example, write_corpus
from examples.egpo_tiny.lessons import LESSONS
from examples.egpo_tiny.model import CONTEXT, write_model_folder
from examples.egpo_tiny.tokenizer import CHAT_TEMPLATE, train_tokenizer

CONVERSATIONS, HELD_OUT = 400_000, 2_000
TEXTS_PER_LESSON = 2_000
"""Number of texts per lesson for training the tokenizer. It is equal for all lessons, so that words of the rarer ones
get tokens too."""


def make(folder: Path, conversations: int, held_out: int, seed: int) -> None:
    write_corpus(folder / "corpus.jsonl", conversations, seed)
    write_corpus(folder / "held_out.jsonl", held_out, seed + 1)
    tokenizer = train_tokenizer(rendered_texts(TEXTS_PER_LESSON, seed), CONTEXT)
    write_model_folder(folder / "model", tokenizer)


def rendered_texts(per_lesson: int, seed: int) -> Iterator[str]:
    """Yield conversations rendered by the chat template. The tokenizer does not exist yet, so `egpo.chat_templates`,
    which needs one, cannot be used."""
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    rng = random.Random(f"egpo-tiny tokenizer:{seed}")
    for lesson in LESSONS:
        messages = [draw_example(lesson, rng).messages for _ in range(per_lesson)]
        yield from render_jinja_template(messages, chat_template=template)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    make(given.out, given.conversations, given.held_out, given.seed)


if __name__ == "__main__":
    main()
