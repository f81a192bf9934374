"""The folder of a demo, and the recipes that it trains."""

import pytest

from egpo.demos.demo import FAST, FULL, SHOWN, DemoFolder, demo_config
from egpo.demos.findings import BASE
from egpo.errors import InputError


def test_only_the_estimator_and_the_name_differ(tmp_path):
    configs = [demo_config(DemoFolder(tmp_path), FULL, estimator) for estimator in SHOWN]
    assert [config.algorithm.estimator for config in configs] == list(SHOWN)
    plain = {
        config.model_copy(
            update={"name": "", "algorithm": config.algorithm.model_copy(update={"estimator": "grpo"})}
        ).model_dump_json()
        for config in configs
    }
    assert len(plain) == 1
    assert configs[0].model.path == BASE


def test_a_folder_of_any_name_will_do(tmp_path):
    folder = DemoFolder(tmp_path / "a: {b} #c")
    assert demo_config(folder, FAST, "grpo").prepare.folder == str(folder.data)


def test_a_demo_of_the_same_size_continues_and_one_of_another_is_refused(tmp_path):
    folder = DemoFolder(tmp_path / "demo")
    folder.claim(FAST)
    folder.claim(FAST)
    with pytest.raises(InputError, match="another size"):
        folder.claim(FULL)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="files that no demo wrote"):
        DemoFolder(tmp_path).claim(FAST)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "demo").write_text("")
    with pytest.raises(InputError):
        DemoFolder(tmp_path / "demo").claim(FAST)


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        DemoFolder(tmp_path / "file" / "demo").claim(FAST)


def test_what_a_killed_call_left_of_its_first_file_does_not_matter(tmp_path):
    (tmp_path / ".egpo-plan.json-0badc0de").write_text("{")
    DemoFolder(tmp_path).claim(FAST)
