"""`egpo sft`: supervised fine-tuning on conversations, from a recipe."""

from typing import TYPE_CHECKING, Annotated

import typer

from egpo.cli.config import Recipe
from egpo.cli.train import AsJson, Resume, ResumeFrom

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from egpo.local.sft.preview import Passage, Preview

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print statistics of the examples, and the first example with the tokens marked that count in the loss. "
        "Do not train.",
    ),
]


def sft(
    recipe: Recipe = None,
    resume: Resume = False,
    resume_from: ResumeFrom = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on the assistant's messages of conversations, usually before reinforcement learning.

    Metrics and checkpoints are written to a folder named after the recipe's settings `runs` and `name`. To train the
    result with `egpo train`, set model.path to the folder `actor/huggingface` of a checkpoint. An interrupted run
    continues with --resume.

    Example: [cyan]egpo sft cold_start data.path=chats.jsonl name=cold-start[/]
    """
    from egpo.cli.config import recipe_words
    from egpo.config import SftConfig, load_config
    from egpo.errors import InputError

    config = load_config(*recipe_words(recipe, "egpo sft cold_start data.path=chats.jsonl"), SftConfig)
    if not dry_run:
        from egpo.cli.progress import steps_as_json
        from egpo.local.sft.session import sft as train

        if as_json:
            with steps_as_json(config.name) as on_step:
                train(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=True)
        else:
            train(config, resume=resume, resume_from=resume_from)
        return
    if as_json:
        raise InputError("a dry run has no steps", where="--json", fix="leave out --dry-run or --json")
    from rich.console import Console

    from egpo.local.sft.preview import passages, preview
    from egpo.local.sft.session import open_quietly

    run = open_quietly(config)
    console = Console(highlight=False)
    console.print(_table(preview(run), config.data.path))
    console.print("The first example. Learned tokens are underlined and between ⟦ and ⟧:\n")
    console.print(_marked(passages(run.data.train, 0, run.policy.tokenizer)), soft_wrap=True)


def _table(found: "Preview", path: str) -> "Group":
    from egpo.cli.tables import table
    from egpo.local.sft.examples import REASONS

    shortest, median, longest = found.lengths
    rows = [
        ("rows read", f"{found.num_rows:,}"),
        *((f"left out: {REASONS[reason]}", f"{count:,}") for reason, count in found.dropped.items()),
        ("examples to train on", f"{found.num_examples:,}"),
        ("examples to evaluate on", f"{found.num_evaluation:,}"),
        ("tokens", f"{found.num_tokens:,}"),
        ("learned tokens", f"{found.learned_frac:.1%}"),
        ("tokens per example: minimum, median, maximum", f"{shortest:,}, {median:,}, {longest:,}"),
        ("optimizer steps", f"{found.num_steps:,}"),
        ("packing: used fraction of the forward passes", f"{found.packing_frac:.1%}"),
    ]
    return table(path, ("", ""), rows)


def _marked(found: "list[Passage]") -> "Text":
    """Return the text of an example. The parts that count in the loss are underlined, green, and between ⟦ and ⟧.

    The brackets are for terminals without colour. Control characters are escaped.
    """
    from rich.text import Text

    parts = [(f"⟦{_shown(one.text)}⟧", "underline green") if one.learned else (_shown(one.text), "") for one in found]
    return Text.assemble(*parts)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
