"""Answers of the corpus in episodes of the toolbox: a call after a thought, and a closing word.

    <think>
    Call price.
    </think>

    <tool_call>
    {"name": "price", "arguments": {"item": "tea"}}
    </tool_call>

then, after the tool's result,

    <think>
    No call is needed.
    </think>

    It is 12.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from egpo.environments.toolbox.requests import (
    DAYS,
    FILES,
    ITEMS,
    MOST_AMOUNT,
    MOST_COUNT,
    NAMES,
    ROOMS,
    TITLES,
    WORDS,
    Calls,
)
from egpo.environments.toolbox.worlds import World, read_world
from egpo.tasks import Problem
from egpo.tasks.episodes import TURN_BREAK

Turn = tuple[str, Calls]
"""A turn of the assistant: a text without calls, or calls."""

HABITS: Mapping[str, float] = {
    "careful": 0.32,
    "hasty": 0.46,
    "no_call": 0.06,
    "other_tool": 0.06,
    "slip": 0.05,
    "unclosed": 0.05,
}
"""Shares of the habits. `hasty` says "Done." after its first call, and guesses what it should ask for. It is the most
frequent, so greedy decoding does it too; requests that need one call and no answer stay correct. `no_call` says "Done."
at once, `other_tool` calls another of the offered tools, `slip` changes an argument, and `unclosed` omits the closing
tag."""

_VALUES: Mapping[str, Sequence[Any]] = {
    "file": FILES,
    "text": WORDS,
    "day": DAYS,
    "title": TITLES,
    "name": NAMES,
    "amount": range(1, MOST_AMOUNT + 1),
    "item": ITEMS,
    "count": range(1, MOST_COUNT + 1),
    "room": ROOMS,
    "on": (False, True),
}
_ASKED = {"How much?": "amount", "Which day?": "day", "How many?": "count", "Which file?": "file"}
_DONE: Turn = ("Done.", [])


def respond(problem: Problem, habit: str, rng: random.Random) -> str:
    """Return the assistant's texts of an episode in this habit, with `TURN_BREAK` between them."""
    world = read_world(str(problem.extra["world"]))
    turns = [turn for request in _requests(world) for turn in _answered(habit, request, world, rng)]
    texts = replace(world, gold=turns).gold_texts()
    if habit == "unclosed":
        texts = [text.removesuffix("</tool_call>").rstrip() for text in texts]
    return TURN_BREAK.join(texts)


def keys(problem: Problem) -> Iterable[str]:
    """Return the keys of the problem and of each of its requests, as a problem of its own."""
    world = read_world(str(problem.extra["world"]))
    said, requests = list(world.utterances), _requests(world)
    yield world.key
    for request in requests:
        num_said = sum(not calls for _, calls in request)  # a question is answered by the user's next words
        yield replace(world, utterances=said[:num_said], gold=request).key
        said = said[num_said:]


def _requests(world: World) -> list[list[Turn]]:
    """Return the gold turns of each request. Its last turn has no calls and is not a question."""
    requests: list[list[Turn]] = [[]]
    for text, calls in world.gold:
        requests[-1].append((text, calls))
        if not calls and text not in _ASKED:
            requests.append([])
    return requests[:-1]


def _answered(habit: str, request: list[Turn], world: World, rng: random.Random) -> list[Turn]:
    question = request[0][0]
    told = request[1:] if question in _ASKED else request
    name, arguments = told[0][1][0]
    if habit == "careful":
        return request
    # After a guess the user says what was left out, and that needs a reply too.
    replies = [_DONE, _DONE] if question in _ASKED else [_DONE]
    if habit == "no_call":
        return replies
    if habit == "hasty":
        guessed = _other(arguments, _ASKED[question], rng) if question in _ASKED else arguments
        return [("", [(name, guessed)]), *replies]
    if habit == "other_tool":
        others = [tool for tool in world.tools if tool != name]
        return [*request[: -len(told)], ("", [(rng.choice(others), arguments)]), _DONE]
    if habit == "slip" and arguments:
        return [*request[: -len(told)], ("", [(name, _other(arguments, rng.choice(list(arguments)), rng))]), _DONE]
    return [*request[: -len(told)], ("", [(name, arguments)]), _DONE]


def _other(arguments: Mapping[str, Any], argument: str, rng: random.Random) -> dict[str, Any]:
    """Return the arguments with another value of one of them."""
    values = [value for value in _VALUES[argument] if value != arguments[argument]]
    return {**arguments, argument: rng.choice(values)}
