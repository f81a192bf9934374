"""BFCL's categories by name, and what it calls collections of them."""

from egpo.errors import InputError, nearest

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
    "web_search": "it needs a search engine's key and the web of the day: two runs never see the same",
    "format_sensitivity": "it varies BFCL's own prompt, which is not how a function-calling model is asked",
}
"""What BFCL has besides, and why it is not offered."""


def parse_categories(words: str) -> tuple[str, ...]:
    """`multi_turn_base,live`: each once, in BFCL's order. An InputError names what does not exist, with the list."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    for word in wanted:
        if word not in CATEGORIES and word not in COLLECTIONS:
            raise _unknown(word)
    chosen = {name for word in wanted for name in COLLECTIONS.get(word, (word,))}
    if not chosen:
        raise InputError("no category", where="--categories", fix=_list())
    return tuple(name for name in CATEGORIES if name in chosen)


def _unknown(word: str) -> InputError:
    for family, reason in ELSEWHERE.items():
        if word.startswith(family):
            return InputError(f"`{word}` is not offered: {reason}", where="--categories", fix=_list())
    near = nearest(word, (*CATEGORIES, *COLLECTIONS))
    # Without a near one it is a list, and sorted: BFCL's order says more.
    fix = f"{near}; {_list()}" if near.startswith("did you mean") else _list()
    return InputError(f"no category `{word}`", where="--categories", fix=fix)


def _list() -> str:
    return f"there are {', '.join(CATEGORIES)}; and together: {', '.join(COLLECTIONS)}"
