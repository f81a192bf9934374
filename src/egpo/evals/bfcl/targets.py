"""MODEL or URL on the command line: a server that answers for it, and where its evaluation belongs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from egpo.assets import resolve_model
from egpo.errors import EgpoError, InputError
from egpo.evals.candidates import HERE
from egpo.evals.places import ModelPlace, find_model
from egpo.evals.store import Origin
from egpo.serving.commands import Serving
from egpo.serving.served import served


@dataclass(frozen=True)
class Target:
    """`tokenizer` is a model folder. `place` where the model lies here, and `url` where it is served already."""

    label: str
    tokenizer: str
    place: ModelPlace | None = None
    url: str | None = None
    served_name: str = ""

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


def find_target(word: str, served_name: str | None, tokenizer: str | None, checkpoint: str) -> Target:
    """Nothing is started yet: mistakes come first."""
    if word.startswith(("http://", "https://")):
        if tokenizer is None:
            fix = "give the model's folder with --tokenizer: it says how long prompts are, and how they are written"
            raise InputError("a server does not show its tokenizer", where=word, fix=fix)
        url = word.rstrip("/")
        url = url if url.endswith("/v1") else f"{url}/v1"
        name = served_name or _only_name(url)
        return Target(name, str(resolve_model(tokenizer)), url=url, served_name=name)
    place = find_model(word, checkpoint)
    folder = str(resolve_model(tokenizer or place.model))
    if not Path(folder, "config.json").is_file():
        raise InputError(f"no model folder at `{word}`", where="egpo eval bfcl", fix="give a model, a run, or a URL")
    return Target(place.label, folder, place=place)


@contextmanager
def answering(target: Target, max_model_len: int | None = None) -> Iterator[Answering]:
    """The server at its URL, or one of our own for as long as the block lasts."""
    if target.url is not None:
        yield Answering(target.url, target.served_name)
        return
    assert target.place is not None
    model = resolve_model(target.place.model)
    # BFCL writes prompts and reads calls by itself: the server has nothing to parse.
    serving = Serving(model, Path(model).name, max_tokens=max_model_len, tool_parser="none", reasoning_parser="none")
    with served(serving) as server:
        yield Answering(server.url, server.model_name)


def _only_name(url: str) -> str:
    try:
        names = [str(model["id"]) for model in httpx.get(f"{url}/models", timeout=10).raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise EgpoError(f"the server does not answer ({error})", where=url, fix="start it, or mend the URL") from error
    if len(names) != 1:
        fix = f"choose one with --model: {', '.join(names) or 'it names none'}"
        raise InputError(f"the server has {len(names)} models", where=url, fix=fix)
    return names[0]
