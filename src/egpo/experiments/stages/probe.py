"""Is there something to learn, before the hours are spent?"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from egpo.config import Config
from egpo.evals.evaluate import Exam
from egpo.evals.intervals import default_ks
from egpo.evals.responses import Sampling
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.prepared import data_digest
from egpo.experiments.prints import digest_of, model_identity
from egpo.experiments.screen import Screen
from egpo.probes.probe import draw_paper, probe
from egpo.probes.store import write_probe
from egpo.probes.subject import find_subject
from egpo.reports.evaluations import read_object
from egpo.reports.probe import PROBE
from egpo.runs.live import warnings_printed_by


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    experiment.require_data()
    config, path = experiment.training, experiment.run.evals / PROBE
    inputs = {
        "model": digest_of([model_identity(config.model.path), config.model.template]),
        "data": data_digest(config),
        "task": digest_of(config.task.model_dump(mode="json")),
        "sampling": digest_of([_sampling(config), config.segments.tags, config.rollout.stop]),
        "probe": digest_of(config.probe.model_dump()),
    }
    outputs = [path, path.with_suffix(".jsonl"), path.with_suffix(".svg")]
    return [Job("probe", inputs, lambda: outputs, partial(_probed, experiment, screen), shared=True)]


def _probed(experiment: Experiment, screen: Screen) -> str:
    config, sampling = experiment.training, _sampling(experiment.training)
    exam = Exam(
        config.task.name, config.task.settings, "train", config.probe.problems, sampling, default_ks(sampling.n)
    )
    subject, paper = find_subject(config, out=experiment.run.evals), draw_paper(exam)
    with screen.watched("probe") as view, warnings_printed_by(view.say):
        path = write_probe(subject.folder, probe(subject.load(), paper, view.watch), subject.origin)
    return _described(read_object(path))


def _sampling(config: Config) -> Sampling:
    """As training samples, but for n."""
    rollout = config.rollout
    return Sampling(config.probe.n, rollout.temperature, rollout.top_p, rollout.max_response_tokens, config.seed)


def _described(found: Mapping[str, Any]) -> str:
    accuracy, variance = found["evaluation"]["accuracy"], found["reward_variance"]
    figures = f"accuracy {accuracy['value']:.1%}" if accuracy else "nothing could be judged"
    figures += f", variance of the reward within a problem {variance['value']:.2f}" if variance else ""
    faults = [f"{one['figure']}: {one['advice']}" for one in found["findings"] if one["status"] == "bad"]
    return f"{figures}; {'; '.join(faults) or 'there is something to learn'}"
