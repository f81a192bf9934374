"""A recipe out of another one: it includes it, and says only what differs."""

import shlex
from pathlib import Path

import pytest

from egpo.config import load_config
from egpo.errors import ConfigError, InputError
from egpo.experiments.new_recipe import write_recipe


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "recipes" / "base.yaml"
    path.parent.mkdir()
    path.write_text("name: base\nmodel: {path: m}\ntask: {name: countdown}\nupdate: {lr: 1e-6}\n")
    return path


def test_a_new_recipe_is_the_old_one_with_a_name_of_its_own(base, tmp_path):
    made = write_recipe(tmp_path / "mine", base)
    assert made == tmp_path / "mine.yaml"
    assert made.read_text() == f"# egpo run {made}\ninclude: recipes/base.yaml\nname: mine\n"
    assert load_config(made) == load_config(base, ["name=mine"])


def test_what_differs_is_written_by_section(base, tmp_path):
    made = write_recipe(tmp_path / "recipes" / "hot.yaml", base, ["rollout.temperature=1.2", "rollout.n=4"])
    assert load_config(made) == load_config(base, ["name=hot", "rollout.temperature=1.2", "rollout.n=4"])
    assert "rollout:\n  temperature: 1.2\n  n: 4\n" in made.read_text()


def test_nothing_is_written_over_and_nothing_wrong_is_written(base, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        write_recipe(base, base)
    with pytest.raises(InputError, match=r"the recipe does not exist; did you mean `.*base.yaml`"):
        write_recipe(tmp_path / "mine", base.with_name("bass.yaml"))
    with pytest.raises(InputError, match="the folder does not exist"):
        write_recipe(tmp_path / "none" / "mine", base)
    with pytest.raises(ConfigError, match="unknown key `lrr`"):
        write_recipe(tmp_path / "mine", base, ["update.lrr=1"])
    with pytest.raises(ConfigError, match="`name` is 'my recipe'"):
        write_recipe(Path(tmp_path / "my recipe"), base)
    for nothing in (Path(""), Path("."), Path("/")):
        with pytest.raises(InputError, match="has no file name"):
            write_recipe(nothing, base)
    with pytest.raises(ConfigError, match=r"`include` cannot be an override; write `include` into the recipe"):
        write_recipe(tmp_path / "mine", base, ["include=other.yaml"])
    assert not list(tmp_path.glob("*.yaml"))


def test_a_folder_may_have_spaces_and_the_launch_line_can_be_pasted(base, tmp_path):
    (tmp_path / "my recipes").mkdir()
    made = write_recipe(tmp_path / "my recipes" / "hot", base)
    launch = made.read_text().splitlines()[0].removeprefix("# ")
    assert shlex.split(launch) == ["egpo", "run", str(made)]
    assert load_config(made).name == "hot"


def test_a_recipe_for_sft_is_launched_by_sft(base):
    base.write_text("name: base\nmodel: {path: m}\ndata: {path: d}\n")
    assert write_recipe(base.with_name("mine.yml"), base).read_text().startswith("# egpo sft ")
