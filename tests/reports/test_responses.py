"""Which responses are in the page, and that they come back whole."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.reports.curves import read_runs
from egpo.reports.evaluations import read_evaluations
from egpo.reports.response_json import UNKNOWN, as_json, encode_groups, utf16_length
from egpo.reports.responses import embed_responses, spread_evenly
from egpo.runs.dump import TokenAlternatives, read_dump, write_dump
from egpo.runs.json_lines import encoded, read_lines
from tests.reports.folders import group_records, record, write_run
from tests.reports.test_evaluations import write_evaluation

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(ANY_JSON)
def test_embedded_data_cannot_end_its_block_and_reads_back_the_same(value):
    text = as_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text.encode("utf-8", "backslashreplace")) == value


@given(st.lists(st.text(st.characters(codec=None)), max_size=8))
def test_tokens_are_cut_where_the_script_cuts_them(tokens):
    """JavaScript counts in pieces of sixteen bits."""
    whole = "".join(tokens).encode("utf-16-le", "surrogatepass")
    start, found = 0, []
    for length in map(utf16_length, tokens):
        found.append(whole[2 * start : 2 * (start + length)].decode("utf-16-le", "surrogatepass"))
        start += length
    assert found == [
        token.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") for token in tokens
    ]


def test_a_group_has_its_prompt_once_and_its_responses_in_order():
    records = [*group_records(1, ("a", "b")), *group_records(1, ("c",), problem="other")]
    groups = encode_groups(records)
    assert [(group["problem"], [r["text"] for r in group["responses"]]) for group in groups] == [
        ("problem 1", ["a", "b"]),
        ("other", ["c"]),
    ]


def test_entropies_are_hundredths_of_a_nat():
    (response,) = encode_groups([record(1, "abcdef", 0)])[0]["responses"]
    assert response["lengths"] == [3, 3, 0]
    assert response["entropies"] == [UNKNOWN, 25, 50]


def test_tokens_that_do_not_join_to_the_text_are_not_shown_as_such():
    """Of another engine's dump: the text is what counts."""
    odd = replace(record(1, "abcdef", 0), tokens=("ab", "x"), token_entropy=(1.0, 2.0))
    (response,) = encode_groups([odd])[0]["responses"]
    assert response["text"] == "abcdef"
    assert response["lengths"] == response["entropies"] == response["spans"] == []


@given(st.sets(st.integers(0, 10_000), min_size=1), st.integers(2, 30))
def test_steps_are_spread_with_both_ends(steps, count):
    steps = sorted(steps)
    chosen = spread_evenly(steps, count)
    assert len(chosen) == min(count, len(steps))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(steps)
    assert chosen[0] == steps[0]
    assert len(steps) == 1 or chosen[-1] == steps[-1]


@pytest.fixture
def long_run(tmp_path):
    """Forty steps of six groups, each of about 6 kB."""
    records = [r for number in range(6) for r in group_records(1, ("wörd " * 200,) * 3, problem=f"p{number}")]
    return read_runs([write_run(tmp_path / "long", steps=40, dumps=range(1, 41), records=records)])


@pytest.mark.parametrize("most_bytes", [20_000, 60_000, 300_000, 10_000_000])
def test_bytes_are_bounded_and_what_is_left_out_is_counted(long_run, most_bytes):
    found = embed_responses(long_run, [], most_bytes)
    (run,) = found.sources
    assert sum(step.size for step in run.sets) <= most_bytes
    assert [run.sets[0].label, run.sets[-1].label] == ["1", "40"]
    assert run.num_all_sets == 40
    assert 3 <= len(run.sets) <= 24
    for step in run.sets:
        assert 1 <= step.num_groups <= step.num_all_groups == 6
    assert found.left_out[0].startswith(f"long: {40 - len(run.sets)} of 40 recorded steps")


def test_a_group_too_large_keeps_one_response_at_least(long_run):
    for step in embed_responses(long_run, [], 100).sources[0].sets:
        (group,) = json.loads(step.json)
        assert len(group["responses"]) == 1
        assert group["of"] == 3


def test_files_that_are_no_steps_are_passed_over(long_run):
    (long_run[0].stored.folder.rollouts / "step_x.jsonl").write_text("no")
    (long_run[0].stored.folder.rollouts / ".egpo-step_3.jsonl-00").write_text("no")
    assert long_run[0].stored.rollout_steps == list(range(1, 41))


def test_a_shade_is_full_at_the_rare_entropies(tmp_path):
    """Tokens of 0, 0.25 ... 16.5 nats: the 99th percentile is among the last, rounded up to half a nat."""
    runs = read_runs([write_run(tmp_path / "a", dumps=(1,), records=[record(1, "abc" * 66, 0)])])
    assert embed_responses(runs, [], 1_000_000).scale == 16.5


def test_evaluations_have_a_quarter_and_what_rollouts_leave(long_run):
    path = long_run[0].stored.folder.path
    for name, label, step in (("base", "the base", None), ("final", "long step 40", 40)):
        write_evaluation(path, name, label, step, 0.5, n=1, temperature=0.0)
    runs = read_runs([path])
    evaluations = read_evaluations(runs)
    tight = embed_responses(runs, evaluations, 60_000)
    rollouts = sum(found.size for source in tight.sources if source.kind == "rollouts" for found in source.sets)
    assert rollouts <= 45_000
    assert [source.name for source in tight.sources] == ["long", "the base", "long step 40"]
    assert all(source.sets[0].num_groups == 20 for source in tight.sources[1:])
    least = embed_responses(runs, evaluations, 12_000)
    assert "the base: " in " ".join(least.left_out)
    assert "of the 20 problems of the evaluation" in " ".join(least.left_out)


def test_evaluations_without_stored_responses_are_passed_over(long_run):
    path = long_run[0].stored.folder.path
    write_evaluation(path, "final", "long step 40", 40, 0.5, n=1, temperature=0.0)
    (path / "evals" / "final.jsonl").unlink()
    runs = read_runs([path])
    assert [source.kind for source in embed_responses(runs, read_evaluations(runs), 10**6).sources] == ["rollouts"]


def test_alternatives_come_back_from_a_dump(tmp_path):
    """Through the file, and into the page with probabilities in tenths of a percent."""
    kept = replace(record(1, "abcdef", 0), token_alternatives=(TokenAlternatives(1, -1, (("x", 0.6), ("<y>", 0.25))),))
    write_dump(tmp_path / "step_1.jsonl", [kept])
    (read,) = read_dump(tmp_path / "step_1.jsonl")
    assert read.token_alternatives == kept.token_alternatives
    (response,) = encode_groups([read])[0]["responses"]
    assert response["alternatives"] == [[1, -1, ["x", 600, "<y>", 250]]]


def test_damaged_alternatives_are_an_error_with_a_line(tmp_path):
    path = tmp_path / "step_1.jsonl"
    write_dump(path, [record(1, "abcdef", 0)])
    (line,) = read_lines(path)
    path.write_bytes(encoded(line.value | {"token_alternatives": [[1, "x"]]}))
    with pytest.raises(InputError, match="line 1: the line is not a rollout record"):
        read_dump(path)
