"""`egpo convert`: convert tool-calling conversations to verl parquet files, and parquet files to OpenAI messages."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group

    from egpo.data import Conversion
    from egpo.data.tokens import TokenStatistics

HELP = """Convert tool-calling conversations to verl parquet files, and parquet files back to OpenAI messages.

Example: [cyan]egpo convert messages chats.jsonl --out data/chats[/]
"""

convert_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")

VERBS = {
    "hardgen": """Convert HardGen's raw multi-turn conversations, in which the keys of the turns are "0", "1", "2", …

    Example: [cyan]egpo convert hardgen raw.jsonl --out data/tools --max-samples 1000[/]
    """,
    "messages": """Convert OpenAI conversations: `messages` and `tools`, with the calls in `tool_calls` or as text.

    Example: [cyan]egpo convert messages chats.jsonl --out data/chats --test-size 0.1[/]
    """,
    "xlam": """Convert xlam-function-calling-60k: rows of `query`, and `tools` and `answers` as JSON strings.

    Example: [cyan]egpo convert xlam xlam_60k.json --out data/xlam --tokenizer models/qwen3[/]
    """,
}

Source = Annotated[
    Path, typer.Argument(metavar="SRC", help="File to convert: JSON, JSON lines or parquet, of any size.")
]
Out = Annotated[Path, typer.Option(help="Folder for the converted files.")]
Force = Annotated[bool, typer.Option("--force", help="Replace converted files that are already in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

SEED_HELP = "Seed of the random split, and of the shuffle before --max-samples."
SHUFFLE_HELP = "Draw the --max-samples rows at random. --no-shuffle: take the first rows of the file."
DUPLICATES_HELP = "Keep rows whose prompt has occurred before. Default: they are dropped."
INSTRUCTION_HELP = "Text of the system message before the tools. Default: that of each record."
WRAP_HELP = "Write each tool in OpenAI's form {type: function, function: ...}. Default: only the function."
TOKENIZER_HELP = (
    "Tokenizer folder. Tools are then written by its chat template, and token statistics are printed. "
    "Default: tools are written by Qwen3's chat template, without statistics."
)

TOOLS_TEXT = {"qwen3": "Qwen3's chat template", "tokenizer": "the tokenizer's own chat template"}


def _verb(kind: str) -> Callable[..., None]:
    def verb(
        source: Source,
        out: Out,
        max_samples: Annotated[
            int | None, typer.Option(help="Number of rows to convert, for training and testing together. Default: all.")
        ] = None,
        test_size: Annotated[float, typer.Option(help="Fraction of the rows for testing.")] = 0.05,
        seed: Annotated[int, typer.Option(help=SEED_HELP)] = 42,
        shuffle: Annotated[bool, typer.Option(help=SHUFFLE_HELP)] = True,
        keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help=DUPLICATES_HELP)] = False,
        instruction: Annotated[str | None, typer.Option(help=INSTRUCTION_HELP)] = None,
        wrap_tools: Annotated[bool, typer.Option("--wrap-tools", help=WRAP_HELP)] = False,
        tokenizer: Annotated[str | None, typer.Option(help=TOKENIZER_HELP)] = None,
        force: Force = False,
        json: Json = False,
    ) -> None:
        from egpo.cli.progress import counted
        from egpo.cli.silence import now_doing
        from egpo.data import SplitRule, ToolStyle, convert
        from egpo.data.tokens import load_tokenizer
        from egpo.data.tool_prompt import qwen3_system_text, template_system_text

        rule = SplitRule(test_size, seed, max_samples, shuffle, keep_duplicates)
        loaded = load_tokenizer(tokenizer) if tokenizer else None
        text = (template_system_text(loaded) if loaded else None) or qwen3_system_text
        style = ToolStyle(instruction, text, wrap_tools)
        watch = counted("records")
        now_doing(f"converting {source}")
        _print(convert(kind, source, out, rule, style=style, tokenizer=loaded, force=force, watch=watch), as_json=json)

    return verb


for _name, _doc in VERBS.items():
    convert_app.command(_name, help=_doc)(_verb(_name))


@convert_app.command("parquet")
def parquet(source: Source, out: Out, force: Force = False, json: Json = False) -> None:
    """Convert verl parquet (a file or a folder) to OpenAI messages, for supervised fine-tuning on the same data.

    The assistant's message is `extra_info.answer`, or if that is missing, the ground truth in the form that the task's
    reward accepts.

    Example: [cyan]egpo convert parquet data/tools --out data/tools-sft[/]
    """
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    from egpo.cli.silence import now_doing
    from egpo.cli.tables import dropped_table, table
    from egpo.data import export_messages
    from egpo.tasks.gold import gold_answer

    now_doing(f"converting {source}")
    done = export_messages(source, out, force=force, answer_of=gold_answer)
    if json:
        typer.echo(dumps(asdict(done), indent=2))
        return
    console = Console()
    console.print(table(done.out, ("file", "rows"), ((name, f"{rows:,}") for name, rows in done.rows.items())))
    if done.dropped:
        console.print(dropped_table(done.dropped))


def _print(done: "Conversion", *, as_json: bool) -> None:
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    from egpo.cli.tables import dropped_table, table

    if as_json:
        typer.echo(dumps(asdict(done), indent=2))
        return
    console = Console()
    rows = [(split, f"{count:,}") for split, count in done.rows.items()]
    console.print(table(f"{done.out} ({done.read:,} records read)", ("split", "rows"), rows))
    console.print(f"Tools are written in the format of {TOOLS_TEXT[done.tools_text]}.")
    if done.without_call:
        console.print(f"In {done.without_call:,} of the records, the right answer is text without a tool call.")
    if done.dropped:
        console.print(dropped_table(done.dropped))
    for split, tokens in done.tokens.items():
        console.print(_token_table(split, tokens))


def _token_table(split: str, tokens: "TokenStatistics") -> "Group":
    from egpo.cli.tables import table

    rows = [
        (part, f"{n.mean:,.1f}", f"{n.median:,.0f}", f"{n.p95:,.0f}", f"{n.max:,}", f"{n.total:,}")
        for part, n in (("prompt", tokens.prompt), ("answer", tokens.answer))
    ]
    return table(f"tokens per row, {split}", ("part", "mean", "median", "p95", "max", "total"), rows)
