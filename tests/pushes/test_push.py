"""`egpo push` against a hub on loopback: what arrives there, and one line for each thing that goes wrong."""

import json
import os
import socket
import subprocess
import sys

import pytest
from huggingface_hub import constants

from egpo.cli.push import push
from egpo.errors import EgpoError
from tests.pushes.hub_stand_in import READER, WRITER, Repo, running_hub
from tests.waiting import without_heartbeats


@pytest.fixture
def hub(monkeypatch):
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield hub


def in_a_process(*words, endpoint, home, **variables):
    """Run the command as a user does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "egpo", "push", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=kept | ours | variables)


def refusal(*words, **options):
    """The exit code and the one line of an error."""
    with pytest.raises(EgpoError) as caught:
        push(*words, **options)
    [fault] = caught.value.faults
    assert "\n" not in str(fault)
    return caught.value.exit_code, str(fault)


def test_a_model_arrives_whole_with_its_card_in_a_private_repository(run, hub, tmp_path):
    done = in_a_process(run, "me/first", endpoint=hub.url, home=tmp_path, HF_TOKEN=WRITER)
    assert done.returncode == 0, done.stderr
    repo, model = hub.repos["me/first"], run / "checkpoints/global_step_2/actor/huggingface"
    assert repo.private
    assert repo.files["README.md"].decode() == (run / "cards/step_2.md").read_text()
    assert {name: content for name, content in repo.files.items() if name != "README.md"} == {
        path.name: path.read_bytes() for path in model.iterdir()
    }
    assert repo.messages == ["Upload first, step 2"]
    assert f"{hub.url}/me/first (private): {len(repo.files)} files" in done.stdout
    assert "POST /me/first.git/info/lfs/objects/batch" in hub.requests
    assert not (model / "README.md").exists()  # a checkpoint's folder is as its manifest says


def test_a_second_upload_is_another_commit_and_leaves_no_old_weights(run, hub, capsys):
    old = {"figure.png": b"kept", "model-00001-of-00002.safetensors": b"old", "model.safetensors.index.json": b"{}"}
    hub.repos["me/first"] = Repo(private=True, files=dict(old))
    push(run, "me/first", step=1, message="Step one", as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 1
    assert result["upload"]["removed"] == list(old)[1:]
    assert result["upload"]["is_private"] is True
    files = hub.repos["me/first"].files
    assert {"figure.png", "model.safetensors", "README.md"} <= set(files)
    assert not set(result["upload"]["removed"]) & set(files)
    assert hub.repos["me/first"].messages == ["Step one"]


def test_public_is_asked_for(run, hub):
    push(run, "me/open", public=True)
    assert not hub.repos["me/open"].private
    before = dict(hub.repos["me/open"].files)
    assert refusal(run, "me/open", step=1) == (
        2,
        "me/open: the repository is public; give --public to upload there, or choose another repository",
    )
    assert hub.repos["me/open"].files == before


def test_a_dry_run_writes_the_card_and_asks_nobody(run, hub, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    push(run, dry_run=True)
    assert "nothing was uploaded (--dry-run)" in capsys.readouterr().out
    assert (run / "cards/step_2.md").read_text().startswith("---\nlibrary_name: transformers\n")
    assert hub.requests == []


def test_mistakes_are_one_line_and_code_2(run, hub, tmp_path, monkeypatch):
    form = "write owner/name, as in my-name/my-model"
    assert refusal(run, "no-owner") == (2, f"REPO: 'no-owner' has no owner; {form}")
    assert refusal(run, "a b/c") == (2, f"REPO: 'a b/c' is not a repository's name; {form}")
    assert refusal(run)[1].startswith("REPO: no repository; give it as owner/name")
    assert refusal(tmp_path / "nothing", "me/first")[1].startswith(f"{tmp_path}/nothing: the folder does not exist")
    for token, answer in (("hf_unknown", "(401: 'Invalid username or password.')"), (READER, "(403: 'Forbidden: ")):
        monkeypatch.setenv("HF_TOKEN", token)
        code, line = refusal(run, "me/first")
        assert (code, line.startswith(f"me/first: the hub refused {answer}")) == (2, True)
    assert hub.repos == {}


def test_no_token_is_one_line_on_stderr(run, hub, tmp_path):
    done = in_a_process(run, "me/first", endpoint=hub.url, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    first, line = without_heartbeats(done.stderr)
    assert first.startswith("reading ")
    assert line.startswith("egpo: egpo push: no token for the hub; log in with `hf auth login`, or set HF_TOKEN")
    assert hub.requests == []


def test_the_token_of_a_login_is_used_and_offline_mode_is_respected(run, hub, tmp_path):
    (tmp_path / "token").write_text(WRITER)
    done = in_a_process(run, "me/first", endpoint=hub.url, home=tmp_path)
    assert (done.returncode, hub.repos["me/first"].private) == (0, True)
    done = in_a_process(run, "me/second", endpoint=hub.url, home=tmp_path, HF_HUB_OFFLINE="1")
    assert (done.returncode, "HF_HUB_OFFLINE is set; unset it" in done.stderr) == (2, True)


def test_a_hub_that_is_not_there_or_fails_is_one_line_and_code_1(run, hub, monkeypatch):
    hub.failing, hub.status = "/api/repos/create", 500
    code, line = refusal(run, "me/first")
    assert (code, "the hub failed (500: 'out of order'); run the same command again later" in line) == (1, True)
    with socket.socket() as free:  # bound, but not listening: connections are refused
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", nobody)
        code, line = refusal(run, "me/first")
    assert (code, line.startswith(f"{nobody}: the hub cannot be reached (")) == (1, True)


def test_an_upload_that_is_refused_halfway_leaves_no_commit(run, hub):
    hub.failing, hub.status = "/lfs/", 403
    code, line = refusal(run, "me/first")
    assert (code, "the hub refused (403: 'out of order')" in line) == (2, True)
    assert (hub.repos["me/first"].files, hub.repos["me/first"].messages) == ({}, [])


def test_a_hub_without_xet_storage_is_told_with_the_variable_to_set(run, hub, monkeypatch):
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    assert refusal(run, "me/first") == (2, f"{hub.url}: this hub has no Xet storage; set HF_HUB_DISABLE_XET=1")
