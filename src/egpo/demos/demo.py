"""`egpo demo`: prepare, probe, train with three estimators, evaluate, report."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from egpo.advantages import ESTIMATORS
from egpo.demos.plan import DemoFolder, Plan, demo_config
from egpo.demos.probing import forecast_and_outcome, probe_base, show_probe_in
from egpo.demos.stages import evaluate_models, prepare_data, train_run
from egpo.evals.evaluate import StoredEvaluation
from egpo.experiments.screen import Screen
from egpo.reports import write_report


@dataclass(frozen=True)
class Demo:
    """What came of it: evaluations by manner and model, the probe's forecast beside what was seen, the page, and the
    seconds that this call took."""

    evaluations: Mapping[str, Mapping[str, StoredEvaluation]]
    forecast: str
    report: Path
    took_s: float


def run_demo(folder: DemoFolder, plan: Plan, screen: Screen) -> Demo:
    """Every stage that is not done yet: a demo that was interrupted goes on where it was."""
    start = time.monotonic()
    folder.claim(plan)
    configs = {estimator: demo_config(folder, plan, estimator) for estimator in ESTIMATORS}
    first = configs["grpo"]
    screen.say(f"1/5 data: Countdown, {first.task.settings['train']:,} problems to learn from -> {folder.data}")
    prepare_data(first, folder)
    screen.say(f"2/5 probe: is there something to learn? {plan.probe_problems} problems, {plan.probe_n} responses each")
    screen.say(probe_base(first, folder, plan, screen))
    screen.say(f"3/5 train: {plan.steps} steps with each of {', '.join(ESTIMATORS)}; same seed, same data")
    for config in configs.values():
        train_run(config, folder, screen)
    num_sampled = plan.eval_problems * plan.eval_n
    screen.say(f"4/5 evaluate: {plan.eval_problems} other problems, {num_sampled:,} sampled responses of each model")
    evaluations = evaluate_models(configs, plan, screen)
    screen.say("5/5 report")
    runs = [folder.run_of(estimator) for estimator in ESTIMATORS]
    show_probe_in(runs[0], folder)
    report = write_report([run.path for run in runs], folder.report)
    return Demo(evaluations, forecast_and_outcome(folder, configs.values()), report, time.monotonic() - start)
