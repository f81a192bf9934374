"""Files, directories and the hub."""

import builtins
import json
import sys
import types

import pytest

from egpo.data.sources import is_hub_name, open_source
from egpo.errors import InputError


@pytest.mark.parametrize("name", ["openai/gsm8k", "openai/gsm8k:main", "Jiayi-Pan/Countdown-Tasks-3to4"])
def test_hub_names(name):
    assert is_hub_name(name)


@pytest.mark.parametrize("name", ["gsm8k", "/tmp/x", "./a/b", "a/b/c", "../a", "a/b:c:d", ""])
def test_what_is_no_hub_name(name):
    assert not is_hub_name(name)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    plain = builtins.__import__

    def no_datasets(name, *args, **kwargs):
        if name == "datasets":
            raise ModuleNotFoundError("No module named 'datasets'", name="datasets")
        return plain(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_datasets)
    with pytest.raises(InputError, match=r"pip install datasets"):
        open_source("openai/gsm8k")


class ClientError(Exception):
    """The client's own exceptions share no ancestor with ours."""


def hub_with(monkeypatch, splits=("train", "test"), error=None):
    """The two calls of the hub's client that are used, in place of a network."""

    def load_dataset(name, config, *, split, streaming):
        assert streaming
        return iter([{"name": name, "config": config, "split": split}])

    def split_names(name, config):
        if error:
            raise error
        return list(splits)

    module = types.ModuleType("datasets")
    module.load_dataset, module.get_dataset_split_names = load_dataset, split_names
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_gives_both_splits_under_the_tasks_configuration(monkeypatch):
    hub_with(monkeypatch)
    source = open_source("openai/gsm8k", "main")
    (record,) = source.readers["test"]()
    assert record.value == {"name": "openai/gsm8k", "config": "main", "split": "test"}
    assert record.where == "openai/gsm8k (test), row 0"
    (record,) = open_source("openai/gsm8k:socratic", "main").readers["train"]()
    assert record.value["config"] == "socratic"


def test_a_hub_set_with_one_split_is_undivided(monkeypatch):
    hub_with(monkeypatch, splits=("train",))
    assert set(open_source("a/b").readers) == {"all"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ClientError("Couldn't reach it (offline mode is enabled)"), "cannot be reached.*download the file"),
        (ClientError("Dataset 'a/b' doesn't exist"), "refused the request.*check the name"),
        (ClientError(""), "refused the request"),
    ],
)
def test_what_the_hub_says_is_explained(monkeypatch, error, message):
    hub_with(monkeypatch, error=error)
    with pytest.raises(InputError, match=message):
        open_source("a/b")


def test_a_directory_has_a_file_per_split(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"a": 1}))
    with pytest.raises(InputError, match="no `test` file"):
        open_source(str(tmp_path))
    (tmp_path / "test.json").write_text(json.dumps([{"a": 2}]))
    source = open_source(str(tmp_path))
    assert [record.value for split in ("train", "test") for record in source.readers[split]()] == [{"a": 1}, {"a": 2}]
    (tmp_path / "test.jsonl").write_text("{}")
    with pytest.raises(InputError, match="more than one `test` file"):
        open_source(str(tmp_path))


def test_a_missing_file_is_not_taken_for_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"data/rows.jsonl: no such file"):
        open_source("data/rows.jsonl")


def test_the_real_client_reads_a_set_by_its_name(tmp_path, monkeypatch):
    """`datasets` takes a folder `owner/name` under the current one for the set of that name: no network is needed."""
    folder = tmp_path / "acme" / "tiny"
    folder.mkdir(parents=True)
    for split, count in (("train", 3), ("test", 2)):
        lines = [json.dumps({"question": f"{split} {i}", "answer": f"#### {i}"}) for i in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source = open_source("acme/tiny")
    assert [record.value["question"] for record in source.readers["train"]()] == ["train 0", "train 1", "train 2"]
    assert len(list(source.readers["test"]())) == 2


def test_the_real_client_without_a_network_is_explained(monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"--source acme/unknown-set: the hub .* download the file on another machine"):
        open_source("acme/unknown-set")
