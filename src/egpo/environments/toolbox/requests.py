"""What a user of a toolbox world may ask for.

A `Request` has the user's words, the gold calls message by message, and what its answer must contain. `KINDS` is the
table of kinds: to add one, write a function that draws it and add a row. An edit here changes generated problems:
increase `Toolbox.version`, too.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from egpo.environments.toolbox.world_tools import State

Calls = list[tuple[str, dict[str, Any]]]

NAMES = (
    "ada", "ben", "chen", "dora", "emil", "gita", "hugo", "ines", "jon", "kim", "lea", "max", "nina", "omar",
    "pia", "rosa",
)  # fmt: skip
ITEMS = (
    "tea", "milk", "rice", "soap", "jam", "salt", "corn", "figs", "nuts", "oil", "eggs", "bread", "beans",
    "honey", "flour", "plums",
)  # fmt: skip
WORDS = (
    "sun", "moon", "tree", "bird", "rain", "snow", "fire", "sand", "leaf", "star", "ship", "road", "cat", "dog",
    "fish", "hat", "coat", "shoe", "ring", "lamp", "desk", "door", "wall", "bell", "rock", "hill", "lake",
    "pond", "farm", "barn", "gate", "path", "seed", "root", "stem", "bark", "wind", "cloud", "storm", "frost",
    "boat", "sail", "rope", "knot", "wool", "silk",
)  # fmt: skip
FILES = tuple(f"{letter}.txt" for letter in "abcdefghijkl")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TITLES = (
    "gym", "lunch", "call", "class", "trip", "party", "exam", "show", "run", "tea", "walk", "swim", "date",
    "game", "talk", "test",
)  # fmt: skip
ROOMS = ("hall", "attic", "bath", "study", "porch", "shed", "den", "loft")
MOST_AMOUNT, MOST_PRICE, MOST_COUNT = 99, 49, 19


@dataclass(frozen=True)
class Request:
    """One thing that the user wants.

    `steps`: the gold calls, one list for each message of the assistant. `needs`: calls that must be made though they
    change nothing. `answer`: what the closing message must contain. `question` and `told`: what the assistant has to
    ask because the request leaves it out, and the user's reply.
    """

    text: str
    steps: list[Calls]
    needs: Calls = field(default_factory=list)
    answer: str = ""
    question: str = ""
    told: str = ""


Draw = Callable[[random.Random, State], Request | None]


@dataclass(frozen=True)
class RequestKind:
    """A kind of request: the domains that it needs, how hard it is ("plain", "chain", "missing", "error"), and a
    function that draws one for a state, or None if the state does not allow it."""

    domains: tuple[str, ...]
    hardness: str
    draw: Draw


def draw_state(rng: random.Random) -> State:
    """Draw the state of all domains before the first request."""
    return {
        "files": {file: rng.choice(WORDS) for file in rng.sample(FILES, 3)},
        "locked": [],
        "notes": rng.sample(WORDS, 2),
        "events": {day: sorted(rng.sample(TITLES, 1)) for day in DAYS},
        "bank": {"me": rng.randint(200, 300), **{name: rng.randint(1, MOST_AMOUNT) for name in rng.sample(NAMES, 4)}},
        "prices": {item: rng.randint(2, MOST_PRICE) for item in rng.sample(ITEMS, 4)},
        "cart": {},
        "lights": {room: rng.random() < 0.5 for room in ROOMS},
    }


def _payee(rng: random.Random, state: State) -> str:
    return str(rng.choice([name for name in state["bank"] if name != "me"]))


def _amount(rng: random.Random, state: State) -> int | None:
    return rng.randint(1, min(MOST_AMOUNT, state["bank"]["me"])) if state["bank"]["me"] else None


def _one(tool: str, /, **arguments: Any) -> list[Calls]:
    return [[(tool, arguments)]]


def _write(rng: random.Random, state: State) -> Request | None:
    file, word = rng.choice(FILES), rng.choice(WORDS)
    return Request(f"Write {word} to {file}.", _one("write", file=file, text=word))


def _read(rng: random.Random, state: State) -> Request | None:
    if not state["files"]:
        return None
    file = rng.choice(sorted(state["files"]))
    calls = _one("read", file=file)
    return Request(f"What is in {file}?", calls, calls[0], answer=state["files"][file])


def _delete(rng: random.Random, state: State) -> Request | None:
    free = sorted(set(state["files"]) - set(state["locked"]))
    return Request(f"Delete {(file := rng.choice(free))}.", _one("delete", file=file)) if free else None


def _note(rng: random.Random, state: State) -> Request | None:
    word = rng.choice(WORDS)
    return Request(f"Note down {word}.", _one("add_note", text=word))


def _drop(rng: random.Random, state: State) -> Request | None:
    return (
        Request(f"Drop the note {(n := rng.choice(state['notes']))}.", _one("drop_note", text=n))
        if state["notes"]
        else None
    )


def _event(rng: random.Random, state: State) -> Request | None:
    day, title = rng.choice(DAYS), rng.choice(TITLES)
    return Request(f"Add {title} on {day}.", _one("add_event", day=day, title=title))


def _send(rng: random.Random, state: State) -> Request | None:
    amount = _amount(rng, state)
    name = _payee(rng, state)
    return (amount and Request(f"Send {amount} to {name}.", _one("send", name=name, amount=amount))) or None


def _balance(rng: random.Random, state: State) -> Request | None:
    name = _payee(rng, state)
    calls = _one("balance", name=name)
    return Request(f"How much does {name} have?", calls, calls[0], answer=str(state["bank"][name]))


def _buy(rng: random.Random, state: State) -> Request | None:
    item, count = rng.choice(sorted(state["prices"])), rng.randint(1, MOST_COUNT)
    return Request(f"Buy {count} {item}.", _one("buy", item=item, count=count))


def _price(rng: random.Random, state: State) -> Request | None:
    item = rng.choice(sorted(state["prices"]))
    calls = _one("price", item=item)
    return Request(f"What is the price of {item}?", calls, calls[0], answer=str(state["prices"][item]))


def _light(rng: random.Random, state: State) -> Request | None:
    room, on = rng.choice(ROOMS), rng.random() < 0.5
    return Request(f"Turn {'on' if on else 'off'} the light in the {room}.", _one("light", room=room, on=on))


def _write_price(rng: random.Random, state: State) -> Request | None:
    item, file = rng.choice(sorted(state["prices"])), rng.choice(FILES)
    steps = _one("price", item=item) + _one("write", file=file, text=str(state["prices"][item]))
    return Request(f"Write the price of {item} to {file}.", steps, steps[0])


def _send_price(rng: random.Random, state: State) -> Request | None:
    item, name = rng.choice(sorted(state["prices"])), _payee(rng, state)
    if state["prices"][item] > state["bank"]["me"]:
        return None
    steps = _one("price", item=item) + _one("send", name=name, amount=state["prices"][item])
    return Request(f"Send {name} the price of {item}.", steps, steps[0])


def _copy(rng: random.Random, state: State) -> Request | None:
    if not state["files"]:
        return None
    file, other = rng.choice(sorted(state["files"])), rng.choice(FILES)
    if file == other or other in state["locked"]:
        return None
    steps = _one("read", file=file) + _one("write", file=other, text=state["files"][file])
    return Request(f"Copy {file} to {other}.", steps, steps[0])


def _note_event(rng: random.Random, state: State) -> Request | None:
    alone = [day for day in DAYS if len(state["events"][day]) == 1]
    if not alone:
        return None
    day = rng.choice(alone)
    steps = _one("events", day=day) + _one("add_note", text=state["events"][day][0])
    return Request(f"Note down what is on {day}.", steps, steps[0])


def _cancel_all(rng: random.Random, state: State) -> Request | None:
    busy = [day for day in DAYS if state["events"][day]]
    if not busy:
        return None
    day = rng.choice(busy)
    steps = [*_one("events", day=day), [("cancel", {"day": day, "title": title}) for title in state["events"][day]]]
    return Request(f"Cancel all on {day}.", steps)


def _send_missing(rng: random.Random, state: State) -> Request | None:
    amount, name = _amount(rng, state), _payee(rng, state)
    if amount is None:
        return None
    return Request(
        f"Send money to {name}.", _one("send", name=name, amount=amount), question="How much?", told=f"{amount}."
    )


def _event_missing(rng: random.Random, state: State) -> Request | None:
    day, title = rng.choice(DAYS), rng.choice(TITLES)
    return Request(f"Add {title}.", _one("add_event", day=day, title=title), question="Which day?", told=f"On {day}.")


def _buy_missing(rng: random.Random, state: State) -> Request | None:
    item, count = rng.choice(sorted(state["prices"])), rng.randint(1, MOST_COUNT)
    return Request(f"Buy {item}.", _one("buy", item=item, count=count), question="How many?", told=f"{count}.")


def _write_missing(rng: random.Random, state: State) -> Request | None:
    file, word = rng.choice(FILES), rng.choice(WORDS)
    return Request(f"Write {word}.", _one("write", file=file, text=word), question="Which file?", told=f"To {file}.")


def _delete_locked(rng: random.Random, state: State) -> Request | None:
    free = sorted(set(state["files"]) - set(state["locked"]))
    if not free:
        return None
    file = rng.choice(free)
    state["locked"].append(file)
    steps = _one("delete", file=file) + _one("unlock", file=file) + _one("delete", file=file)
    return Request(f"Delete {file}.", steps)


def _write_locked(rng: random.Random, state: State) -> Request | None:
    free = sorted(set(state["files"]) - set(state["locked"]))
    if not free:
        return None
    file, word = rng.choice(free), rng.choice(WORDS)
    state["locked"].append(file)
    arguments = {"file": file, "text": word}
    steps = _one("write", **arguments) + _one("unlock", file=file) + _one("write", **arguments)
    return Request(f"Write {word} to {file}.", steps)


KINDS: Mapping[str, RequestKind] = {
    "write": RequestKind(("files",), "plain", _write),
    "read": RequestKind(("files",), "plain", _read),
    "delete": RequestKind(("files",), "plain", _delete),
    "note": RequestKind(("notes",), "plain", _note),
    "drop": RequestKind(("notes",), "plain", _drop),
    "event": RequestKind(("calendar",), "plain", _event),
    "send": RequestKind(("bank",), "plain", _send),
    "balance": RequestKind(("bank",), "plain", _balance),
    "buy": RequestKind(("shop",), "plain", _buy),
    "price": RequestKind(("shop",), "plain", _price),
    "light": RequestKind(("home",), "plain", _light),
    "write_price": RequestKind(("files", "shop"), "chain", _write_price),
    "send_price": RequestKind(("bank", "shop"), "chain", _send_price),
    "copy": RequestKind(("files",), "chain", _copy),
    "note_event": RequestKind(("calendar", "notes"), "chain", _note_event),
    "cancel_all": RequestKind(("calendar",), "chain", _cancel_all),
    "send_missing": RequestKind(("bank",), "missing", _send_missing),
    "event_missing": RequestKind(("calendar",), "missing", _event_missing),
    "buy_missing": RequestKind(("shop",), "missing", _buy_missing),
    "write_missing": RequestKind(("files",), "missing", _write_missing),
    "delete_locked": RequestKind(("files",), "error", _delete_locked),
    "write_locked": RequestKind(("files",), "error", _write_locked),
}
