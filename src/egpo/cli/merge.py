"""`egpo merge`: a checkpoint becomes a model folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from egpo.merges.merge import Merged

SOURCE_HELP = "A run, its checkpoints, a global_step_N of them, or the actor in that: verl's, or ours."
STEP_HELP = "Which checkpoint of a run. Default: the latest."
DTYPE_HELP = "Of the weights written. auto: what the checkpoint's config says."
BASE_HELP = "The model that adapters saved alone belong to. A run of ours knows it."
FORCE_HELP = "Replace the model that --out holds."


def merge(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR", help=SOURCE_HELP, show_default=False)],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The model folder to write.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=0, help=STEP_HELP, show_default=False)] = None,
    dtype: Annotated[Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help=DTYPE_HELP)] = "auto",
    base: Annotated[str | None, typer.Option(metavar="MODEL", help=BASE_HELP, show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Put a checkpoint's shards together into a model that transformers and vLLM load.

    Shards of any number of ranks; LoRA is folded in. The model is read back, and its weights and a forward pass
    compared with the checkpoint's, before it gets its name. Our own checkpoints are whole: copied, and verified.

    Example: [cyan]egpo merge runs/first --step 40 --out models/first[/]
    """
    from egpo.merges.places import find_checkpoint

    find_checkpoint(source, step)  # a mistake is told before torch is there
    from egpo.merges.merge import merge as merged_by

    with _shown_progress() as watch:
        merged = merged_by(source, out, step=step, dtype=dtype, base=base, force=force, watch=watch)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(merged), indent=2))
        return
    for line in _told(merged):
        typer.echo(line)


def _told(merged: "Merged") -> Iterator[str]:
    step = "" if merged.step is None else f" of step {merged.step}"
    parts = f"{merged.world_size} shards" if merged.world_size > 1 else "one shard" if merged.world_size else "a model"
    lora = f", LoRA of rank {merged.lora.rank} folded in" if merged.lora else ""
    yield f"{merged.out}: the checkpoint{step}, out of {parts}{lora}"
    yield f"{merged.num_parameters:,} parameters in {merged.dtype}"
    yield (
        f"verified: read back, {merged.num_tensors} tensors are those of the checkpoint to the bit, "
        f"and the logits of a forward pass differ by {merged.logits_difference:g}"
    )


@contextmanager
def _shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, stage by stage; nothing where nobody looks."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("merge", total=None)
        yield lambda stage, done, total: progress.update(bar, description=stage, completed=done, total=total)
