"""What an environment is: a class in the shape of TRL's `environment_factory`, and what egpo adds to that shape.

A plain class is treated as TRL treats it. It is constructed once for each rollout, never shared, and has:

    reset(**row) -> str | None    starts an episode; the row has the columns of the problem, with `prompt` and
                                  `seed`. A text is appended to the last user message.
    public methods                the tools: type hints and a docstring with `Args:` become their JSON schemas
    get_reward() -> float         optional; called once, at the end

A class that derives from `Environment` may define more: see its docstring. In both, an exception in a tool is an
observation for the model, `{"error": "..."}`, unless it is one of `FAULTS` or the class narrows `tool_errors`. Any
other exception of the class (in `reset`, `user_turn`, ...) is the environment's own fault: the episode is `failed`.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from egpo.errors import InputError

if TYPE_CHECKING:
    from egpo.environments.records import TurnRecord
    from egpo.rewards.verdict import Verdict

Schema = dict[str, Any]


class EnvironmentFailedError(Exception):
    """The failure of an environment, not of the model: the episode is `failed`, and nothing is learnt from it.

    `reason` is one of the names in `FAULT_REASONS`. A tool may raise it to say that the environment cannot go on.
    """

    def __init__(self, what: str, reason: str = "environment_fault") -> None:
        super().__init__(what)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.reason)


FAULT_REASONS = {
    "environment_fault": "the environment raised an exception outside of a tool, or one that is not a tool's error",
    "environment_reset": "the environment's `reset` raised an exception, or returned neither text nor None",
    "environment_timeout": "a call of the environment took longer than its limit of seconds",
    "environment_died": "the process of the environment ended",
}
FAULTS = (EnvironmentFailedError, ConnectionError, TimeoutError, MemoryError, NameError, ImportError)
"""Exceptions of a tool that are never the model's fault: no argument can repair them."""


class Environment:
    """The base class of environments that use more than TRL's shape. None of these members is a tool."""

    deterministic: ClassVar[bool] = True
    """False: the environment has effects outside of itself, or randomness that does not come from the row's `seed`. It
    is then named as not bit-exact, and its episodes are not replayed by an audit."""
    tool_errors: ClassVar[tuple[type[BaseException], ...]] = (Exception,)
    """The exceptions by which a tool tells the model about its mistake. Any other exception of a tool is a fault."""
    full_reward: ClassVar[float] = 1.0
    """The reward from which on an episode is correct, where only `get_reward` gives a verdict."""
    checks_calls: ClassVar[bool] = True
    """False: calls are passed to `call_tool` as they are written, whatever the schemas say."""
    done: bool = False
    """True once the episode has ended: the environment sets it, for example when a game is over."""
    tools_in_prompt: bool = False
    """True if the prompt describes the tools already, so that the chat template must not list them again."""

    def reset(self, *args: Any, **row: Any) -> str | None:
        """Start an episode. Return a text that is appended to the last user message, or None."""
        raise NotImplementedError

    def opening(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the first messages, called after `reset`; None: those of the row's `prompt`."""
        return None

    def tool_schemas(self) -> Sequence[Schema] | None:
        """Return the tools that the model may call, in OpenAI's form or as bare functions. None: the public methods.

        It is called after `reset` and after each user turn: the tools may change between turns.
        """
        return None

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run a tool. The arguments fit the schema. By default the method of that name is called."""
        return getattr(self, name)(**arguments)

    def user_turn(self) -> str | None:
        """Return what the user says to an answer without calls; None ends the episode."""
        return None

    def state(self) -> Mapping[str, Any] | None:
        """Return the state as JSON values, for the report's list of changes; None if there is nothing to show."""
        return None

    def verdict(self, turns: "Sequence[TurnRecord]") -> "Verdict | None":
        """Return the verdict on the whole episode. None: by `get_reward`, or by a reward function of the task."""
        return None

    def close(self) -> None:
        """Release what the episode used. Called once, also after a fault."""


HOOKS = frozenset(name for name in vars(Environment) if not name.startswith("_"))
_TRL_NAMES = frozenset({"reset", "get_reward"})


def tool_names(kind: type) -> list[str]:
    """Return the names of a class's tools: its public methods, but for those of the protocol. Sorted, as in TRL."""
    reserved = _TRL_NAMES | (HOOKS if issubclass(kind, Environment) else frozenset())
    found = inspect.getmembers(kind, predicate=inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_") and name not in reserved]


_schemas: dict[type, list[Schema]] = {}


def method_schemas(kind: type) -> list[Schema]:
    """Return the JSON schemas of a class's tools, by transformers' `get_json_schema`.

    InputError if a tool has no docstring, or a parameter without a type hint or a description.
    """
    if kind not in _schemas:
        _schemas[kind] = [_schema(kind, name) for name in tool_names(kind)]
    return copy.deepcopy(_schemas[kind])


def remember_schemas(kind: type, schemas: Sequence[Schema] | None) -> None:
    """Use schemas that another process has read; None: read them when they are needed."""
    if schemas is not None:
        _schemas[kind] = list(schemas)


def _schema(kind: type, name: str) -> Schema:
    from transformers.utils import get_json_schema

    try:
        schema: Schema = get_json_schema(_without_self(getattr(kind, name)))
    except Exception as error:  # boundary: transformers raises several kinds for a method that it cannot read
        fix = "give every parameter a type hint and a line under `Args:`; start helpers' names with an underscore"
        what = f"the tool `{name}` has no schema: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        raise InputError(what, where=f"environment {kind.__module__}:{kind.__qualname__}", fix=fix) from error
    schema["function"].pop("return", None)
    return schema


def _without_self(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bound form of a method: `get_json_schema` reads the signature, in which `self` would be a parameter."""
    return method.__get__(object())  # type: ignore[no-any-return]


def check_environment(kind: type, where: str) -> None:
    """Raise InputError unless the class can be used as an environment."""
    reset = getattr(kind, "reset", None)
    if not inspect.isfunction(reset) or reset is Environment.reset:
        fix = "add `def reset(self, **row) -> str | None`, which starts an episode"
        raise InputError(f"the class `{kind.__qualname__}` has no method `reset`", where=where, fix=fix)
    own_tools = issubclass(kind, Environment) and kind.tool_schemas is not Environment.tool_schemas
    if not own_tools and not tool_names(kind):
        fix = "add a public method with type hints and a docstring; each is a tool"
        raise InputError(f"the class `{kind.__qualname__}` has no tools", where=where, fix=fix)
    for name in [*tool_names(kind), "reset", "get_reward"]:
        if inspect.iscoroutinefunction(getattr(kind, name, None)):
            what = f"the method `{name}` of `{kind.__qualname__}` is asynchronous"
            raise InputError(what, where=where, fix="write it without `async`; sessions run side by side anyway")
