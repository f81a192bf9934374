"""The card: what it says, what it leaves out, and text that tries to become markup."""

import json
import shutil

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from egpo.errors import InputError
from egpo.fingerprints import sealed
from egpo.pushes.model_card import card_figures, code_block, escaped, model_card
from egpo.pushes.pushed_model import find_pushed_model, verify
from egpo.runs.provenance import read_provenance
from egpo.runs.stored import read_json_object
from egpo.version import __version__
from tests.merges.sharded import Sharding, save_sharded


def card_of(run, **options):
    return model_card(find_pushed_model(run, **options), "first")


def metadata_of(card):
    return yaml.safe_load(card.split("---\n")[1])


def rows_of(card):
    """The rows of all tables, as a Markdown reader sees them."""
    rows, row, cell = [], [], None
    for token in MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2]):
        if token.type == "tr_open":
            row = []
        elif token.type == "inline" and cell is not None:
            row.append("".join(child.content for child in token.children))
        elif token.type == "tr_close":
            rows.append(row)
        cell = token if token.type in ("td_open", "th_open") else None
    return rows


def test_a_card_says_what_the_run_recorded(run):
    provenance = read_provenance(run / "provenance.json")
    card = card_of(run)
    facts = {row[0]: row[1] for row in rows_of(card) if len(row) == 2}
    assert facts["method"] == "egpo"
    assert facts["task"] == "countdown"
    assert facts["base model"] == "egpo-tiny"
    assert facts["steps"] == "2 of 2"
    assert facts["train"] == provenance.data["train"]
    assert facts["egpo"] == __version__
    assert facts["commit"].startswith(provenance.start.git.commit)
    assert facts["egpo: lam"] == "0.4"
    assert " ".join(provenance.start.command[1:]) in card
    assert "the checkpoint of step 2" in card


def test_figures_are_those_of_the_step_and_of_the_base_on_the_same_problems(run):
    stored = read_json_object(run / "evals" / "countdown-step2.json")
    figures = card_figures(find_pushed_model(run))
    assert [(one.model, one.name) for one in figures] == [
        ("this model", "accuracy"),
        ("this model", "mean score"),
        ("base model", "accuracy"),
        ("base model", "mean score"),
    ]
    accuracy = stored["accuracy"]
    assert (figures[0].value, figures[0].low, figures[0].high) == tuple(accuracy[k] for k in ("value", "low", "high"))
    [row] = [row for row in rows_of(card_of(run)) if row[1:3] == ["this model", "accuracy"]]
    assert row[3] == f"{100 * accuracy['value']:.1f} %"
    assert row[4] == f"{100 * accuracy['low']:.1f} % to {100 * accuracy['high']:.1f} %"
    assert row[5] == "100"


def test_the_hub_reads_the_models_own_figures(run):
    metadata = metadata_of(card_of(run))
    [result] = metadata["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["accuracy", "mean_score"]
    assert (metadata["library_name"], metadata["tags"]) == ("transformers", ["egpo"])
    assert "base_model" not in metadata  # the tiny model is on no hub


def test_a_base_on_the_hub_is_named_and_a_folder_is_shown_by_its_last_part(run):
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("path: egpo-tiny", "path: Qwen/Qwen3-0.6B"))
    assert metadata_of(card_of(run))["base_model"] == "Qwen/Qwen3-0.6B"
    config.write_text(text.replace("path: egpo-tiny", "path: /home/me/secret/some-model"))
    card = card_of(run)
    assert "base_model" not in metadata_of(card)
    assert "some\\-model" in card
    assert "secret" not in card


def test_what_is_unknown_is_left_out(run):
    shutil.rmtree(run / "evals")
    (run / "provenance.json").unlink()
    (run / "config.yaml").write_text("name: first\n")
    card = card_of(run)
    assert "None" not in card
    assert "model-index" not in metadata_of(card)
    for title in ("## Evaluation", "## Data", "## Software", "## Command"):
        assert title not in card
    assert [row[0] for row in rows_of(card)] == ["", "method", "steps"]


def test_an_evaluation_without_an_interval_has_none(run):
    path = run / "evals" / "countdown-step2.json"
    value = json.loads(path.read_text())
    value["accuracy"] |= {"low": None, "high": None}
    path.write_text(json.dumps(sealed(value | {"mean_score": None})))
    [row] = [row for row in rows_of(card_of(run)) if row[1:3] == ["this model", "accuracy"]]
    assert row[4] == ""


HOSTILE = [
    "<script>alert(1)</script>",
    "![x](http://evil.example/x.png)",
    "[click](javascript:alert(1))",
    "a | b\n| c | d |\n\n# heading",
    "---\nlicense: mit\n---",
    "`code` ``` fence",
    "https://evil.example www.evil.example",
    "&lt;b&gt; &amp; $x^2$ ~~no~~ **bold** _it_",
    "\x1b[31mred\u202ereversed\u200b",
    "<!-- hidden -->",
    "@somebody #1 :smile:",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_recorded_text_is_never_markup(run, text):
    path = run / "evals" / "countdown-step2.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(sealed(value | {"task": text, "split": text})))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["task"]["name"] = config["algorithm"]["estimator"] = text
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    value = json.loads((run / "provenance.json").read_text())
    value["start"]["command"] = ["egpo", "train", text]
    (run / "provenance.json").write_text(json.dumps(sealed(value)))
    card = card_of(run)
    assert set(metadata_of(card)) <= {"library_name", "pipeline_tag", "tags", "model-index"}
    tokens = MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])
    kinds = {inner.type for token in tokens for inner in [token, *(token.children or ())]}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "strong_open", "em_open"}
    assert [token.content for token in tokens if token.type == "inline" and token.content.startswith("heading")] == []
    assert sum(token.type == "fence" for token in tokens) == 1
    assert "https://evil" not in card.replace(code_block(f"egpo train {text}"), "").split("---\n", 2)[2]


@given(st.text(max_size=200))
def test_escaped_text_reads_as_it_was(text):
    """Apart from characters that are not shown: they become spaces."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").parseInline("x " + escaped(text))[0]
    shown = "".join(child.content for child in rendered.children)
    plain = " ".join(text.split())
    if plain.isprintable():
        assert " ".join(shown.split()) == " ".join(f"x {plain}".split())
    assert {child.type for child in rendered.children} <= {"text", "text_special"}


def test_a_checkpoint_is_chosen_by_step_and_by_its_own_folder(run):
    assert find_pushed_model(run).step == 2
    assert find_pushed_model(run, step=1).step == 1
    assert find_pushed_model(run / "checkpoints" / "global_step_1").step == 1
    with pytest.raises(InputError, match="no checkpoint of step 9"):
        find_pushed_model(run, step=9)


def test_only_the_files_of_a_model_are_uploaded(run):
    model = run / "checkpoints/global_step_2/actor/huggingface"
    for name in ("run_me.py", "pytorch_model.bin", ".hidden.json", "README.md"):
        (model / name).write_text("{}")
    (model / "folder").mkdir()
    found = find_pushed_model(run)
    assert {path.name for path in found.files} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert found.left_out == [".hidden.json", "folder", "pytorch_model.bin", "run_me.py"]


def test_a_run_without_a_checkpoint_and_a_model_without_a_run_are_refused(run, tmp_path):
    shutil.copytree(run / "checkpoints/global_step_2/actor/huggingface", tmp_path / "model")
    with pytest.raises(InputError, match="the folder is already a model"):
        find_pushed_model(tmp_path / "model")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    with pytest.raises(InputError, match="the run has no checkpoint yet"):
        find_pushed_model(run)
    with pytest.raises(InputError, match="the folder does not exist"):
        find_pushed_model(tmp_path / "nothing")


def test_shards_are_pushed_once_they_are_merged(run):
    from egpo.merges.merge import merge

    save_sharded(run / "checkpoints/global_step_3/actor", Sharding(2))
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text("3")
    with pytest.raises(InputError, match=r"step 3 is in shards; merge it into a model first: egpo merge .*step_3"):
        find_pushed_model(run)
    merge(run, run / "merged" / "step_3", step=3)
    found = find_pushed_model(run)
    assert (found.folder.name, found.step) == ("step_3", 3)
    assert "merge.json" not in {path.name for path in found.files}
    verify(found)


def test_a_merged_model_elsewhere_knows_its_run(run, tmp_path):
    from egpo.merges.merge import merge

    merge(run, tmp_path / "merged", step=1)
    found = find_pushed_model(tmp_path / "merged")
    assert (found.folder, found.step, found.run.folder.path) == (tmp_path / "merged", 1, run)
    shutil.move(run, tmp_path / "moved")
    with pytest.raises(InputError, match="its run is gone"):
        find_pushed_model(tmp_path / "merged")


def test_a_file_that_was_changed_is_not_uploaded(run):
    weights = run / "checkpoints/global_step_2/actor/huggingface/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match="was changed after it was written"):
        verify(find_pushed_model(run))
