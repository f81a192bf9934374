"""`egpo eval bfcl`: evaluate checkpoints or served models on the Berkeley Function-Calling Leaderboard (BFCL)."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from egpo.cli.eval import KEY_HELP, key_in
from egpo.cli.serve import ENGINE_OPTION_HELP

if TYPE_CHECKING:
    from egpo.evals.bfcl.evaluate_bfcl import BfclOutcome
    from egpo.evals.bfcl.passes import BfclSettings
    from egpo.evals.bfcl.targets import BfclTarget
    from egpo.serving.engine_options import EngineOptions

TARGET_HELP = "Model folder, run folder, checkpoint folder, or URL of an OpenAI-compatible server."
CATEGORIES_HELP = (
    "BFCL categories, separated by commas, or collections of them: live, non_live, single_turn, multi_turn, all."
)
FORMAT_HELP = "Prompt format: BFCL's own format qwen_fc, qwen or llama; or template: the model's own chat template."
CASES_HELP = "Evaluate only the first N cases of each category. Default: all."
NAME_HELP = "With a URL: name of the model on the server."
TOKENIZER_HELP = "With a URL: folder of the model's tokenizer."
INSTRUCTION_HELP = "With --format template: text at the start of the system message, as in training. Default: none."
TOKENS_HELP = "Longest answer, in tokens. Default: 4096, as in BFCL, or fewer if the context is shorter."
LENGTH_HELP = "With a model: context length, in tokens, of the server that is started. Default: the model's."


def bfcl(
    targets: Annotated[list[str], typer.Argument(metavar="MODEL|URL", help=TARGET_HELP, show_default=False)],
    categories: Annotated[str, typer.Option(help=CATEGORIES_HELP)] = "multi_turn_base",
    runs: Annotated[
        int, typer.Option(min=1, help="Number of passes over all cases, to measure the randomness of decoding.")
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Number of cases that are run at a time.")] = 16,
    cases: Annotated[int | None, typer.Option(min=1, help=CASES_HELP, show_default=False)] = None,
    prompt_format: Annotated[
        Literal["qwen_fc", "qwen", "llama", "template"], typer.Option("--format", help=FORMAT_HELP)
    ] = "qwen_fc",
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature. The default is BFCL's own.")] = 0.001,
    max_tokens: Annotated[int | None, typer.Option(min=1, help=TOKENS_HELP, show_default=False)] = None,
    instruction: Annotated[str, typer.Option(help=INSTRUCTION_HELP)] = "",
    model: Annotated[str | None, typer.Option(help=NAME_HELP, show_default=False)] = None,
    tokenizer: Annotated[str | None, typer.Option(help=TOKENIZER_HELP, show_default=False)] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help=KEY_HELP, show_default=False)] = None,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of a run: latest, best, or a step number.")] = "latest",
    max_model_len: Annotated[int | None, typer.Option(min=1, help=LENGTH_HELP, show_default=False)] = None,
    engine_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help=ENGINE_OPTION_HELP, show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command of each server that would be started, and stop.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until a request to the server fails.")] = 3600,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Leave out cases whose generation failed, instead of failing.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not install BFCL's Python environment: it must exist already.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. Default: `evals` in the run folder; for other models, `evals` in the "
            "current folder."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Evaluate models on the Berkeley Function-Calling Leaderboard (BFCL) with its official evaluator.

    The accuracy of each category is printed with a 95 % interval and, with --runs, its standard deviation over passes.
    If several models are given, each is compared with the first one, paired by case. A local model is served by vLLM,
    or by transformers if vLLM is not installed. Cases that a model was trained on are left out and counted. Differences
    between BFCL's prompt and the training prompt are printed.

    Example: [cyan]egpo eval bfcl runs/first --categories multi_turn_base --runs 5[/]
    """
    from functools import partial

    from egpo.environments.bfcl.interpreter import bfcl_python
    from egpo.evals.bfcl.categories import first_cases, in_categories, parse_categories
    from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, evaluate_bfcl
    from egpo.evals.bfcl.passes import BfclSettings
    from egpo.evals.bfcl.targets import find_targets
    from egpo.serving.engine_options import EngineOptions, parse_options

    chosen = parse_categories(categories)
    found = find_targets(targets, model, tokenizer, checkpoint, key_in(api_key_env))
    engine = EngineOptions(parse_options(engine_option or ()))
    if dry_run:
        _show_servers(found, max_model_len, engine)
        return
    say = partial(typer.echo, err=True)
    wanted = BfclOptions(runs, allow_failed, offline, max_model_len, out, engine)
    # All models answer the same cases, so that they can be compared: those that none of them was trained on.
    left_out = tuple(sorted({case for target in found for case in in_categories(target.trained_cases, chosen)}))
    ids = first_cases(bfcl_python(offline=offline, say=say), chosen, cases, left_out) if cases else {}
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
            left_out=left_out,
        )
        outcomes.append(evaluate_bfcl(target, _as_trained(asked, target, instruction), wanted, say))
    _report(outcomes, as_json)


def _show_servers(targets: "list[BfclTarget]", max_model_len: int | None, engine: "EngineOptions") -> None:
    from egpo.config.machine import this_machine
    from egpo.evals.bfcl.targets import serving_of
    from egpo.serving.served import dry_run

    for target in targets:
        if target.url is not None:
            typer.echo(f"{target.label} is served at {target.url}: no server is started")
        else:
            typer.echo(dry_run(serving_of(target, max_model_len, engine), python=this_machine().environments.verl))


def _as_trained(asked: "BfclSettings", target: "BfclTarget", instruction: str) -> "BfclSettings":
    """Return a copy of the settings with this system instruction and the template variables of the run's recipe."""
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
