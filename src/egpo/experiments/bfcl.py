"""BFCL, the official evaluator of function calling, on the base and on the trained model of an experiment."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.config.schema import Bfcl
from egpo.errors import InputError
from egpo.evals.bfcl.categories import in_categories, parse_categories
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, BfclOutcome, evaluate_bfcl, evaluation_name, training_instruction
from egpo.evals.bfcl.passes import BfclSettings, PromptFormat
from egpo.evals.bfcl.targets import BfclTarget
from egpo.experiments.evaluations import find_evaluated
from egpo.experiments.exams import engine_options
from egpo.experiments.experiment import Experiment, Which
from egpo.experiments.screen import Screen
from egpo.experiments.stage_record import StageJob
from egpo.fingerprints import digest_of
from egpo.tasks import load_task


@dataclass(frozen=True)
class _Call:
    """The arguments of `evaluate_bfcl`."""

    target: BfclTarget
    asked: BfclSettings
    wanted: BfclOptions

    @property
    def name(self) -> str:
        """The name of the evaluation's files, without suffix."""
        return evaluation_name(self.target, self.asked, self.wanted)


def bfcl_jobs(experiment: Experiment, screen: Screen) -> list[StageJob]:
    """Return one job per model that evaluates it with BFCL; none if the recipe has no `eval.bfcl`."""
    chosen = experiment.config.eval.bfcl
    if chosen is None:
        return []
    return [_job(experiment, chosen, which, screen) for which in experiment.evaluated]


def bfcl_exam(experiment: Experiment) -> str:
    """Return the name by which a comparison finds the trained model's evaluation: its file name without the step."""
    chosen = experiment.config.eval.bfcl
    assert chosen is not None
    return _call(experiment, chosen, "trained").name.removesuffix(f"-step{experiment.config.steps}")


def _job(experiment: Experiment, chosen: Bfcl, which: Which, screen: Screen) -> StageJob:
    call = _call(experiment, chosen, which)
    inputs = {
        "model": experiment.identity_of(which, call.asked.tokenizer),
        # The number of threads and unset settings are left out: they change no answer.
        "bfcl": digest_of(
            [_settings_that_matter(chosen), call.asked.prompt_format, call.asked.instruction, call.asked.template]
        ),
    }
    if call.wanted.engine.values:
        inputs["engine_options"] = digest_of(call.wanted.engine.values)
    if call.asked.left_out:
        inputs["left_out"] = digest_of(call.asked.left_out)
    outputs = [experiment.run.evals / f"{call.name}{suffix}" for suffix in (".json", ".jsonl")]

    def work() -> str:
        if which == "trained":
            experiment.require_trained_model()
        return _evaluate(call, screen)

    return StageJob(f"bfcl: {which}", inputs, lambda: outputs, work, shared=which != "trained")


def _settings_that_matter(chosen: Bfcl) -> dict[str, Any]:
    return chosen.model_dump(exclude={"threads", "format", "instruction"}, exclude_none=True)


def _call(experiment: Experiment, chosen: Bfcl, which: Which) -> _Call:
    place = find_evaluated(experiment, which)
    folder = model_folder(place.model)
    trained = _trained_instruction(experiment.training)
    default: PromptFormat = "qwen_fc" if trained is None and chosen.instruction is None else "template"
    prompt_format = chosen.format or default
    instruction = chosen.instruction if chosen.instruction is not None else trained or ""
    asked = BfclSettings(
        "",
        "",
        folder,
        parse_categories(",".join(chosen.categories)),
        prompt_format=prompt_format,
        instruction=instruction if prompt_format == "template" else "",
        temperature=chosen.temperature,
        threads=chosen.threads,
        template=experiment.config.model.template,
        max_tokens=chosen.max_tokens,
        left_out=_trained_cases(experiment, parse_categories(",".join(chosen.categories))),
    )
    # A trained model's evaluation is written to its run by default; for the base model the folder must be given.
    out = None if which == "trained" else experiment.run.evals
    return _Call(
        BfclTarget(place.label, folder, place=place),
        asked,
        BfclOptions(num_passes=chosen.runs, out=out, engine=engine_options(experiment.config)),
    )


def _trained_cases(experiment: Experiment, categories: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cases that one of the evaluated models was trained on: all models answer the same cases."""
    places = [find_evaluated(experiment, which) for which in experiment.evaluated]
    targets = [BfclTarget(place.label, model_folder(place.model), place=place) for place in places]
    return tuple(sorted({case for one in targets for case in in_categories(one.trained_cases, categories)}))


def _trained_instruction(config: Config) -> str | None:
    """Return the instruction that precedes the tool definitions in training prompts; None if the task has no tools."""
    try:
        return training_instruction(load_task(config.task.name, **config.task.settings))
    except InputError:  # the training data is not on this machine: use the recipe's own instruction
        given = config.task.settings.get("instruction")
        return given if isinstance(given, str) else None


def _evaluate(call: _Call, screen: Screen) -> str:
    folder = downloaded(call.asked.tokenizer)
    assert call.target.place is not None
    target = replace(call.target, tokenizer=folder, place=replace(call.target.place, model=folder))
    return _described(evaluate_bfcl(target, replace(call.asked, tokenizer=folder), call.wanted, screen.say))


def _described(outcome: BfclOutcome) -> str:
    accuracy, passes = outcome.evaluation.figures.accuracy, outcome.evaluation.exam.sampling.n
    over = f"{passes} passes" if passes > 1 else "one pass"
    figure = "no response could be judged" if accuracy is None else f"{accuracy.value:.1%} over {over}"
    parts = ", ".join(dict.fromkeys(mismatch.part for mismatch in outcome.mismatches or ()))
    return figure + (f"; the prompt differs from training ({parts})" if parts else "")


def downloaded(model: str) -> str:
    """Return the model's folder on this machine, downloaded from the hub if necessary: BFCL takes folders only."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(model))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        what = "the model is not on this machine, and cannot be downloaded from the hub"
        fix = "download the model, and name its folder under `models` in egpo.machine.yaml"
        raise InputError(what, where=f"model {model}", fix=fix) from error
