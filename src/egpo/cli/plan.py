"""`egpo plan`: estimate the memory and time of a training step on a GPU."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from egpo.cli.config import Recipe

if TYPE_CHECKING:
    from rich.table import Table

    from egpo.config import Config
    from egpo.plans.cluster_plan import ClusterPlan
    from egpo.plans.links import Assumptions
    from egpo.plans.step_plan import StepPlan

ASSUME_HELP = (
    "With engine=verl: set an assumption of the plan, such as network_bytes_per_s=25e9; may be given several times. "
    "All are printed below the plan."
)


def plan(
    recipe: Recipe = None,
    card: Annotated[str, typer.Option(help="Type of GPU: h200, h100, a100 or rtx4090.")] = "h200",
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected prompt length, in tokens. Default: the recipe's limit.")
    ] = None,
    response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected mean response length, in tokens. Default: the recipe's limit.")
    ] = None,
    lengths: Annotated[
        bool, typer.Option("--lengths", help="Also print how long responses can be on each type of GPU.")
    ] = False,
    assume: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help=ASSUME_HELP, show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate the memory (GiB) and time (seconds) of one training step, on one GPU or, with engine=verl, on many.

    The memory of each part and the time of each stage are printed. With engine=verl, each way to split the GPUs for
    sampling is planned, and the fastest that fits is chosen; so is each number of GPUs that can share the weights in
    training (fsdp_size), beside that of the recipe. The exit code is 1 if the step does not fit into the memory of a
    GPU.

    Example: [cyan]egpo plan countdown_tiny engine=verl verl.gpus=8 --card a100[/]
    """
    from egpo.cli.config import recipe_words
    from egpo.cli.silence import now_doing
    from egpo.config import load_config
    from egpo.errors import InputError
    from egpo.plans.step_plan import plan_recipe

    config = load_config(*recipe_words(recipe, "egpo plan countdown_tiny"))
    now_doing("reading the model's settings")
    if config.engine == "verl":
        if lengths:
            raise InputError("`--lengths` is for one GPU", where="egpo plan", fix="leave it out, or set engine=local")
        _plan_cluster(config, card, prompt_tokens, response_tokens, _numbers(assume or ()), as_json)
        return
    if assume:
        raise InputError("assumptions are those of a cluster", where="--assume", fix="set engine=verl")
    found = plan_recipe(config, card, prompt_tokens, response_tokens)
    now_doing("computing the longest responses")
    longest = _longest_by_group(found) if lengths else {}
    if as_json:
        more = {"longest_responses": longest} if lengths else {}
        typer.echo(json.dumps({**asdict(found), "fits": found.fits, **more}, indent=2))
    else:
        _show(found)
        if lengths:
            _show_lengths(found, longest)
    if not found.fits:
        raise typer.Exit(1)


def _numbers(words: Sequence[str]) -> dict[str, float]:
    from egpo.errors import InputError

    found = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            found[name.strip()] = float(text)
        except ValueError:
            fix = "write NAME=NUMBER, as in overlap=0.5"
            raise InputError(f"`{word}` sets no number", where="--assume", fix=fix) from None
    return found


def _plan_cluster(
    config: "Config",
    card: str,
    prompt_tokens: int | None,
    response_tokens: int | None,
    given: dict[str, float],
    as_json: bool,
) -> None:
    from egpo.plans.cluster_plan import assumptions_of, best_plan, plan_cluster, plan_fsdp_sizes

    assumed = assumptions_of(config, card, given)
    plans = plan_cluster(config, card, prompt_tokens, response_tokens, assumed)
    best = best_plan(plans)
    sizes = plan_fsdp_sizes(config, card, prompt_tokens, response_tokens, assumed)
    if as_json:
        report = {
            "best": asdict(best.split),
            "plans": [_numbers_of(plan) for plan in plans],
            "best_fsdp_size": best_plan(sizes).fsdp_size,
            "fsdp_sizes": [_numbers_of(plan) for plan in sizes],
            "assumptions": asdict(assumed),
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        _show_cluster(config, plans, sizes, assumed)
    if not best.fits:
        raise typer.Exit(1)


def _numbers_of(plan: "ClusterPlan") -> dict[str, object]:
    return {**asdict(plan), "step_s": plan.seconds.step_s, "peak_bytes": plan.peak_bytes, "fits": plan.fits}


def _show_cluster(
    config: "Config", plans: "list[ClusterPlan]", sizes: "list[ClusterPlan]", assumed: "Assumptions"
) -> None:
    from rich.console import Console
    from rich.table import Table

    from egpo.plans.cluster_plan import best_plan

    console, best, rollout = Console(), best_plan(plans), config.rollout
    console.print(
        f"{best.split.gpus} x {best.card.name}, with verl: {rollout.prompts} prompts, {rollout.n} responses of up to "
        f"{rollout.max_response_tokens} tokens to each"
    )
    table = Table("GiB on each GPU", "sampling", "update", box=None, pad_edge=False)
    for name, value in asdict(best.sampling).items():
        table.add_row(name, f"{value / 2**30:.2f}", f"{getattr(best.update, name) / 2**30:.2f}")
    table.add_row("peak", f"{best.sampling.total / 2**30:.2f}", f"{best.update.total / 2**30:.2f}", style="bold")
    console.print(table)
    stages = " + ".join(f"{name.removesuffix('_s')} {value:.2f}" for name, value in asdict(best.seconds).items())
    console.print(f"{stages} = {best.seconds.step_s:.2f} s per step; the operations alone take {best.bound_s:.2f} s")
    others = Table("tensor x data parallel", "peak GiB", "s per step", "rows at once", "fits", box=None, pad_edge=False)
    for plan in plans:
        shape = f"{plan.split.tensor_parallel} x {plan.split.data_parallel}{' (best)' if plan is best else ''}"
        fits = "yes" if plan.fits else "[red]no[/]"
        others.add_row(shape, f"{plan.peak_bytes / 2**30:.2f}", f"{plan.seconds.step_s:.2f}", f"{plan.at_once}", fits)
    console.print(others)
    if len(sizes) > 1:
        console.print(_table_of_sizes(sizes, best))
    advice = "use more GPUs, a larger fsdp_size, model.gradient_checkpointing or model.lora"
    verdict = "fits" if best.fits else f"[bold red]does not fit[/]: {advice}"
    console.print(f"The step {verdict}. vLLM needs {best.memory_share:.2f} of the memory (gpu_memory_utilization).")
    shown = ", ".join(f"{name}={value:g}" for name, value in asdict(assumed).items())
    console.print(f"Computed, not measured. Assumptions (--assume sets them): {shown}")


def _table_of_sizes(sizes: "list[ClusterPlan]", chosen: "ClusterPlan") -> "Table":
    """Return the best plan for each `fsdp_size`, with marks at the fastest that fits and at that of the recipe."""
    from rich.table import Table

    from egpo.plans.cluster_plan import best_plan
    from egpo.plans.splits import FSDP_SIZE

    table = Table("fsdp_size", "tensor x data parallel", "peak GiB", "s per step", "fits", box=None, pad_edge=False)
    table.caption, table.caption_justify = (
        f"fsdp_size: GPUs that share the weights in training (verl.{FSDP_SIZE})",
        "left",
    )
    best = best_plan(sizes)
    for plan in sizes:
        marks = [
            word for word, marked in (("best", best), ("this recipe", chosen)) if plan.fsdp_size == marked.fsdp_size
        ]
        size = f"{plan.fsdp_size} ({', '.join(marks)})" if marks else f"{plan.fsdp_size}"
        fits = "yes" if plan.fits else "[red]no[/]"
        split = f"{plan.split.tensor_parallel} x {plan.split.data_parallel}"
        table.add_row(size, split, f"{plan.peak_bytes / 2**30:.2f}", f"{plan.seconds.step_s:.2f}", fits)
    return table


def _show(plan: "StepPlan") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("GiB", justify="right")
    for name, value in asdict(plan.memory.parts).items():
        table.add_row(name, f"{value / 2**30:.1f}")
    table.add_row("peak", f"{plan.memory.parts.total / 2**30:.1f}", style="bold")
    console, job = Console(), plan.job
    console.print(
        f"{plan.card.name}: {plan.shape.weights / 1e6:,.0f} million weights, {job.prompts} prompts of "
        f"{job.prompt_tokens} tokens, {job.group} responses of {job.response_tokens} to each"
    )
    console.print(table)
    verdict = "fits" if plan.fits else "[bold red]does not fit[/]: try model.gradient_checkpointing or model.lora"
    console.print(
        f"The step {verdict}. {plan.memory.at_once} rows are sampled at a time, and a pass of the update has "
        f"{plan.memory.pass_tokens} tokens."
    )
    digits = 1 if plan.time.step_s >= 10 else 2
    stages = f"sample {plan.time.sample_s:.{digits}f} s + update {plan.time.update_s:.{digits}f} s"
    console.print(f"{stages} = {plan.time.step_s:.{digits}f} s per step")


def _longest_by_group(plan: "StepPlan") -> dict[int, dict[str, int]]:
    """Return the longest response that fits, in tokens, for each group size and type of GPU; 0 if none fits."""
    from dataclasses import replace

    from egpo.plans.shapes import CARDS
    from egpo.plans.step_plan import longest_that_fits

    jobs = {group: replace(plan.job, group=group, at_once=plan.job.prompts * group) for group in (4, 8, 16, 32)}
    return {
        group: {name: longest_that_fits(plan.shape, job, card) for name, card in CARDS.items()}
        for group, job in jobs.items()
    }


def _show_lengths(plan: "StepPlan", longest: dict[int, dict[str, int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from egpo.plans.shapes import CARDS

    table = Table("longest response, tokens", *(card.name for card in CARDS.values()))
    for group, by_card in longest.items():
        shown = [f"{length:,}" if length else "-" for length in by_card.values()]
        table.add_row(f"{plan.job.prompts} prompts x {group}", *shown)
    Console().print(table)
