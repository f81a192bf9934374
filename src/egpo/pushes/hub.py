"""Upload a model and its card to a Hugging Face hub, in one commit.

The hub is the one that `HF_ENDPOINT` names, by default huggingface.co. The token is `HF_TOKEN`, or the one that
`hf auth login` stored. A new repository is private unless it is asked to be public, and nothing is uploaded to a public
one unless that was asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # its public name is loaded lazily

from egpo.errors import EgpoError, InputError, shortened
from egpo.pushes.pushed_model import PushedModel

CARD = "README.md"
_WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
REPLY_S = 300.0
"""Seconds for which the hub may send nothing, or take nothing, in one request. huggingface_hub has no limit."""
_XET = "xet-write-token"
"""Part of the address that the hub's newer upload protocol asks first."""


@dataclass(frozen=True)
class Pushed:
    """The result of an upload: the repository, its visibility, the commit, and what it contains."""

    repo: str
    url: str
    commit: str
    is_private: bool
    num_files: int
    num_bytes: int
    removed: tuple[str, ...]


def require_repo(repo: str) -> str:
    """Return the name of a repository. InputError unless it has the form `owner/name`."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"{shortened(repo)} is not a repository's name", where="REPO", fix=_FORM) from error
    if "/" not in repo:
        raise InputError(f"{shortened(repo)} has no owner", where="REPO", fix=_FORM)
    return repo


_FORM = "write owner/name, as in my-name/my-model"


def push(model: PushedModel, card: str, repo: str, *, token: str, public: bool, message: str) -> Pushed:
    """Create the repository if it does not exist, and upload the model's files and the card.

    Weights of an earlier upload that the model does not have are removed: transformers might load those instead.
    """
    api = HfApi(token=token)
    with _errors_of_the_hub(api.endpoint, repo), _limited_requests():
        is_private, present = _open_repo(api, repo, public)
        names = {CARD, *(path.name for path in model.files)}
        stale = sorted(name for name in present - names if name.endswith(_WEIGHT_FILES) and "/" not in name)
        additions = [CommitOperationAdd(path.name, str(path)) for path in model.files]
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(CARD, card.encode()),
            *additions,
            *(CommitOperationDelete(name, is_folder=False) for name in stale),
        ]
        done = api.create_commit(repo, operations, commit_message=message)
    return Pushed(
        repo=repo,
        url=f"{api.endpoint}/{repo}",
        commit=done.oid,
        is_private=is_private,
        num_files=len(names),
        num_bytes=model.num_bytes + len(card.encode()),
        removed=tuple(stale),
    )


def require_token() -> str:
    """Return the token of the hub. InputError if there is none."""
    token = get_token()
    if token is None:
        fix = "log in with `hf auth login`, or set HF_TOKEN to a token with write access; --dry-run needs none"
        raise InputError("no token for the hub", where="egpo push", fix=fix)
    return token


def _open_repo(api: HfApi, repo: str, public: bool) -> tuple[bool, set[str]]:
    """Return whether the repository is private, and the names of its files. It is created if it does not exist."""
    try:
        info = api.model_info(repo, timeout=REPLY_S)
    except RepositoryNotFoundError as error:
        if error.response.status_code != 404:  # 401: a token that the hub does not know
            raise
        api.create_repo(repo, private=not public)
        info = api.model_info(repo, timeout=REPLY_S)
    if not info.private and not public:
        fix = "give --public to upload there, or choose another repository"
        raise InputError("the repository is public", where=repo, fix=fix)
    return bool(info.private), {file.rfilename for file in info.siblings or ()}


@contextmanager
def _limited_requests() -> Iterator[None]:
    """Limit the requests of huggingface_hub's shared client during the block."""
    client = get_session()
    before = client.timeout
    client.timeout = httpx.Timeout(REPLY_S)
    try:
        yield
    finally:
        client.timeout = before


@contextmanager
def _errors_of_the_hub(endpoint: str, repo: str) -> Iterator[None]:
    """Raise InputError for what the hub refuses, and EgpoError if it cannot be reached or fails."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise InputError("HF_HUB_OFFLINE is set", where="egpo push", fix="unset it, or use --dry-run") from error
    except EgpoError:
        raise
    except (HfHubHTTPError, httpx.TransportError, RuntimeError, ValueError, OSError) as error:
        raise _translated(error, endpoint, repo) from error


def _translated(error: Exception, endpoint: str, repo: str) -> EgpoError:
    # The uploading threads wrap the error of the file that failed.
    cause = error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception) else error
    if isinstance(cause, HfHubHTTPError):
        return _refusal(cause, repo)
    if isinstance(cause, ConnectionError) and _XET in str(cause) and "404" in str(cause):
        fix = "set HF_HUB_DISABLE_XET=1"
        return InputError("this hub has no Xet storage", where=endpoint, fix=fix)
    if isinstance(cause, httpx.TransportError | ConnectionError):
        fix = "check the network and HF_ENDPOINT, then run the same command again"
        said = _first_line(cause) or type(cause).__name__
        return EgpoError(f"the hub cannot be reached ({said})", where=endpoint, fix=fix)
    if isinstance(cause, OSError):
        return EgpoError(f"a file of the model cannot be read ({_first_line(cause)})", where=repo)
    said = _first_line(cause) or type(cause).__name__
    return EgpoError(f"the upload failed ({type(cause).__name__}: {said})", where=repo)


def _refusal(error: HfHubHTTPError, repo: str) -> EgpoError:
    reply = error.response
    said = f"{reply.status_code}: {shortened(error.server_message or reply.reason_phrase, 200)}"
    if reply.status_code >= 500 or reply.status_code in (408, 429):
        fix = "run the same command again later"
        return EgpoError(f"the hub failed ({said})", where=str(reply.url), fix=fix)
    fixes = {
        401: "log in again with `hf auth login`, or set HF_TOKEN to a valid token",
        403: "use a token with write access to this owner's repositories",
    }
    return InputError(f"the hub refused ({said})", where=repo, fix=fixes.get(reply.status_code, ""))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
