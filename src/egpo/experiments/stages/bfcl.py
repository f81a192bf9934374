"""The official evaluator of function calling, on the model before the training and after it."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.config.schema import Bfcl
from egpo.errors import InputError
from egpo.evals.bfcl.categories import parse_categories
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, BfclOutcome, evaluate_bfcl, evaluation_name, training_instruction
from egpo.evals.bfcl.passes import BfclSettings, PromptFormat
from egpo.evals.bfcl.targets import BfclTarget
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.models import Which, downloaded, place_of
from egpo.experiments.prints import digest_of, model_identity
from egpo.experiments.screen import Screen
from egpo.tasks import load_task


@dataclass(frozen=True)
class _Call:
    """What `evaluate_bfcl` is called with."""

    target: BfclTarget
    asked: BfclSettings
    wanted: BfclOptions

    @property
    def name(self) -> str:
        """Of the evaluation's files, without their suffix."""
        return evaluation_name(self.target, self.asked, self.wanted)


def bfcl_jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """One a model."""
    chosen = experiment.config.eval.bfcl
    assert chosen is not None
    return [_job(experiment, chosen, which, screen) for which in dict.fromkeys(experiment.config.eval.models)]


def bfcl_exam(experiment: Experiment) -> str:
    """What a comparison calls the evaluation of the trained model: its file, without the step."""
    chosen = experiment.config.eval.bfcl
    assert chosen is not None
    return _call(experiment, chosen, "trained").name.removesuffix(f"-step{experiment.config.steps}")


def _job(experiment: Experiment, chosen: Bfcl, which: Which, screen: Screen) -> Job:
    call = _call(experiment, chosen, which)
    inputs = {
        "model": model_identity(call.asked.tokenizer),
        # How many are under way at once changes no answer, nor does a setting that is left to BFCL.
        "bfcl": digest_of([_deciding(chosen), call.asked.prompt_format, call.asked.instruction, call.asked.template]),
    }
    outputs = [experiment.run.evals / f"{call.name}{suffix}" for suffix in (".json", ".jsonl")]
    return Job(f"bfcl: {which}", inputs, lambda: outputs, partial(_evaluated, call, screen), shared=which == "base")


def _deciding(chosen: Bfcl) -> dict[str, Any]:
    return chosen.model_dump(exclude={"threads", "format", "instruction"}, exclude_none=True)


def _call(experiment: Experiment, chosen: Bfcl, which: Which) -> _Call:
    place = place_of(experiment, which)
    folder = model_folder(place.model)
    trained = _trained_instruction(experiment.training)
    usual: PromptFormat = "qwen_fc" if trained is None and chosen.instruction is None else "template"
    written_by = chosen.format or usual
    instruction = chosen.instruction if chosen.instruction is not None else trained or ""
    asked = BfclSettings(
        "",
        "",
        folder,
        parse_categories(",".join(chosen.categories)),
        prompt_format=written_by,
        instruction=instruction if written_by == "template" else "",
        temperature=chosen.temperature,
        threads=chosen.threads,
        template=experiment.config.model.template,
        max_tokens=chosen.max_tokens,
    )
    # A run's own checkpoint has its place there; the base is told.
    out = experiment.run.evals if which == "base" else None
    return _Call(BfclTarget(place.label, folder, place=place), asked, BfclOptions(num_passes=chosen.runs, out=out))


def _trained_instruction(config: Config) -> str | None:
    """What the model was told before the tools; None where it was trained without tools."""
    try:
        return training_instruction(load_task(config.task.name, **config.task.settings))
    except InputError:  # the training's data is not on this machine: what the recipe itself says of it
        given = config.task.settings.get("instruction")
        return given if isinstance(given, str) else None


def _evaluated(call: _Call, screen: Screen) -> str:
    folder = downloaded(call.asked.tokenizer)
    assert call.target.place is not None
    target = replace(call.target, tokenizer=folder, place=replace(call.target.place, model=folder))
    return _described(evaluate_bfcl(target, replace(call.asked, tokenizer=folder), call.wanted, screen.say))


def _described(outcome: BfclOutcome) -> str:
    accuracy, passes = outcome.evaluation.figures.accuracy, outcome.evaluation.exam.sampling.n
    over = f"{passes} passes" if passes > 1 else "one pass"
    figure = "nothing judged" if accuracy is None else f"{accuracy.value:.1%} over {over}"
    parts = ", ".join(dict.fromkeys(mismatch.part for mismatch in outcome.mismatches or ()))
    return figure + (f"; its prompt is not the training's ({parts})" if parts else "")
