"""Run folders with evaluations, through the real writers."""

import numpy as np

from egpo.evals.evaluate import Evaluation, Exam, Origin, write_evaluation
from egpo.evals.figures import figures_of
from egpo.evals.responses import SampleRecord, Sampling
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import MetricStream
from egpo.runs.provenance import Provenance, describe_launch, write_provenance

CONFIG = """\
name: {name}
engine: local
seed: {seed}
steps: {steps}
runs: runs
model: {{path: egpo-tiny}}
task:
  name: countdown
  settings: {{mode: {mode}}}
algorithm:
  estimator: {estimator}
  egpo: {{lam: 0.4}}
update: {{lr: {lr}}}
"""


def write_run(
    path, *, estimator="grpo", seed=0, lr=1e-6, mode="binary", train="a" * 64, steps=10, done=10, provenance=True
):
    config = CONFIG.format(name=path.name, seed=seed, estimator=estimator, lr=lr, mode=mode, steps=steps)
    with RunFolder.create(path, config) as folder:
        if provenance:
            data = {"train": train} if train else {}
            write_provenance(folder.provenance, Provenance(seed, data, describe_launch(threads=1)))
        for step in range(1, done + 1):
            MetricStream(folder.metrics).append(step, {"critic/score/mean": step / 10})
    return path


def write_run_evaluation(
    run,
    right_PN,
    *,
    name="countdown-n4-t1-step10",
    step=10,
    task="countdown",
    data="digest",
    first=0,
    model="model",
    **exam,
):
    """`right_PN[p][n]`: whether response n to problem p is right."""
    right_PN = np.atleast_2d(np.asarray(right_PN))
    samples = tuple(
        SampleRecord(f"p{first + p}", n, "", "", None, 0.1 + 0.9 * bool(is_right), bool(is_right), "x")
        for p, row in enumerate(right_PN)
        for n, is_right in enumerate(row)
    )
    sampling = Sampling(n=right_PN.shape[1], seed=exam.pop("seed", 0), **exam)
    exam = Exam(task, {"mode": "binary"}, sampling=sampling)
    evaluation = Evaluation(run.name, exam, figures_of(samples), samples, 0, data)
    return write_evaluation(run / "evals", name, evaluation, Origin(model, step))


def drawn(share, seed, problems=100, n=4):
    """Responses that are right with this chance, whatever the problem."""
    return np.random.default_rng(seed).random((problems, n)) < share


def two_conditions(place, seeds=(0,), base=0.4, other=0.4, problems=100, n=4):
    """Runs of grpo and of egpo, evaluated alike."""
    runs = []
    for estimator, share in (("grpo", base), ("egpo", other)):
        for seed in seeds:
            run = write_run(place / f"{estimator}-{seed}", estimator=estimator, seed=seed)
            write_run_evaluation(
                run, drawn(share, [seed, estimator == "egpo"], problems, n), name=f"countdown-n{n}-t1-step10"
            )
            runs.append(run)
    return runs
