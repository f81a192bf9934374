"""The tools of generated tool-calling conversations. Together their arguments cover all JSON types.

An edit in this file changes generated data: increase `FunctionCalling.version`, too.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Argument:
    """A parameter of a tool: its JSON schema, and a function that draws a random value for it."""

    name: str
    schema: Mapping[str, Any]
    draw: Draw
    optional: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool of a generated conversation. `wish` is the user's request for it in words, without the arguments."""

    name: str
    description: str
    wish: str
    arguments: tuple[Argument, ...]

    def schema(self, *, described: bool = True) -> dict[str, Any]:
        """Return the tool as {name, description, parameters}, where the parameters are a JSON schema.

        If `described` is false, all descriptions are left out.
        """
        properties = {argument.name: dict(argument.schema) for argument in self.arguments}
        required = [argument.name for argument in self.arguments if not argument.optional]
        parameters = {"type": "object", "properties": properties, "required": required}
        if described:
            return {"name": self.name, "description": self.description, "parameters": parameters}
        for schema in properties.values():
            schema.pop("description", None)
        return {"name": self.name, "parameters": parameters}


def _one_of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


def _some_of(*values: Any) -> Draw:
    return lambda rng: rng.sample(values, rng.randint(1, 3))


def _whole(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _decimal(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low * 10 + 1, high * 10) / 10


def _text(name: str, description: str, *values: str, optional: bool = False) -> Argument:
    return Argument(name, {"type": "string", "description": description}, _one_of(*values), optional)


def _integer(name: str, description: str, low: int, high: int, *, optional: bool = False) -> Argument:
    return Argument(name, {"type": "integer", "description": description}, _whole(low, high), optional)


def _number(name: str, description: str, low: int, high: int) -> Argument:
    return Argument(name, {"type": "number", "description": description}, _decimal(low, high))


def _flag(name: str, description: str, *, optional: bool = False) -> Argument:
    return Argument(name, {"type": "boolean", "description": description}, _one_of(True, False), optional)


def _list(name: str, description: str, of: str, *values: Any) -> Argument:
    return Argument(name, {"type": "array", "items": {"type": of}, "description": description}, _some_of(*values))


CITIES = ("Accra", "Bogotá", "Hanoi", "København", "Lima", "Nairobi", "Oslo", "Porto", "Quito", "東京")
PEOPLE = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatou", "Gita", "Hugo")
DAYS = tuple(f"2026-{month:02}-{day:02}" for month in (3, 7, 11) for day in (2, 9, 17, 28))

TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        "The weather in a city.",
        "look up the weather",
        (
            _text("city", "Name of the city.", *CITIES),
            Argument(
                "unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}, _one_of("celsius", "fahrenheit"), True
            ),
            _integer("days", "How many days ahead.", 1, 10, optional=True),
        ),
    ),
    Tool(
        "calendar.create_event",
        "Put an event into the calendar.",
        "put an event into my calendar",
        (
            _text(
                "title", "What it is.", "Dentist", "Team lunch", "Rent is due", 'Ada\'s "surprise" party', "Budget, Q3"
            ),
            _text("date", "Day, as YYYY-MM-DD.", *DAYS),
            _list("guests", "Who is invited.", "string", *PEOPLE),
            _flag("all_day", "Whether it lasts all day."),
        ),
    ),
    Tool(
        "calendar.delete_event",
        "Remove an event from the calendar.",
        "remove an event from my calendar",
        (_integer("event_id", "Number of the event.", 100, 999), _flag("notify", "Tell the guests.", optional=True)),
    ),
    Tool(
        "transfer_money",
        "Send money from one account to another.",
        "send some money",
        (
            _text("recipient", "Who gets it.", *PEOPLE),
            _number("amount", "How much.", 1, 900),
            _text("currency", "ISO code.", "EUR", "JPY", "KES", "USD"),
            Argument(
                "memo",
                {"type": ["string", "null"], "description": "A note, or null for none."},
                _one_of(None, "rent", "thanks!", "for the trip"),
            ),
        ),
    ),
    Tool(
        "search_flights",
        "Flights between two cities.",
        "find me a flight",
        (
            _text("origin", "From where.", *CITIES[:5]),
            _text("destination", "To where.", *CITIES[5:]),
            _text("date", "Day, as YYYY-MM-DD.", *DAYS),
            _number("max_hours", "Longest acceptable duration.", 2, 30),
            _flag("direct", "Only flights without a stop.", optional=True),
        ),
    ),
    Tool(
        "set_thermostat",
        "Set the temperature of a room.",
        "set the thermostat",
        (
            _text("room", "Which room.", "attic", "bedroom", "kitchen", "study"),
            _number("degrees", "Temperature in degrees Celsius.", 14, 26),
            Argument(
                "schedule",
                {"type": "object", "properties": {"from": {"type": "integer"}, "to": {"type": "integer"}}},
                lambda rng: {"from": rng.randint(0, 11), "to": rng.randint(12, 23)},
            ),
        ),
    ),
    Tool(
        "statistics.percentiles",
        "Percentiles of a list of numbers.",
        "work out percentiles",
        (
            _list("values", "The numbers.", "number", 1, 2, 2.5, 3, 4.75, -6, 0, 12),
            _list("points", "Which percentiles.", "integer", 5, 25, 50, 75, 95),
        ),
    ),
    Tool(
        "order_food",
        "Order dishes from a restaurant.",
        "order some food",
        (
            _text("restaurant", "Name of the restaurant.", "Casa Verde", "Lotus", "Mamma Rosa", "The Old Mill"),
            Argument(
                "items",
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"dish": {"type": "string"}, "count": {"type": "integer"}},
                    },
                },
                lambda rng: [
                    {"dish": dish, "count": rng.randint(1, 4)}
                    for dish in rng.sample(("curry", "dumplings", "pizza", "salad", "soup"), rng.randint(1, 3))
                ],
            ),
            Argument("tip", {"type": ["number", "null"], "description": "Null for none."}, _one_of(None, 2, 3.5, 5)),
        ),
    ),
    Tool(
        "translate",
        "Translate a text.",
        "translate a text",
        (
            _text("text", "What to translate.", "Good morning", "Where is the station?", "It's {late}; \\o/"),
            _text("target", "Language code.", "de", "fr", "ja", "sw"),
        ),
    ),
    Tool(
        "list_files",
        "Files in a folder.",
        "list files",
        (
            _text("folder", "Path of the folder.", "/data", "/home/ada", "/var/log", "C:\\Temp"),
            _flag("hidden", "Show hidden files too."),
            _integer("limit", "At most so many.", 1, 50, optional=True),
        ),
    ),
    Tool(
        "filter_records",
        "Records that match some conditions.",
        "filter the records",
        (
            Argument(
                "conditions",
                {"type": "object", "description": "Wanted value of each field; null matches a missing one."},
                lambda rng: {
                    "active": rng.random() < 0.5,
                    "score": rng.choice((None, rng.randint(0, 9))),
                    "tags": rng.sample(("new", "old", "vip"), rng.randint(0, 2)),
                },
            ),
            _integer("page", "Which page, from 0.", 0, 9),
        ),
    ),
    Tool("current_time", "The time now.", "tell me the time", ()),
)
