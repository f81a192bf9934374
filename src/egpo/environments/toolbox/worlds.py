"""Draws a toolbox world from a seed: a state, the user's requests, and the tools that are offered.

A world is solvable by construction: its gold trajectory is played before it is returned.
"""

import copy
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from egpo.environments.toolbox.requests import KINDS, Calls, Request, draw_state
from egpo.environments.toolbox.world_tools import DOMAINS, TOOLS, State, ToolMistake
from egpo.errors import InputError, nearest
from egpo.tool_calls.calls import Call

_MOST_DRAWS = 1_000


@dataclass(frozen=True)
class WorldKnobs:
    """How hard a world is.

    `domains`: those from which requests come. `min_requests`, `max_requests`: how many things the user asks for.
    `distractors`: tools that are offered and not needed. `chains`, `missing`, `errors`: the shares of requests in which
    the result of one call is needed for the next, in which the user leaves something out that has to be asked for, and
    in which a tool refuses at first and says what to do.
    """

    domains: tuple[str, ...] = DOMAINS
    min_requests: int = 1
    max_requests: int = 1
    distractors: int = 2
    chains: float = 0.0
    missing: float = 0.0
    errors: float = 0.0

    def __post_init__(self) -> None:
        where = "toolbox"
        for domain in self.domains:
            if domain not in DOMAINS:
                raise InputError(f"unknown domain `{domain}`", where=where, fix=nearest(str(domain), DOMAINS))
        shares = {"chains": self.chains, "missing": self.missing, "errors": self.errors}
        for name, share in shares.items():
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                raise InputError(f"{name}={share!r} is not a share", where=where, fix="give a number from 0 to 1")
        if sum(shares.values()) > 1 + 1e-9:
            fix = "give shares that add up to 1 or less; the rest are plain requests"
            raise InputError("`chains`, `missing` and `errors` add up to more than 1", where=where, fix=fix)
        if not 1 <= self.min_requests <= self.max_requests or self.distractors < 0:
            what = f"min_requests={self.min_requests}, max_requests={self.max_requests}, distractors={self.distractors}"
            raise InputError(
                f"{what} are not allowed",
                where=where,
                fix="give 1 <= min_requests <= max_requests and distractors >= 0",
            )
        for hardness, share in [("plain", 1 - sum(shares.values())), *zip(_HARDNESS, shares.values(), strict=True)]:
            if share > 1e-9 and not self.kinds(hardness):
                what = f"the domains {', '.join(self.domains)} have no requests of the kind `{hardness}`"
                raise InputError(what, where=where, fix="name more domains, or set this share to 0")

    def kinds(self, hardness: str) -> list[str]:
        """Return the kinds of requests of this hardness that need no other domains."""
        return [name for name, k in KINDS.items() if k.hardness == hardness and set(k.domains) <= set(self.domains)]


_HARDNESS = ("chain", "missing", "error")


@dataclass(frozen=True)
class World:
    """A world: the state at the start, what the user says, one text after the other, and the tools that are offered.

    `expected`: the state at the end. `needs`: calls that must be made. `answers`: what the reply to the user's text of
    that index must contain. `gold`: the gold trajectory, in which a turn is a text without calls, or calls.
    """

    state: State
    utterances: list[str]
    tools: list[str]
    expected: State
    needs: Calls
    answers: list[tuple[int, str]]
    gold: list[tuple[str, Calls]]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def key(self) -> str:
        """A digest of what is asked and of the gold trajectory, whatever else is in the world."""
        asked = json.dumps([self.utterances, self.gold], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def gold_texts(self, *, thinking: bool = True) -> list[str]:
        """Return the assistant's texts of the gold trajectory, with a short thought before each if `thinking`."""
        return [_gold_text(text, calls, thinking) for text, calls in self.gold]


def _gold_text(text: str, calls: Calls, thinking: bool) -> str:
    said = "\n".join(Call(name, arguments).hermes() for name, arguments in calls) or text
    thought = f"Call {', '.join(dict.fromkeys(name for name, _ in calls))}." if calls else "No call is needed."
    return f"<think>\n{thought}\n</think>\n\n{said}" if thinking else said


def draw_world(rng: random.Random, knobs: WorldKnobs) -> World:
    """Draw a world. The same generator state and knobs give the same world."""
    for _ in range(_MOST_DRAWS):
        world = _drawn(rng, knobs)
        if world is not None:
            return world
    raise InputError("no world could be drawn with these settings", where="toolbox", fix="ask for fewer requests")


def _drawn(rng: random.Random, knobs: WorldKnobs) -> World | None:
    """Draw requests one after the other, each for the state that the gold calls of the earlier ones leave behind.

    None if they do not go together (a file that a later request needs locked is locked from the start), or if one of
    them asks for nothing: to turn on a light that is on, say.
    """
    start = draw_state(rng)
    working, requests = copy.deepcopy(start), []
    for _ in range(rng.randint(knobs.min_requests, knobs.max_requests)):
        hardness = rng.choices(
            ("plain", *_HARDNESS),
            (1 - knobs.chains - knobs.missing - knobs.errors, knobs.chains, knobs.missing, knobs.errors),
        )[0]
        locked = len(working["locked"])
        request = KINDS[rng.choice(knobs.kinds(hardness))].draw(rng, working)
        if request is None:
            return None
        start["locked"] += working["locked"][locked:]
        requests.append((request, hardness))
        before = copy.deepcopy(working)
        if _num_refused(working, request) != (hardness == "error") or _is_idle(before, working, [request]):
            return None
    expected = copy.deepcopy(start)
    # The second time from the real beginning, with every lock in place.
    if any(_num_refused(expected, request) != (hardness == "error") for request, hardness in requests):
        return None
    asked = [request for request, _ in requests]
    return None if _is_idle(start, expected, asked) else _world(rng, knobs, start, expected, asked)


def _is_idle(before: State, after: State, requests: Sequence[Request]) -> bool:
    """Whether somebody who does nothing would have done all that was asked."""
    return before == after and not any(request.needs or request.answer for request in requests)


def _num_refused(state: State, request: Request) -> int:
    """Run the gold calls of a request on the state; return how many of them were refused."""
    refused = 0
    for name, arguments in (call for step in request.steps for call in step):
        try:
            TOOLS[name].run(state, **arguments)
        except ToolMistake:
            refused += 1
    return refused


def _world(rng: random.Random, knobs: WorldKnobs, start: State, expected: State, requests: Sequence[Request]) -> World:
    utterances: list[str] = []
    gold: list[tuple[str, Calls]] = []
    answers: list[tuple[int, str]] = []
    for request in requests:
        utterances.append(request.text)
        if request.question:
            gold.append((request.question, []))
            utterances.append(request.told)
        gold += [("", step) for step in request.steps]
        gold.append((f"It is {request.answer}." if request.answer else "Done.", []))
        answers += [(len(utterances) - 1, request.answer)] if request.answer else []
    needed = list(dict.fromkeys(name for _, calls in gold for name, _ in calls))
    others = [name for name, tool in TOOLS.items() if name not in needed and tool.domain in knobs.domains]
    tools = needed + rng.sample(others, min(knobs.distractors, len(others)))
    rng.shuffle(tools)
    needs = [call for request in requests for call in request.needs]
    return World(start, utterances, tools, expected, needs, answers, gold)


def read_world(text: str) -> World:
    """Read a world that `to_json` wrote. InputError if the text is not one."""
    try:
        value: dict[str, Any] = json.loads(text)
        pairs: dict[str, Any] = {name: [(a, b) for a, b in value.pop(name)] for name in ("needs", "answers")}
        gold = [(said, [(name, arguments) for name, arguments in calls]) for said, calls in value.pop("gold")]
        return World(**value, **pairs, gold=gold)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        fix = "use the problems of the task `toolbox`"
        raise InputError(f"`world` is not a toolbox world ({error})", where="toolbox", fix=fix) from error
