"""The tools of the toolbox worlds. A tool reads or changes the state, and raises `ToolMistake` if it cannot.

An edit in this file changes generated problems: increase `Toolbox.version`, too. Names and results are short, since a
small model with a small vocabulary has to read and write them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

State = dict[str, Any]
Run = Callable[..., Any]


class ToolMistake(ValueError):  # noqa: N818  it is the model's mistake, told to the model
    """The error of a call that the world does not allow."""


@dataclass(frozen=True)
class WorldTool:
    """A tool: its domain, its parameters with their JSON types, what it does, and whether it changes the state."""

    name: str
    domain: str
    description: str
    run: Run
    parameters: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False

    def schema(self, *, described: bool = False) -> dict[str, Any]:
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        shown = {"description": self.description} if described else {}
        return {"type": "function", "function": {"name": self.name, **shown, "parameters": parameters}}

    def signature(self) -> str:
        return f"{self.name}({', '.join(f'{name}: {kind}' for name, kind in self.parameters.items())})"


def _read(state: State, file: str) -> str:
    return str(_known(state["files"], file, "file"))


def _write(state: State, file: str, text: str) -> str:
    _require_unlocked(state, file)
    state["files"][file] = text
    return "ok"


def _delete(state: State, file: str) -> str:
    _known(state["files"], file, "file")
    _require_unlocked(state, file)
    del state["files"][file]
    return "ok"


def _unlock(state: State, file: str) -> str:
    if file not in state["locked"]:
        raise ToolMistake(f"{file} is not locked")
    state["locked"].remove(file)
    return "ok"


def _require_unlocked(state: State, file: str) -> None:
    if file in state["locked"]:
        raise ToolMistake(f"{file} is locked: unlock it")


def _known(things: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in things:
        raise ToolMistake(f"no {kind} {name[:20]}")
    return things[name]


def _add_note(state: State, text: str) -> str:
    state["notes"].append(text)
    return "ok"


def _drop_note(state: State, text: str) -> str:
    if text not in state["notes"]:
        raise ToolMistake(f"no note {text[:20]}")
    state["notes"].remove(text)
    return "ok"


def _add_event(state: State, day: str, title: str) -> str:
    if day not in state["events"]:
        raise ToolMistake(f"no day {day[:20]}")
    state["events"][day] = sorted([*state["events"][day], title])
    return "ok"


def _cancel(state: State, day: str, title: str) -> str:
    if title not in _known(state["events"], day, "day"):
        raise ToolMistake(f"no {title[:20]} on {day}")
    state["events"][day].remove(title)
    return "ok"


def _send(state: State, name: str, amount: int) -> str:
    _known(state["bank"], name, "account")
    if not 0 < amount <= state["bank"]["me"]:
        raise ToolMistake("not enough money" if amount > 0 else "amount must be above 0")
    state["bank"]["me"] -= amount
    state["bank"][name] += amount
    return "ok"


def _buy(state: State, item: str, count: int) -> str:
    _known(state["prices"], item, "item")
    if count < 1:
        raise ToolMistake("count must be above 0")
    state["cart"][item] = state["cart"].get(item, 0) + count
    return "ok"


def _light(state: State, room: str, on: bool) -> str:
    _known(state["lights"], room, "room")
    state["lights"][room] = on
    return "ok"


_TEXT, _WHOLE, _FLAG = "string", "integer", "boolean"
TOOLS: Mapping[str, WorldTool] = {
    tool.name: tool
    for tool in (
        WorldTool("files", "files", "List the files.", lambda state: sorted(state["files"])),
        WorldTool("read", "files", "Read a file.", _read, {"file": _TEXT}),
        WorldTool("write", "files", "Write a text to a file.", _write, {"file": _TEXT, "text": _TEXT}, changes=True),
        WorldTool("delete", "files", "Delete a file.", _delete, {"file": _TEXT}, changes=True),
        WorldTool("unlock", "files", "Unlock a file.", _unlock, {"file": _TEXT}, changes=True),
        WorldTool("notes", "notes", "List the notes.", lambda state: list(state["notes"])),
        WorldTool("add_note", "notes", "Add a note.", _add_note, {"text": _TEXT}, changes=True),
        WorldTool("drop_note", "notes", "Remove a note.", _drop_note, {"text": _TEXT}, changes=True),
        WorldTool(
            "events", "calendar", "List a day's events.", lambda state, day: _known(state["events"], day, "day"),
            {"day": _TEXT},
        ),
        WorldTool("add_event", "calendar", "Add an event.", _add_event, {"day": _TEXT, "title": _TEXT}, changes=True),
        WorldTool("cancel", "calendar", "Cancel an event.", _cancel, {"day": _TEXT, "title": _TEXT}, changes=True),
        WorldTool(
            "balance", "bank", "Tell what somebody has.", lambda state, name: _known(state["bank"], name, "account"),
            {"name": _TEXT},
        ),
        WorldTool("send", "bank", "Send money to somebody.", _send, {"name": _TEXT, "amount": _WHOLE}, changes=True),
        WorldTool(
            "price", "shop", "Tell the price of an item.", lambda state, item: _known(state["prices"], item, "item"),
            {"item": _TEXT},
        ),
        WorldTool("buy", "shop", "Put items into the cart.", _buy, {"item": _TEXT, "count": _WHOLE}, changes=True),
        WorldTool("light", "home", "Turn a light on or off.", _light, {"room": _TEXT, "on": _FLAG}, changes=True),
        WorldTool(
            "is_on", "home", "Tell whether a light is on.", lambda state, room: _known(state["lights"], room, "room"),
            {"room": _TEXT},
        ),
    )
}  # fmt: skip
DOMAINS = tuple(dict.fromkeys(tool.domain for tool in TOOLS.values()))
