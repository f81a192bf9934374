"""verl's figures under our names, each step once."""

import json

from egpo.verl.launch.mirror import MetricFeed


def line(step, **data):
    return json.dumps({"step": step, "data": data}) + "\n"


def test_each_whole_line_comes_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    feed = MetricFeed(path)
    assert list(feed.new()) == []
    path.write_text(line(0, a=1) + line(1, a=2)[:-5])
    assert [one.step for one in feed.new()] == [0]
    assert list(feed.new()) == []
    path.write_text(line(0, a=1) + line(1, a=2))
    assert [one.step for one in feed.new()] == [1]


def test_what_the_clock_says_goes_apart_and_verls_names_become_ours(tmp_path):
    path = tmp_path / "metrics.jsonl"
    data = {"actor/kl_loss": 0.5, "timing_s/step": 2.0, "perf/throughput": 9.0, "perf/total_num_tokens": 7, "x": None}
    path.write_text(json.dumps({"step": 4, "data": data}) + "\n")
    (figures,) = MetricFeed(path).new()
    assert figures.metrics == {"actor/kl": 0.5, "perf/total_num_tokens": 7}
    assert figures.timings == {"timing_s/step": 2.0, "perf/throughput": 9.0}
