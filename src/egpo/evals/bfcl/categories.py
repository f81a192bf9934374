"""The names of BFCL's categories and collections of categories, and the ids of the cases in each."""

import json
from collections.abc import Iterable
from pathlib import Path

from egpo.environments.bfcl.interpreter import data_folder
from egpo.errors import InputError, nearest


def first_cases(python: Path, categories: Iterable[str], number: int) -> dict[str, list[str]]:
    """Return the ids of the first `number` cases of each category, in BFCL's order."""
    folder = data_folder(python)
    return {name: _ids(folder / f"BFCL_v4_{name}.json")[:number] for name in categories}


def _ids(path: Path) -> list[str]:
    return [str(json.loads(line)["id"]) for line in path.read_text(encoding="utf-8").splitlines()]


NON_LIVE = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
)
LIVE = (
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
CATEGORIES = (*NON_LIVE, *LIVE, *MULTI_TURN)
COLLECTIONS = {
    "non_live": NON_LIVE,
    "live": LIVE,
    "single_turn": (*NON_LIVE, *LIVE),
    "multi_turn": MULTI_TURN,
    "all": CATEGORIES,
}
ELSEWHERE = {
    "memory": "it needs an embedding model and a vector store",
    "web_search": "it needs an API key of a search engine, and the web changes between two runs",
    "format_sensitivity": "it varies BFCL's own prompt, which function-calling models do not use",
}
"""Families of BFCL's categories that egpo cannot evaluate, each with the reason."""


def parse_categories(text: str) -> tuple[str, ...]:
    """Return the categories named in a list such as `multi_turn_base,live`, each once, in BFCL's order.

    Raise InputError with the list of all names if a name does not exist.
    """
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in CATEGORIES and word not in COLLECTIONS:
            raise _unknown(word)
    chosen = {name for word in wanted for name in COLLECTIONS.get(word, (word,))}
    if not chosen:
        raise InputError("no category is given", where="--categories", fix=_list())
    return tuple(name for name in CATEGORIES if name in chosen)


def _unknown(word: str) -> InputError:
    for family, reason in ELSEWHERE.items():
        if word.startswith(family):
            return InputError(f"`{word}` cannot be evaluated: {reason}", where="--categories", fix=_list())
    near = nearest(word, (*CATEGORIES, *COLLECTIONS))
    # Without a close match `nearest` returns a sorted list; BFCL's own order is more useful.
    fix = f"{near}; {_list()}" if near.startswith("did you mean") else _list()
    return InputError(f"there is no category `{word}`", where="--categories", fix=fix)


def _list() -> str:
    return f"choose from the categories {', '.join(CATEGORIES)} or the collections {', '.join(COLLECTIONS)}"
