"""`egpo convert`: convert conversations between formats."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group

    from egpo.data import Conversion
    from egpo.data.tokens import TokenStatistics

HELP = """Convert tool conversations to verl parquet, and parquet back to messages.

Example: [cyan]egpo convert messages chats.jsonl --out data/chats[/]
"""

convert_app = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")

VERBS = {
    "hardgen": """Convert raw multi-turn conversations, whose turns have the keys "0", "1", "2", …

    Example: [cyan]egpo convert hardgen raw.jsonl --out data/tools --max-samples 1000[/]
    """,
    "messages": """Convert OpenAI conversations: `messages`, with `tools` and `tool_calls` or with the calls as text.

    Example: [cyan]egpo convert messages chats.jsonl --out data/chats --test-size 0.1[/]
    """,
    "xlam": """Convert rows of xlam-function-calling-60k: `query`, and `tools` and `answers` as JSON strings.

    Example: [cyan]egpo convert xlam xlam_60k.json --out data/xlam --tokenizer models/qwen3[/]
    """,
}

Source = Annotated[
    Path, typer.Argument(metavar="SRC", help="File to convert: JSON, JSON lines or parquet, of any size.")
]
Out = Annotated[Path, typer.Option(help="Folder for the converted files.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the files in the folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

SEED_HELP = "Seed of the split, and of the shuffle before --max-samples."
SHUFFLE_HELP = "Draw --max-samples at random from the whole file, instead of taking the first ones."
DUPLICATES_HELP = "Keep rows whose prompt occurs a second time. Default: they are dropped."
INSTRUCTION_HELP = "System instruction. Default: the record's own."
WRAP_HELP = "Write tools in OpenAI's wrapped form ({type: function, function: ...})."
TOKENIZER_HELP = (
    "Folder of a tokenizer: adds token statistics, and its chat template writes the tools. Default: Qwen3's template."
)

TOOLS_TEXT = {"qwen3": "Qwen3's chat template", "tokenizer": "the tokenizer's own chat template"}


def _verb(kind: str) -> Callable[..., None]:
    def verb(
        source: Source,
        out: Out,
        max_samples: Annotated[
            int | None, typer.Option(help="Number of rows to take before the split. Default: all.")
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
        from egpo.data import SplitRule, ToolStyle, convert
        from egpo.data.tokens import load_tokenizer
        from egpo.data.tool_prompt import qwen3_system_text, template_system_text

        rule = SplitRule(test_size, seed, max_samples, shuffle, keep_duplicates)
        loaded = load_tokenizer(tokenizer) if tokenizer else None
        text = (template_system_text(loaded) if loaded else None) or qwen3_system_text
        style = ToolStyle(instruction, text, wrap_tools)
        watch = counted("records")
        _print(convert(kind, source, out, rule, style=style, tokenizer=loaded, force=force, watch=watch), as_json=json)

    return verb


for _name, _doc in VERBS.items():
    convert_app.command(_name, help=_doc)(_verb(_name))


@convert_app.command("parquet")
def parquet(source: Source, out: Out, force: Force = False, json: Json = False) -> None:
    """Convert verl parquet (a file or a folder) to OpenAI messages, for supervised training on the same split.

    The assistant's message is `extra_info.answer`, or the ground truth in the form that the reward accepts.

    Example: [cyan]egpo convert parquet data/tools --out data/tools-sft[/]
    """
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    from egpo.cli.tables import dropped_table, table
    from egpo.data import export_messages
    from egpo.tasks.gold import gold_answer

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
    console.print(f"Tools are written as by {TOOLS_TEXT[done.tools_text]}.")
    if done.without_call:
        console.print(f"{done.without_call:,} of the records have no tool call as their right answer.")
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
