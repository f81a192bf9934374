"""What the Python functions return: the files of a run, an evaluation, a probe or a comparison, as objects.

`to_pandas` needs pandas and `plot` needs matplotlib (`pip install pandas matplotlib`); nothing else does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egpo.errors import InputError, nearest
from egpo.runs.metric_table import ACCURACY, REWARD
from egpo.runs.stored import StoredRun

if TYPE_CHECKING:
    from egpo.comparisons.result import Comparison
    from egpo.evals.evaluate import Evaluation
    from egpo.evals.figures import Figures
    from egpo.evals.intervals import Estimate
    from egpo.evals.responses import SampleRecord
    from egpo.probes.probe import Probe


@dataclass(frozen=True)
class RunResult:
    """A run on disk, finished or not: `RunResult("runs/first")` also reads a run of the command line."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # text is accepted too

    @property
    def run(self) -> StoredRun:
        """Everything that the run has written, as it is now."""
        if not self.folder.is_dir():
            raise InputError("no such run folder", where=str(self.folder), fix="check the path")
        return StoredRun.at(self.folder)

    @property
    def model(self) -> Path:
        """The folder of the newest checkpoint's model, which transformers, vLLM and egpo can load."""
        checkpoints = list(self.run.checkpoints.values())
        if not checkpoints:
            fix = "continue the training until one is written"
            raise InputError("the run has no checkpoint yet", where=str(self.folder), fix=fix)
        return checkpoints[-1].model

    @property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """One mapping per step, by the names in docs/metrics.md."""
        return self.run.metrics

    @property
    def steps(self) -> int:
        """The number of steps that were taken."""
        return self.run.last_step

    def to_pandas(self) -> Any:
        """Return the metrics as a DataFrame with one row per step."""
        pandas = _imported("pandas")
        lines = list(self.metrics)
        return pandas.DataFrame(lines, columns=None if lines else ["step"]).set_index("step")

    def plot(self, *names: str) -> Any:
        """Draw metrics over the steps, by default reward and accuracy. Return the matplotlib axes."""
        known = sorted({name for line in self.metrics for name in line} - {"step"})
        if not known:
            raise InputError("the run has no metrics yet", where=str(self.folder), fix="let it train")
        chosen = names or tuple(name for name in (REWARD, ACCURACY) if name in known)
        for name in chosen:
            if name not in known:
                raise InputError(f"no metric `{name}`", where=str(self.folder), fix=nearest(name, known))
        axes = _imported("matplotlib.pyplot").subplots()[1]
        for name in chosen:
            points = [(line["step"], line[name]) for line in self.metrics if name in line]
            axes.plot([step for step, _ in points], [value for _, value in points], label=name)
        axes.set(xlabel="step", title=self.folder.name)
        axes.legend()
        return axes

    def __str__(self) -> str:
        return f"run {self.folder}, {self.steps} steps"


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """One evaluated model. `path` is the file with the figures; the responses are beside it."""

    evaluation: "Evaluation"
    path: Path

    @property
    def figures(self) -> "Figures":
        """All figures with their intervals: score, pass@k, entropy, length, reasons."""
        return self.evaluation.figures

    @property
    def accuracy(self) -> "Estimate | None":
        """The fraction of right responses with its 95 % interval; None if no response could be judged."""
        return self.figures.accuracy

    @property
    def samples(self) -> "Sequence[SampleRecord]":
        """The judged responses."""
        return self.evaluation.samples

    def to_pandas(self) -> Any:
        """Return the responses as a DataFrame with one row per response."""
        return _imported("pandas").DataFrame([asdict(sample) for sample in self.samples])

    def plot(self) -> Any:
        """Draw the fraction of right responses per problem as a histogram. Return the matplotlib axes."""
        from egpo.evals.figures import pass_at_k_by_problem, tally_problems

        axes = _imported("matplotlib.pyplot").subplots()[1]
        axes.hist(list(pass_at_k_by_problem(tally_problems(self.samples), 1).values()), bins=10, range=(0, 1))
        axes.set(xlabel="right responses to a problem", ylabel="problems", title=self.evaluation.label)
        return axes

    def __repr__(self) -> str:
        return str(self)  # the fields are thousands of characters long

    def __str__(self) -> str:
        exam, accuracy = self.evaluation.exam, self.accuracy
        shown = "unknown" if accuracy is None else _percent(accuracy)
        return f"{self.evaluation.label} on {exam.task} ({exam.split}): accuracy {shown}"


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """The results of a probe: how a model performs on training problems before training. Notebooks display a plot."""

    probe: "Probe"
    path: Path

    @property
    def group_size(self) -> int | None:
        """The recommended number of responses per problem; None if no group size gives enough signal."""
        return self.probe.recommendation.group_size

    @property
    def findings(self) -> list[str]:
        """Advice on what was measured, one sentence each."""
        return [f"{one.figure}: {one.advice}" for one in self.probe.findings if one.status != "good"]

    def to_pandas(self) -> Any:
        """Return the fraction of right responses of each problem as a Series."""
        return _imported("pandas").Series(self.probe.pass_rates, name="pass_rate")

    def plot(self) -> Any:
        """Draw the forecast share of groups whose rewards differ, by group size. Return the matplotlib axes."""
        axes, forecasts = _imported("matplotlib.pyplot").subplots()[1], self.probe.forecasts
        axes.plot([one.group_size for one in forecasts], [one.informative.value for one in forecasts], marker="o")
        axes.set(xlabel="responses per problem", ylabel="groups whose rewards differ", ylim=(0, 1))
        return axes

    def _repr_svg_(self) -> str:
        from egpo.probes.store import picture

        return picture(self.probe)

    def __repr__(self) -> str:
        return str(self)  # the fields are thousands of characters long

    def __str__(self) -> str:
        size = self.group_size
        advice = "no group size gives enough signal" if size is None else f"use rollout.n={size}"
        accuracy = self.probe.evaluation.figures.accuracy
        shown = "unknown" if accuracy is None else _percent(accuracy)
        return "\n".join([f"accuracy {shown}; {advice}", *self.findings])


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """The comparison of runs or models. `print` shows it as Markdown, as does a notebook."""

    comparison: "Comparison"

    @property
    def verdicts(self) -> list[str]:
        """One sentence per pair of conditions, with difference and interval."""
        return [contrast.verdict for contrast in self.comparison.contrasts]

    @cached_property
    def _markdown(self) -> str:
        from egpo.comparisons.outputs import as_markdown

        return as_markdown(self.comparison)

    def to_pandas(self) -> Any:
        """Return one row per pair of conditions, with the columns of `egpo compare --csv`."""
        from io import StringIO

        from egpo.comparisons.outputs import as_csv

        return _imported("pandas").read_csv(StringIO(as_csv(self.comparison)))

    def plot(self) -> Any:
        """Draw each difference with its 95 % interval. Return the matplotlib axes."""
        axes = _imported("matplotlib.pyplot").subplots()[1]
        for place, contrast in enumerate(self.comparison.contrasts):
            delta = contrast.delta
            low, high = (delta if end is None else end for end in (contrast.low, contrast.high))
            axes.errorbar(delta, place, xerr=[[delta - low], [high - delta]], fmt="o", capsize=3)
        axes.axvline(0, color="grey", linewidth=1)
        names = [f"{contrast.other} - {contrast.base}" for contrast in self.comparison.contrasts]
        axes.set(yticks=range(len(names)), yticklabels=names, xlabel="difference, with its 95 % interval")
        return axes

    def _repr_markdown_(self) -> str:
        return self._markdown

    def __repr__(self) -> str:
        return str(self)  # the fields are thousands of characters long

    def __str__(self) -> str:
        return self._markdown


def _percent(estimate: "Estimate") -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1%}"
    return f"{estimate.value:.1%} (95 % interval {estimate.low:.1%} to {estimate.high:.1%})"


def _imported(name: str) -> Any:
    """Import an optional package, or raise InputError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"{package} is not installed", where=name, fix=f"pip install {package}") from error
