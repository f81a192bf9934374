"""The table of metrics has a row for every metric that the source names, and everything else is read from it."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest

import egpo
from egpo.runs.health import RULES
from egpo.runs.metric_table import METRICS, VALIDATION_ACCURACY, find_metric, is_validation_accuracy
from egpo.runs.metrics_page import metrics_page
from egpo.verl.launch.mirror import MetricFeed

ROOT = Path(__file__).parents[2]
SOURCE = Path(egpo.__file__).parent
ENGINES = ("advantages", "local", "verl")
PREFIXES = {re.split(r"[/{<]", metric.name)[0] for metric in METRICS} - {""}
# Not metrics: verl's own names before they are renamed, and a prefix of several metrics.
OTHER = {"actor/kl_loss", "actor/reward_kl_penalty", "actor/huggingface"}


def test_the_page_is_what_the_table_says():
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "write it again: make docs"


def test_every_metric_of_a_recorded_verl_run_has_a_row():
    """Two steps of verl 0.9.1 with vLLM on a CPU: estimator egpo, a KL loss and a validation."""
    names = {
        name
        for step in MetricFeed(ROOT / "tests/verl/recorded/verl.jsonl").new()
        for name in (*step.metrics, *step.timings)
    }
    assert len(names) > 150
    assert sorted(name for name in names if find_metric(name) is None) == []


def literals(path):
    """Texts of a module that look like names of metrics; what is formatted into them is `*`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def spelt_out(name):
    """`a/{b,c}` is `a/b` and `a/c`."""
    parts = [part.strip("{}").split(",") if part.startswith("{") else [part] for part in re.split(r"({.*?})", name)]
    return ["".join(chosen) for chosen in product(*parts)]


NAMES = [name for metric in METRICS for name in spelt_out(metric.name)]


def has_row(literal):
    """A literal may also be the beginning of several names: `critic/score` of `critic/score/{mean,max,min}`."""
    pattern = re.escape(literal).replace(r"\*", ".+") + "(/.+)?"
    return find_metric(literal) is not None or any(re.fullmatch(pattern, name) for name in NAMES)


@pytest.mark.parametrize("package", ENGINES)
def test_every_metric_that_the_source_of_an_engine_names_has_a_row(package):
    texts = {text for path in (SOURCE / package).rglob("*.py") for text in literals(path)}
    named = {text for text in texts if re.fullmatch(r"[\w-]+(/[\w@*-]+)+", text) and text.split("/")[0] in PREFIXES}
    assert sorted(name for name in named - OTHER if not has_row(name)) == []


def test_a_name_without_a_row_is_found():
    assert find_metric("actor/charm") is None
    assert find_metric("egpo/weight/std") is not None
    assert find_metric("reward/reason/wrong_value").unit == "fraction"
    assert find_metric("val-core/openai/gsm8k/acc/mean@4").name == VALIDATION_ACCURACY
    assert not is_validation_accuracy("val-core/a/score/mean@1")


def test_names_are_distinct_and_displayed_ones_are_exact():
    """A pattern has no single value to display; the validation accuracy has: the mean over sources."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    shown = [metric for metric in METRICS if (metric.panel or metric.log) and metric.name != VALIDATION_ACCURACY]
    assert all(re.fullmatch(r"[\w/]+", metric.name) for metric in shown)


def test_metrics_in_the_texts_of_the_health_rules_exist():
    texts = " ".join(f"{rule.fires_when} {rule.cause} {rule.advice}" for rule in RULES)
    named = re.findall(r"`([\w-]+/[\w/<>]+)`", texts)
    assert named
    assert [name for name in named if find_metric(name) is None] == []
