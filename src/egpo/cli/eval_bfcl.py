"""`egpo eval bfcl`: the Berkeley function-calling leaderboard on any checkpoint or server."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from egpo.cli.eval import KEY_HELP, key_in

if TYPE_CHECKING:
    from egpo.evals.bfcl.evaluate_bfcl import BfclOutcome
    from egpo.evals.bfcl.passes import BfclSettings
    from egpo.evals.bfcl.targets import BfclTarget

TARGET_HELP = "A model folder, a run, a checkpoint in it, or the URL of a server."
CATEGORIES_HELP = "With commas between; live, non_live, single_turn, multi_turn and all are several."
FORMAT_HELP = "Who writes the prompt: BFCL's qwen_fc, qwen or llama, or the model's own template."
CASES_HELP = "The first so many of each category. Default: all."
NAME_HELP = "With a URL: the name under which the server knows the model."
TOKENIZER_HELP = "With a URL: the model's folder."
INSTRUCTION_HELP = "With --format template: a system turn to stand first, as in training."
TOKENS_HELP = "Longest answer. Default: BFCL's own, 4096, or what fits the context."
LENGTH_HELP = "Context of the server that is started. Default: the model's own."


def bfcl(
    targets: Annotated[list[str], typer.Argument(metavar="MODEL|URL", help=TARGET_HELP, show_default=False)],
    categories: Annotated[str, typer.Option(help=CATEGORIES_HELP)] = "multi_turn_base",
    runs: Annotated[int, typer.Option(min=1, help="Passes over all cases: their spread is chance of decoding.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Cases under way at once.")] = 16,
    cases: Annotated[int | None, typer.Option(min=1, help=CASES_HELP, show_default=False)] = None,
    prompt_format: Annotated[
        Literal["qwen_fc", "qwen", "llama", "template"], typer.Option("--format", help=FORMAT_HELP)
    ] = "qwen_fc",
    temperature: Annotated[float, typer.Option(min=0, help="BFCL's own is 0.001.")] = 0.001,
    max_tokens: Annotated[int | None, typer.Option(min=1, help=TOKENS_HELP, show_default=False)] = None,
    instruction: Annotated[str, typer.Option(help=INSTRUCTION_HELP)] = "",
    model: Annotated[str | None, typer.Option(help=NAME_HELP, show_default=False)] = None,
    tokenizer: Annotated[str | None, typer.Option(help=TOKENIZER_HELP, show_default=False)] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help=KEY_HELP, show_default=False)] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: latest, best, or a step.")] = "latest",
    max_model_len: Annotated[int | None, typer.Option(min=1, help=LENGTH_HELP, show_default=False)] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one answer of the server.")] = 3600,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Leave out what could not be generated.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Install nothing; the environment must be there.")] = False,
    out: Annotated[Path | None, typer.Option(help="Default: `evals` of the run, or `evals` here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """BFCL by its official evaluator: accuracy by category, with intervals over cases and the spread over passes.

    With two models or more the others are compared with the first, case by case. A model here is served by vLLM, or by
    transformers where that is not installed; a server is asked as it is. The prompt is compared with the training's.

    Example: [cyan]egpo eval bfcl runs/first --categories multi_turn_base --runs 5[/]
    """
    from functools import partial

    from egpo.evals.bfcl.categories import first_cases, parse_categories
    from egpo.evals.bfcl.environment import bfcl_python
    from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, evaluate_bfcl
    from egpo.evals.bfcl.passes import BfclSettings
    from egpo.evals.bfcl.targets import find_targets

    chosen = parse_categories(categories)
    found = find_targets(targets, model, tokenizer, checkpoint, key_in(api_key_env))
    say = partial(typer.echo, err=True)
    wanted = BfclOptions(runs, allow_failed, offline, max_model_len, out)
    ids = first_cases(bfcl_python(offline=offline, say=say), chosen, cases) if cases else {}
    outcomes = []
    for target in found:
        asked = BfclSettings(
            "",
            "",
            target.tokenizer,
            chosen,
            ids,
            prompt_format,
            temperature,
            threads,
            max_tokens=max_tokens,
            timeout_s=timeout,
        )
        outcomes.append(evaluate_bfcl(target, _as_trained(asked, target, instruction), wanted, say))
    _report(outcomes, as_json)


def _as_trained(asked: "BfclSettings", target: "BfclTarget", instruction: str) -> "BfclSettings":
    """The template's variables are those of the run."""
    from dataclasses import replace

    recipe = target.place.recipe if target.place else None
    template = recipe.model.template if recipe else {}
    return replace(asked, template=template, instruction=instruction)


def _report(outcomes: "list[BfclOutcome]", as_json: bool) -> None:
    from egpo.cli.eval_tables import as_json_value, print_bfcl, print_comparison
    from egpo.evals.paired import compare

    base = outcomes[0].evaluation
    comparisons = [compare(base, one.evaluation, base.exam.ks, 0) for one in outcomes[1:]]
    if as_json:
        typer.echo(json.dumps(as_json_value(outcomes, comparisons), indent=2, default=str))
        return
    for outcome in outcomes:
        print_bfcl(outcome)
    for comparison in comparisons:
        print_comparison(comparison)
