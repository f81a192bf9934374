"""Old spellings: understood in recipes, overrides and on verl's command line, with one notice each."""

import pytest

from egpo.config import load_config
from egpo.config.load import settings_with_origins
from egpo.config.old_spellings import OLD_KEYS, OLD_VALUES
from egpo.errors import ConfigError
from egpo.verl.settings import read_settings

BASE = "model: {path: m}\ntask: {name: countdown}\n"
VALUES = {"egpo.lam": 0.3, "egpo.alpha": 3.0, "egpo_calibrated.eps": 1e-4, "egpo_calibrated.lambda_min": 0.8,
          "egpo_calibrated.lambda_max": 1.5}  # fmt: skip


def nested(dotted, value):
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return value


def value_of(config, dotted):
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


@pytest.fixture
def recipe(tmp_path):
    def write(text, name="a.yaml"):
        path = tmp_path / name
        path.write_text(BASE + text)
        return path

    return write


@pytest.mark.parametrize("row", OLD_KEYS, ids=lambda row: row.old)
def test_an_old_key_means_the_present_one_in_a_file_and_in_an_override(row, recipe, capsys):
    wanted = VALUES[row.recipe]
    section, _, key = f"algorithm.{row.old}".rpartition(".")
    text = f"algorithm:\n  {row.old}: {wanted}\n" if section == "algorithm" else (
        f"algorithm:\n  {section.partition('.')[2]}:\n    {key}: {wanted}\n"
    )  # fmt: skip
    by_file = load_config(recipe(text))
    notice = f"egpo: notice: the old key algorithm.{row.old} is read as algorithm.{row.recipe}\n"
    assert capsys.readouterr().err == notice
    by_override = load_config(recipe(""), [f"algorithm.{row.old}={wanted}"])
    assert value_of(by_file.algorithm, row.recipe) == wanted
    assert by_file == by_override
    assert capsys.readouterr().err == "", "each notice comes once"


@pytest.mark.parametrize("section", ["egpo", "egpo_calibrated"])
def test_an_old_value_means_the_present_one(section, recipe, capsys):
    by_file = load_config(recipe(f"algorithm: {{{section}: {{entropy_mode: joint}}}}\n"))
    key = f"algorithm.{section}.entropy_mode"
    assert capsys.readouterr().err == f"egpo: notice: the old value {key}=joint is read as {key}=response\n"
    by_override = load_config(recipe(""), [f"{key}=joint"])
    by_section = load_config(recipe(""), [f"algorithm={{{section}: {{entropy_mode: joint}}}}"])
    assert by_file == by_override == by_section
    assert getattr(by_file.algorithm, section).entropy_mode == "response"


def test_later_layers_win_whatever_their_spelling(recipe):
    recipe("algorithm: {egpo: {lam: 0.1}}\n", "base.yaml")
    over = recipe("include: base.yaml\nalgorithm: {egpo_lambda: 0.2}\n")
    assert load_config(over).algorithm.egpo.lam == 0.2
    assert load_config(over, ["algorithm.egpo.lam=0.3"]).algorithm.egpo.lam == 0.3
    assert load_config(over, ["algorithm.egpo.lam=0.3", "algorithm.egpo_lambda=0.4"]).algorithm.egpo.lam == 0.4


def test_two_spellings_in_one_file_that_differ_are_refused(recipe):
    with pytest.raises(ConfigError) as caught:
        load_config(recipe("algorithm:\n  egpo_lambda: 0.2\n  egpo: {lam: 0.3}\n"))
    assert "a.yaml:4: `algorithm.egpo_lambda` is 0.2 and `algorithm.egpo.lam` is 0.3" in str(caught.value)
    assert load_config(recipe("algorithm: {egpo_lambda: 0.3, egpo: {lam: 0.3}}\n")).algorithm.egpo.lam == 0.3


def test_a_value_keeps_its_line_and_a_fault_names_it(recipe):
    path = recipe("algorithm:\n  egpo_lambda: 0.2\n")
    (origin,) = [one.origin for one in settings_with_origins(path) if one.key == "algorithm.egpo.lam"]
    assert origin == f"{path}:4"
    with pytest.raises(ConfigError, match=r"a.yaml:4 \[algorithm.egpo\]: `lam` is -1"):
        load_config(recipe("algorithm:\n  egpo_lambda: -1\n"))


def test_what_is_no_section_is_left_to_the_schema(recipe):
    with pytest.raises(ConfigError, match="a section of keys and values"):
        load_config(recipe("algorithm: {egpo: 3, egpo_lambda: 0.2}\n"))
    with pytest.raises(ConfigError):
        load_config(recipe("algorithm: 3\n"), ["algorithm.egpo_lambda=0.2"])


@pytest.mark.parametrize("row", [row for row in OLD_KEYS if not row.old.startswith("egpo_calibrated")])
def test_the_plug_in_reads_the_same_table(row, capsys):
    value = VALUES[row.recipe]
    estimator = row.recipe.partition(".")[0]
    key = row.verl.removeprefix("egpo.")
    arguments = read_settings({"adv_estimator": estimator, **nested(row.old, value)}).arguments
    assert arguments[key] == value
    old = (
        f"egpo: notice: the old key algorithm.{row.old} is read as algorithm.{row.verl}\n"
        if row.old != row.verl
        else ""
    )
    assert capsys.readouterr().err == old


def test_the_plug_in_reads_old_values(capsys):
    assert OLD_VALUES == {"entropy_mode": {"joint": "response"}}
    assert read_settings({"adv_estimator": "egpo", "egpo": {"entropy_mode": "joint"}}).segment == "response"
    assert (
        "the old value algorithm.egpo.entropy_mode=joint is read as algorithm.egpo.entropy_mode=response"
        in capsys.readouterr().err
    )
