"""Write the model card of a checkpoint from what its run has recorded: config, provenance and evaluations.

The card says what a reader needs to judge the model and to train it again. What the run has not recorded is left out:
no row has a placeholder. Names, settings and commands come from users and from models, so every text is escaped. Local
folders are shown by their last part only, except in the command.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from egpo.pushes.pushed_model import PushedModel
from egpo.runs.provenance import Launch
from egpo.runs.stored import EvaluationFile, StoredRun
from egpo.version import __version__

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-!|~$:@])")
_COLUMNS = ("evaluation", "model", "figure", "value", "95 % interval", "problems")
_AT_MOST = 300
"""Characters of a name or a setting on the card."""


@dataclass(frozen=True)
class CardFigure:
    """One figure of an evaluation with its 95 % interval; `low` and `high` are None if it has none."""

    exam: str
    model: str
    name: str
    value: float
    low: float | None
    high: float | None
    num_problems: int | None

    @property
    def is_share(self) -> bool:
        return self.name != "mean score"


def model_card(model: PushedModel, title: str) -> str:
    """Return the card as Markdown, with the metadata that the hub reads at its top."""
    run, figures = model.run, card_figures(model)
    sections = [
        _front_matter(run, figures, title),
        f"# {escaped(title)}\n\n{_summary(model)}",
        _table("Evaluation", _COLUMNS, map(_row, figures)),
        _table("Training", ("", ""), _training(model)),
        _table("Data", ("split or file", "digest"), _data(run)),
        _table("Software", ("", ""), _software(run)),
        _command(run),
        f"This card was written by egpo {__version__} from the files of the run.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def card_figures(model: PushedModel) -> list[CardFigure]:
    """Return the figures of the model, and those of its base on the same problems, by evaluation."""
    evaluations = [one for one in model.run.evaluations if one.is_evaluation]
    own = [one for one in evaluations if one.step == model.step]
    base = str(_section(model.run, "model").get("path", ""))
    of_base = [one for one in evaluations if one.step is None and base and one.header.get("model") == base]
    shown: list[CardFigure] = []
    for one in own:
        same = [other for other in of_base if _exam_key(other) == _exam_key(one)]
        for evaluation, label in [(one, "this model"), *((other, "base model") for other in same)]:
            shown += _figures(evaluation, label)
    return shown


def _exam_key(evaluation: EvaluationFile) -> tuple[str, str, str]:
    """Return what two evaluations must share to be compared: task, problems and sampling."""
    header = evaluation.header
    return str(header.get("task")), str(header.get("data")), str(sorted(evaluation.section("sampling").items()))


def _exam_title(evaluation: EvaluationFile) -> str:
    """Describe an evaluation: `countdown (test), 8 responses per problem at temperature 1`."""
    sampling, parts = evaluation.section("sampling"), [str(evaluation.header["task"])]
    if split := evaluation.header.get("split"):
        parts[0] += f" ({split})"
    if (temperature := sampling.get("temperature")) == 0:
        parts.append("greedy decoding")
    elif isinstance(temperature, int | float):
        parts.append(f"{sampling.get('n', 1)} responses per problem at temperature {temperature:g}")
    return ", ".join(parts)


def _figures(evaluation: EvaluationFile, label: str) -> Iterator[CardFigure]:
    header, by_k = evaluation.header, evaluation.section("pass_at_k")
    estimates = {"accuracy": header.get("accuracy")}
    estimates |= {f"pass@{k}": estimate for k, estimate in by_k.items() if str(k) != "1"}
    for name, estimate in {**estimates, "mean score": header.get("mean_score")}.items():
        if isinstance(estimate, dict) and isinstance(value := estimate.get("value"), int | float):
            ends = (estimate.get("low"), estimate.get("high"))
            low, high = (end if isinstance(end, int | float) else None for end in ends)
            problems = estimate.get("num_problems")
            exam = _exam_title(evaluation)
            yield CardFigure(exam, label, name, value, low, high, problems if isinstance(problems, int) else None)


def _row(figure: CardFigure) -> Sequence[str]:
    ends = [_number(figure, end) for end in (figure.low, figure.high) if end is not None]
    interval = f"{ends[0]} to {ends[1]}" if len(ends) == 2 else ""
    problems = "" if figure.num_problems is None else f"{figure.num_problems:,}"
    return figure.exam, figure.model, figure.name, _number(figure, figure.value), interval, problems


def _number(figure: CardFigure, value: float) -> str:
    return f"{100 * value:.1f} %" if figure.is_share else f"{value:.3f}"


def _summary(model: PushedModel) -> str:
    run, parts = model.run, ["A causal language model"]
    if base := _base_name(run):
        parts.append(f"trained from {escaped(base)}")
    parts.append(f"with {escaped(_method(run))} by egpo")
    if task := run.setting("task", "name"):
        parts.append(f"on the task {escaped(task)}")
    return f"{' '.join(parts)}: the checkpoint of step {model.step}."


def _method(run: StoredRun) -> str:
    return run.setting("algorithm", "estimator") or "supervised fine-tuning"


def _base_name(run: StoredRun) -> str:
    """Return a hub name as it is, and a folder by its last part."""
    base = run.setting("model", "path")
    return base if _is_hub_name(base) else Path(base).name


def _is_hub_name(name: str) -> bool:
    return bool(_HUB_NAME.fullmatch(name)) and not name.startswith((".", "runs/")) and not Path(name).exists()


def _training(model: PushedModel) -> Iterator[Sequence[str]]:
    run = model.run
    yield "method", _method(run)
    settings = {
        "base model": _base_name(run),
        "task": run.setting("task", "name"),
        "engine": str(run.config.get("engine", "")),
        "steps": f"{model.step} of {run.planned_steps}" if run.planned_steps else str(model.step),
        "problems per step": run.setting("rollout", "prompts"),
        "responses per problem": run.setting("rollout", "n"),
        "sampling temperature": run.setting("rollout", "temperature"),
        "learning rate": run.setting("update", "lr"),
        "weight of the KL term": run.setting("update", "kl"),
        "seed": str(run.config.get("seed", "")),
    }
    settings |= {f"{_method(run)}: {key}": str(value) for key, value in _estimator_settings(run).items()}
    yield from ((name, value) for name, value in settings.items() if value)


def _estimator_settings(run: StoredRun) -> Mapping[str, Any]:
    inner = _section(run, "algorithm").get(_method(run))
    return inner if isinstance(inner, dict) else {}


def _section(run: StoredRun, name: str) -> Mapping[str, Any]:
    value = run.config.get(name)
    return value if isinstance(value, dict) else {}


def _data(run: StoredRun) -> Iterator[Sequence[str]]:
    provenance = run.provenance
    yield from () if provenance is None else ((Path(name).name, digest) for name, digest in provenance.data.items())


def _software(run: StoredRun) -> Iterator[Sequence[str]]:
    if run.provenance is None:
        return
    launch = run.provenance.start
    yield from launch.versions.items()
    if launch.git is not None:
        yield "commit", launch.git.commit + (" with uncommitted changes" if launch.git.dirty else "")
    yield "hardware", launch.hardware.gpu or launch.hardware.cpu
    if resumed := len(run.provenance.resumptions):
        yield "resumed", "once" if resumed == 1 else f"{resumed} times"


def _command(run: StoredRun) -> str:
    if run.provenance is None or not run.provenance.start.command:
        return ""
    return f"## Command\n\n{code_block(command_line(run.provenance.start))}"


def command_line(launch: Launch) -> str:
    """Return the command of a run on one line. The program's folder is left out: it belongs to one machine."""
    program, *words = launch.command
    name = Path(program).name
    return " ".join([Path(program).parent.name if name == "__main__.py" else name, *words])


def _front_matter(run: StoredRun, figures: Sequence[CardFigure], title: str) -> str:
    base, method = run.setting("model", "path"), _method(run)
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if _is_hub_name(base):
        metadata["base_model"] = base
    metadata["tags"] = list(dict.fromkeys(["egpo", "sft" if method.startswith("supervised") else _plain(method)]))
    if results := list(_results(figures)):
        metadata["model-index"] = [{"name": title, "results": results}]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=False)}---"


def _results(figures: Sequence[CardFigure]) -> Iterator[dict[str, Any]]:
    """Yield the model's own figures in the form of the hub's leaderboards."""
    own = [figure for figure in figures if figure.model == "this model"]
    for exam in dict.fromkeys(figure.exam for figure in own):
        metrics = [
            {"type": figure.name.replace(" ", "_"), "name": figure.name, "value": round(figure.value, 6)}
            for figure in own
            if figure.exam == exam
        ]
        dataset = {"type": _plain(exam.split(" (")[0]), "name": _plain(exam)}
        yield {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}


def _table(title: str, columns: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a section with a table; empty without rows."""
    lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in rows]
    if not lines:
        return ""
    head = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
    return f"## {title}\n\n{head}\n" + "\n".join(lines)


def escaped(text: str) -> str:
    """Return the text so that Markdown shows it as it is: on one line, without markup, links or HTML."""
    plain = _SPECIAL.sub(r"\\\1", _plain(text)).replace("www.", r"www\.")  # GitHub's Markdown makes links of both
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str) -> str:
    """Return a fenced block. The fence is longer than any row of backticks in the text, which cannot end it."""
    plain = _plain(text, most=4_000)
    longest = max((len(row) for row in re.findall("`+", plain)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{plain}\n{fence}"


def _plain(text: str, most: int = _AT_MOST) -> str:
    """Return the text on one line, without control and formatting characters, at most `most` characters long."""
    kept = "".join(" " if unicodedata.category(sign).startswith(("C", "Z")) else sign for sign in str(text))
    line = " ".join(kept.split())
    return line if len(line) <= most else line[: most - 1] + "…"
