"""A recipe over the files that it includes: merged by section, with every value's own place."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.config import config_schema, config_to_yaml, load_config, load_recipe
from egpo.config.includes import Layers, merge_layers
from egpo.config.schema import SftConfig
from egpo.errors import ConfigError

BASE = """\
model: {path: some/model, template: {enable_thinking: false}}
task: {name: countdown, settings: {mode: binary, train: 8}}
update:
  lr: 1e-6
  betas: [0.9, 0.95]
steps: 7
"""


@pytest.fixture
def recipes(tmp_path):
    """Writes files by name, and gives the path of the last one."""

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name}.yaml"
            path.write_text(text)
        return path

    return write


def faults(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [str(fault).replace(f"{path.parent}/", "") for fault in caught.value.faults]


def test_sections_are_merged_and_everything_else_is_replaced(recipes):
    mine = "include: base.yaml\ntask: {settings: {mode: shaped}}\nupdate: {betas: [0.8, 0.9]}\n"
    config = load_config(recipes(base=BASE, mine=mine))
    assert config.task.settings == {"mode": "shaped", "train": 8}
    assert config.update.betas == (0.8, 0.9)
    assert (config.update.lr, config.steps) == (1e-6, 7)


def test_later_files_win_the_including_one_last_and_overrides_over_all(recipes):
    mine = "include: [base.yaml, one.yaml, two.yaml]\nsteps: 3\n"
    path = recipes(base=BASE, one="steps: 1\nseed: 1\nname: one\n", two="steps: 2\nseed: 2\n", mine=mine)
    config = load_config(path, ["rollout.n=4"])
    assert (config.steps, config.seed, config.name, config.rollout.n) == (3, 2, "one", 4)


def test_paths_are_relative_to_the_file_that_says_them(recipes, tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "deep.yaml").write_text("seed: 5\n")
    (tmp_path / "parts" / "part.yaml").write_text("include: deep.yaml\n" + BASE)
    path = recipes(mine="include: parts/part.yaml\n")
    monkeypatch.chdir("/")
    assert load_config(path).seed == 5


def test_a_recipe_that_includes_resolves_to_one_that_does_not(recipes, tmp_path):
    config = load_config(recipes(base=BASE, mine="include: base.yaml\nseed: 9\n"))
    (tmp_path / "resolved.yaml").write_text(config_to_yaml(config))
    assert "include" not in config_to_yaml(config)
    assert load_config(tmp_path / "resolved.yaml") == config


def test_faults_name_the_file_and_the_line_in_which_they_stand(recipes):
    path = recipes(base=BASE + "rollout:\n  nn: 3\n", mine="include: base.yaml\nupdate:\n  clp: 0.2\nstps: 3\n")
    assert set(faults(path, "update.lr=-1")) == {
        "base.yaml:8 [rollout]: unknown key `nn`; did you mean `n`?",
        "mine.yaml:3 [update]: unknown key `clp`; did you mean `clip`?",
        "mine.yaml:4: unknown key `stps`; did you mean `steps`?",
        "override `update.lr=-1`: `lr` is -1; it must be greater than 0",
    }


def test_a_value_that_was_replaced_is_nobodys_fault(recipes):
    assert load_config(recipes(base=BASE + "rollout: 5\n", mine="include: base.yaml\nrollout: {n: 2}\n")).rollout.n == 2


def test_cycles_are_named_with_their_chain(recipes):
    path = recipes(a="include: b.yaml\n", b="include: [c.yaml]\n", c="include: a.yaml\n").with_name("a.yaml")
    (found,) = faults(path)
    assert (
        found
        == "c.yaml:1: the file includes itself: a.yaml -> b.yaml -> c.yaml -> a.yaml; remove one of these includes"
    )
    (found,) = faults(recipes(me="seed: 1\ninclude: ./me.yaml\n"))
    assert found.startswith("me.yaml:2: the file includes itself: me.yaml -> me.yaml")


def test_one_file_may_be_included_by_two_others(recipes):
    two = "include: base.yaml\nseed: 2\n"
    path = recipes(base=BASE, one="include: base.yaml\n", two=two, mine="include: [one.yaml, two.yaml]\n")
    assert load_config(path).seed == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "include: bass.yaml\n",
            "mine.yaml:1: the included file `bass.yaml` does not exist; did you mean `base.yaml`?",
        ),
        (
            "seed: 1\ninclude: [base.yaml, x/y.yaml]\n",
            "mine.yaml:2: the included file `x/y.yaml` does not exist: there is no folder x",
        ),
        ("include: .\n", "mine.yaml:1: the included path `.` is a folder; name each file of the folder"),
        ("include: 3\n", "mine.yaml:1: `include` is 3; it must be a file, or a list of files"),
        ("include: [base.yaml, 3]\n", "it must be a file, or a list of files"),
        ("include: ''\n", "it must be a file, or a list of files"),
        ("include: broken.yaml\n", "broken.yaml:1: the text is not YAML"),
        ("include: list.yaml\n", "list.yaml: the recipe is a list"),
        ("inclde: base.yaml\nmodel: {path: x}\ntask: {name: y}\n", "unknown key `inclde`; did you mean `include`?"),
        ("model: {path: x}\ntask: {name: y, include: base.yaml}\n", "unknown key `include`"),
    ],
)
def test_a_wrong_include_is_named_with_its_fix(recipes, text, fault):
    (found,) = faults(recipes(base=BASE, broken="a: b: c\n", list="- a\n", mine=text))
    assert fault in found


def test_recipes_for_sft_include_too(recipes):
    path = recipes(base="model: {path: m}\ndata: {path: d.jsonl}\n", mine="include: base.yaml\nepochs: 3\n")
    config = load_recipe(path)
    assert isinstance(config, SftConfig)
    assert config.epochs == 3


def test_the_schema_knows_include():
    schema = config_schema()
    for value in ({"include": "a.yaml"}, {"include": ["a.yaml", "b.yaml"], "steps": 3}):
        jsonschema.validate(json.loads(json.dumps(value)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"steps": 3}, schema)


VALUES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
TREES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def paths_of(value, path=()):
    """Of every key, those of sections too."""
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from paths_of(inner, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def layers(value, where):
    return Layers(value, dict.fromkeys(paths_of(value), where))


@given(TREES, TREES)
def test_every_key_is_there_and_its_place_is_that_of_its_value(lower, upper):
    merged = merge_layers(layers(lower, "lower"), layers(upper, "upper"))
    assert set(paths_of(merged.value)) == set(merged.set_at)
    for path, where in merged.set_at.items():
        value = at(merged.value, path)
        if not isinstance(value, dict):
            assert at({"lower": lower, "upper": upper}[where], path) == value
    for path in paths_of(upper):
        assert merged.set_at[path] == "upper"


@given(TREES)
def test_laying_a_recipe_over_itself_or_over_nothing_changes_nothing(tree):
    assert merge_layers(layers(tree, "x"), layers(tree, "x")) == layers(tree, "x")
    assert (
        merge_layers(Layers({}, {}), layers(tree, "x"))
        == merge_layers(layers(tree, "x"), Layers({}, {}))
        == layers(tree, "x")
    )
