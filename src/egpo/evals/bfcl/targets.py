"""MODEL or URL on the command line: a server that answers for it, and where its evaluation belongs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from egpo.config.machine import model_folder, this_machine
from egpo.errors import InputError
from egpo.evals.asking import Patience
from egpo.evals.bfcl.keyed import without_key
from egpo.evals.candidates import HERE
from egpo.evals.places import ModelPlace, find_model
from egpo.evals.server import Server
from egpo.evals.store import Origin
from egpo.serving.commands import Serving
from egpo.serving.served import require_weights, served


@dataclass(frozen=True)
class Target:
    """`tokenizer` is a model folder. `place` where the model lies here, and `url` where it is served already, to those
    who have the `api_key`."""

    label: str
    tokenizer: str
    place: ModelPlace | None = None
    url: str | None = None
    served_name: str = ""
    api_key: str | None = field(default=None, repr=False)

    @property
    def origin(self) -> Origin:
        return Origin(self.place.model, self.place.step) if self.place else Origin(self.url or "")

    @property
    def folder(self) -> Path:
        return self.place.run.evals if self.place and self.place.run else HERE


@dataclass(frozen=True)
class Answering:
    """A server, and the name under which it knows the model."""

    url: str
    served_name: str


def find_targets(
    words: Sequence[str], served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> list[Target]:
    """Labels that two of them share give way to the words themselves: their files are named after them."""
    found = [find_target(word, served_name, tokenizer, checkpoint, api_key) for word in words]
    labels = [target.label for target in found]
    return [
        replace(target, label=word) if labels.count(target.label) > 1 else target
        for word, target in zip(words, found, strict=True)
    ]


def find_target(
    word: str, served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> Target:
    """Nothing is started yet: mistakes come first."""
    if word.startswith(("http://", "https://")):
        return _at_server(Server.at(word, api_key=api_key), served_name, tokenizer)
    place = find_model(word, checkpoint)
    require_weights(model_folder(place.model), word)
    return Target(place.label, model_folder(tokenizer or place.model), place=place)


def _at_server(server: Server, served_name: str | None, tokenizer: str | None) -> Target:
    if tokenizer is None:
        fix = "give the model's folder with --tokenizer: it says how long prompts are, and how they are written"
        raise InputError("a server does not show its tokenizer", where=server.url, fix=fix)
    names = server.model_names()
    name = served_name or server.only_model()
    if name not in names:
        _require_known(server, name, names)
    return Target(name, model_folder(tokenizer), url=server.url, served_name=name, api_key=server.api_key)


def _require_known(server: Server, name: str, names: Sequence[str]) -> None:
    """Some servers list a cache and not what they serve: then one token tells."""
    body, timeout = {"model": name, "prompt": "?", "max_tokens": 1}, server.patience.timeout_s
    try:
        reply = httpx.post(f"{server.url}/completions", json=body, headers=server.headers, timeout=timeout)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        fix = f"choose one with --model: {', '.join(names) or 'it names none'}"
        raise InputError(f"the server does not answer for `{name}` ({error})", where=server.url, fix=fix) from error


@contextmanager
def answering(target: Target, max_model_len: int | None = None, timeout_s: float = 3600.0) -> Iterator[Answering]:
    """The server at its URL, or one of our own for as long as the block lasts."""
    if target.url is not None:
        patience = Patience(timeout_s=timeout_s)
        with without_key(Server(target.url, api_key=target.api_key, patience=patience)) as url:
            yield Answering(url, target.served_name)
        return
    assert target.place is not None
    model = model_folder(target.place.model)
    # BFCL writes prompts and reads calls by itself: the server has nothing to parse.
    serving = Serving(model, Path(model).name, max_tokens=max_model_len, tool_parser="none", reasoning_parser="none")
    with served(serving, python=this_machine().environments.verl) as server:
        yield Answering(server.url, server.model_name)
