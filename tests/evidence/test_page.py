"""The page of results: held to the evidence byte by byte, computed by the functions of `egpo compare`, and checked."""

import gzip
import json
import re
import shutil
import subprocess

import pytest
import yaml

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.result import holm
from egpo.errors import InputError
from egpo.fingerprints import code_digest
from tests.evidence.conftest import COMMIT
from website.evidence.__main__ import DOCS, END, LIMIT_MB, PARTS, generated, main, outdated, write
from website.evidence.groups import has_evidence, read_evidence
from website.evidence.sittings import code_at, commit_of, read_sittings
from website.evidence.stripping import absolute_paths, pack, strip_runs, unpack

needs_evidence = pytest.mark.skipif(not has_evidence(DOCS / "evidence"), reason="no runs are committed yet")


def test_the_page_and_its_figures_are_what_the_evidence_gives():
    assert outdated() == [], "write them again: make evidence"


@needs_evidence
def test_the_committed_evidence_is_small_and_names_no_machine():
    files = [path for path in (DOCS / "evidence").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LIMIT_MB * 1e6
    for path in files:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        assert not list(absolute_paths(text)), path
        assert not re.search(r"/(home|root|work|tmp|Users|mnt)/", text), path


@needs_evidence
def test_the_committed_evidence_has_three_estimators_and_five_seeds_of_each_task():
    evidence = read_evidence(DOCS / "evidence")
    assert all(has_evidence(DOCS / "evidence" / name) for name in PARTS)
    for group in evidence.groups:
        assert len(group.by_estimator) >= 3
        assert len(group.seeds) >= 5
        assert {row.label for row in evidence.exams[0].rows} >= {"base model", "cold start"}
    assert evidence.sittings.rerun.startswith("egpo run ")


def test_the_page_shows_every_contrast_and_is_then_up_to_date(docs):
    assert {path.name for path in outdated(docs)} == {"results.md", "evidence_countdown.svg"}
    write(docs)
    assert outdated(docs) == []
    text = (docs / "results.md").read_text()
    assert text.startswith("# Results")
    assert text.endswith("The rest.\n")
    evidence = read_evidence(docs / "evidence")
    # sampled and greedy: cold start - base, three gains, three pairs of estimators
    assert len(evidence.tested) == 14
    assert sum(one.is_of_estimators for one in evidence.tested) == 6
    for row in (row for exam in evidence.exams for row in exam.rows):
        assert f"{100 * row.accuracy:.1f} %" in text
        assert all(f"{100 * value:.1f}" in text for value in row.by_seed)
    assert text.count("not distinguishable") + text.count("better") + text.count("worse") >= 6


def test_the_statistics_are_those_of_compare(docs):
    """Differences, intervals and p-values are equal; the correction is over the whole page."""
    evidence = read_evidence(docs / "evidence")
    runs = [run.folder.path for run in evidence.runs]
    before = [one.path for one in evidence.groups[0].before if one.label.startswith("cold start")]
    for exam, start in zip(evidence.exams, sorted(before, key=lambda path: "greedy" in path.name), strict=True):
        found = compare_runs([start, *runs], ComparisonOptions(exam=exam.name))
        expected = {(one.delta, one.low, one.high, one.p_value) for one in found.contrasts}
        ours = [one.contrast for one in evidence.tested if one.exam is exam and one.contrast.base != "base model"]
        assert {(one.delta, one.low, one.high, one.p_value) for one in ours} == expected
    contrasts = [one.contrast for one in evidence.tested]
    assert [one.adjusted_p for one in contrasts] == holm([one.p_value for one in contrasts])


def test_runs_of_another_model_are_added_apart_and_shown_as_tables(made, docs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("website.evidence.__main__.DOCS", docs)
    monkeypatch.setattr("website.evidence.__main__.commit_of", lambda name: COMMIT)
    results = docs / "results.md"
    marks = f"<!-- Tables from docs/evidence/egpo-tiny, by `make evidence`. -->\n{END}"
    results.write_text(f"{results.read_text()}{marks}The end.\n")
    before = generated(docs)[results]
    pack(strip_runs(made / "runs").files, tmp_path / "more.tar.gz")
    words = ["add", str(tmp_path / "more.tar.gz"), "--at-a-time", "2", "--wall-minutes", "60", "--part", "egpo-tiny"]
    assert main(words) == 0
    part = read_evidence(docs / "evidence" / "egpo-tiny")
    assert len(read_evidence(docs / "evidence").runs) == len(part.runs) == 6
    write(docs)
    assert outdated(docs) == []
    text = results.read_text()
    shown = text.split(END)[1]
    assert text.replace(shown, before.split(END)[1]) == before
    assert all(f"{100 * row.accuracy:.1f} %" in shown for exam in part.exams for row in exam.rows)
    assert shown.count("| countdown |") == 6  # three pairs of estimators, sampled and greedy


def edited(path, change):
    content = path.read_bytes()
    lines = gzip.decompress(content) if path.suffix == ".gz" else content
    new = change(lines.decode()).encode()
    assert new != lines
    path.write_bytes(gzip.compress(new) if path.suffix == ".gz" else new)


def test_a_changed_outcome_is_found(docs):
    write(docs)
    outcomes = docs / "evidence/countdown/mini_egpo-s1/evals/countdown-n2-t1-step2.jsonl.gz"
    edited(outcomes, lambda text: text.replace('"acc": false', '"acc": true', 1))
    with pytest.raises(InputError, match="the outcomes give another accuracy than the file says"):
        outdated(docs)
    header = outcomes.with_name("countdown-n2-t1-step2.json")
    value = json.loads(header.read_text())
    value["accuracy"]["value"] += 1 / 40
    header.write_text(json.dumps(value))
    assert outdated(docs) == [docs / "results.md"]


def test_a_changed_metric_changes_the_figure(docs):
    write(docs)
    metrics = docs / "evidence/countdown/mini_grpo-s0/metrics.jsonl.gz"
    edited(metrics, lambda text: re.sub(r'"response_length/mean": ([\d.]+)', r'"response_length/mean": 9\1', text))
    assert outdated(docs) == [docs / "images" / "evidence_countdown.svg"]


def test_a_figure_of_a_task_that_is_gone_is_removed(docs):
    (docs / "images" / "evidence_gone.svg").write_text("<svg/>")
    assert docs / "images" / "evidence_gone.svg" in write(docs)
    assert outdated(docs) == []


def test_without_evidence_the_generated_part_is_empty(docs):
    shutil.rmtree(docs / "evidence")
    assert list(generated(docs)) == [docs / name for name in ("results.md", "board.md", "verl.md")]
    assert outdated(docs) == []


def test_a_run_of_other_data_is_refused(made, docs, tmp_path):
    pack(strip_runs(made / "other" / "runs").files, tmp_path / "other.tar.gz")
    unpack(tmp_path / "other.tar.gz", docs / "evidence")
    seeds = r"the estimators have different seeds"
    with pytest.raises(InputError, match=seeds):
        read_evidence(docs / "evidence")
    folder = docs / "evidence" / "countdown"
    shutil.rmtree(folder / "mini_grpo-s1")
    (folder / "mini_other-s2").rename(folder / "mini_grpo-s1")
    for name in ("config.yaml", "provenance.json"):
        edited(
            folder / "mini_grpo-s1" / name,
            lambda text: text.replace('"seed": 2', '"seed": 1').replace("seed: 2", "seed: 1"),
        )
    with pytest.raises(InputError, match=r"not a fair comparison: data train: \w+ \(mini_grpo-s0, "):
        read_evidence(docs / "evidence")


def test_runs_from_other_weights_are_refused(docs):
    stages = docs / "evidence/countdown/mini_egpo-s0/stages.json"
    edited(stages, lambda text: re.sub(r'"weights": "\w+"', '"weights": "0"', text))
    with pytest.raises(InputError, match="the runs started from different weights"):
        read_evidence(docs / "evidence")
    digests = re.findall(r'"weights": "(\w+)"', stages.read_text())
    digests += re.findall(r'"weights": "(\w+)"', (docs / "evidence/countdown/mini_egpo-s1/stages.json").read_text())
    same = {"digests": digests, "shown_by": "Only the model card differs."}
    change_sittings(docs, lambda value: value.update(same_weights=[same]))
    assert len(read_evidence(docs / "evidence").runs) == 6


def test_an_archive_is_added_whole_or_not_at_all(made, docs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("website.evidence.__main__.DOCS", docs)
    monkeypatch.setattr("website.evidence.__main__.commit_of", lambda name: COMMIT)
    shutil.rmtree(docs / "evidence")
    archive = str(tmp_path / "mine.tar.gz")
    assert main(["strip", str(made / "runs"), archive]) == 0
    assert "6 runs" in capsys.readouterr().out
    words = ["add", archive, "--at-a-time", "2", "--wall-minutes"]
    with monkeypatch.context() as patch:
        patch.setattr("website.evidence.sittings.code_at", lambda commit: "e" * 16)
        assert main([*words, "60"]) == 2
        assert "the code of commit 000000000000 is" in capsys.readouterr().err
        assert not (docs / "evidence").exists()
    assert main([*words, "60", "--rerun", "egpo run a b c"]) == 0
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert "egpo run a b c" in (docs / "results.md").read_text()


def change_sittings(docs, change):
    path = docs / "evidence" / "sittings.yaml"
    value = yaml.safe_load(path.read_text())
    change(value)
    path.write_text(yaml.safe_dump(value))


def drop_run(value):
    value["sittings"][0]["runs"].pop()


def name_unknown_run(value):
    value["sittings"][0]["runs"].append("countdown/unknown")


def other_machine(value):
    value["sittings"][0]["hardware"] = "NVIDIA H200"


def other_code(value):
    value["sittings"][0]["code"] = "f" * 16


def misspell(value):
    value["sitings"] = []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_run, "is in 0 sittings"),
        (name_unknown_run, "countdown/unknown is in a sitting but has no folder"),
        (other_machine, "was made on .*, and its sitting says NVIDIA H200"),
        (other_code, "was made with the code [0-9a-f]{16}, and its sitting says ffff"),
        (misspell, "the file of sittings cannot be read"),
    ],
)
def test_sittings_that_do_not_agree_with_the_runs_are_refused(docs, change, said):
    change_sittings(docs, change)
    with pytest.raises(InputError, match=said):
        read_evidence(docs / "evidence")


def test_a_sitting_cannot_be_shorter_than_its_runs(docs):
    stages = docs / "evidence/countdown/mini_egpo-s0/stages.json"
    edited(stages, lambda text: re.sub(r'"time": "\d{4}', '"time": "2100', text))
    with pytest.raises(InputError, match=r"took \d+\.\d minutes, and their sitting says 60"):
        read_evidence(docs / "evidence")


def test_different_code_needs_a_proof_of_the_same_bits(docs):
    (sitting,) = read_sittings(docs / "evidence").sittings
    runs = [name for name in sitting.runs if "egpo-s1" in name]
    for name in runs:
        edited(docs / "evidence" / name / "provenance.json", lambda text: text.replace(sitting.code, "f" * 16))

    def split(value):
        first = value["sittings"][0]
        first["runs"] = [name for name in first["runs"] if name not in runs]
        value["sittings"].append({**first, "runs": runs, "code": "f" * 16})

    change_sittings(docs, split)
    with pytest.raises(InputError, match="the runs were made with different code"):
        read_evidence(docs / "evidence")
    proof = {"codes": [sitting.code, "f" * 16], "shown_by": "mini_egpo-s1 has the same metrics at both."}
    change_sittings(docs, lambda value: value.update(same_bits=[proof]))
    write(docs)
    assert proof["shown_by"] in (docs / "results.md").read_text()


def test_the_code_of_a_commit_is_known_from_the_repository(tmp_path):
    package = tmp_path / "src" / "egpo"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    first = code_digest(package)
    assert code_at("HEAD", tmp_path) == first
    (package / "recipe.yaml").write_text("name: a\n")
    assert code_digest(package) == first
    (package / "a.py").write_text("x = 2\n")
    assert code_digest(package) != first
    assert code_at(commit_of("HEAD", tmp_path), tmp_path) == first
    assert code_at("0" * 40, tmp_path) is None
    with pytest.raises(InputError, match="there is no commit `elsewhere`"):
        commit_of("elsewhere", tmp_path)


def test_a_commit_with_other_code_is_refused(docs, monkeypatch):
    monkeypatch.setattr("website.evidence.sittings.code_at", lambda commit: "e" * 16)
    with pytest.raises(InputError, match=r"the code of commit 0{12} is e{16}, and that of the runs"):
        read_evidence(docs / "evidence")
