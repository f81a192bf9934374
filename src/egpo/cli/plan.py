"""`egpo plan`: estimate the memory and time of a training step on a GPU."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from egpo.cli.config import Recipe

if TYPE_CHECKING:
    from egpo.plans.step_plan import StepPlan


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate the memory (GiB) and time (seconds) of one training step on one GPU.

    The memory of each part and the time of each stage are printed. The exit code is 1 if the step does not fit into
    the GPU's memory.

    Example: [cyan]egpo plan countdown_tiny rollout.n=16 --card a100[/]
    """
    from egpo.cli.config import recipe_words
    from egpo.cli.silence import now_doing
    from egpo.config import load_config
    from egpo.plans.step_plan import plan_recipe

    config = load_config(*recipe_words(recipe, "egpo plan countdown_tiny"))
    now_doing("reading the model's settings")
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
