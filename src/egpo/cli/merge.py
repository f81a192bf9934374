"""`egpo merge`: write a checkpoint as one model folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from egpo.merges.merge import Merged

SOURCE_HELP = (
    "Run folder, its `checkpoints` folder, a `global_step_N` folder in that, or the `actor` folder of a step. The run "
    "may be of either engine."
)
STEP_HELP = "Step of the checkpoint to merge. Default: the latest."
DTYPE_HELP = "Data type of the written weights. auto: the type in the checkpoint's config.json."
BASE_HELP = "Base model of a checkpoint that holds only LoRA adapters. Default: the model in the run's config."
FORCE_HELP = "Replace a model that is already in the --out folder."


def merge(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR", help=SOURCE_HELP, show_default=False)],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="Model folder to write.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=0, help=STEP_HELP, show_default=False)] = None,
    dtype: Annotated[Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help=DTYPE_HELP)] = "auto",
    base: Annotated[str | None, typer.Option(metavar="MODEL", help=BASE_HELP, show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a checkpoint as a model folder that transformers and vLLM can load.

    Checkpoints of verl are stored in shards, which are merged; LoRA adapters are added to the weights. Checkpoints of
    the embedded engine (engine=local) hold whole models, which are copied. The new model is verified before it gets its
    final name: its weights and a forward pass must equal those of the checkpoint.

    Example: [cyan]egpo merge runs/first --step 40 --out models/first[/]
    """
    from egpo.cli.progress import staged_progress
    from egpo.cli.silence import now_doing
    from egpo.merges.places import find_checkpoint

    now_doing(f"reading {source}")
    find_checkpoint(source, step)  # a mistake is reported before torch is imported
    from egpo.merges.merge import merge as merged_by

    with staged_progress("merge") as watch:
        merged = merged_by(source, out, step=step, dtype=dtype, base=base, force=force, watch=watch)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(merged), indent=2))
        return
    for line in _summary(merged):
        typer.echo(line)


def _summary(merged: "Merged") -> Iterator[str]:
    step = "" if merged.step is None else f" of step {merged.step}"
    parts = f"{merged.world_size} shards" if merged.world_size > 1 else "one shard" if merged.world_size else "a model"
    lora = f", LoRA of rank {merged.lora.rank} folded in" if merged.lora else ""
    yield f"{merged.out}: checkpoint{step}, merged from {parts}{lora}"
    yield f"{merged.num_parameters:,} parameters in {merged.dtype}"
    yield (
        f"verified: {merged.num_tensors} tensors are bit-equal to the checkpoint's, "
        f"and the logits of a forward pass differ by {merged.logits_difference:g}"
    )
