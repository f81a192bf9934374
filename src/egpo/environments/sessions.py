"""A session: one instance of an environment, used by one rollout, from `reset` to its verdict.

`Session` is the interface that `Episode` uses. `LocalSession` calls the instance in this process. The sessions of
`session_workers` send the same requests as JSON to a worker process, in which `answer_request` hands them to a
`LocalSession`. Everything that enters or leaves is a copy or a text, so that no two sessions can share an object.
"""

import copy
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from egpo.environments.protocol import FAULTS, Environment, EnvironmentFailedError, Schema, method_schemas
from egpo.environments.records import TurnRecord, transcript_of, turn_from
from egpo.rewards.named import verdict_of
from egpo.rewards.plain_values import plain
from egpo.rewards.verdict import Verdict
from egpo.user_code import place_of

Reward = Callable[..., Any]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class SessionOpening:
    """What `reset` gave. `observation` is appended to the last user message; `messages` replace the prompt if given."""

    observation: str | None
    tools: tuple[Schema, ...]
    messages: tuple[dict[str, Any], ...] | None = None
    tools_in_prompt: bool = False


@dataclass(frozen=True)
class CallResult:
    """What a call gave: the text for the model, whether it was cut, the exception that the tool raised, if any, and
    whether the episode is over."""

    text: str
    is_cut: bool = False
    raised: str = ""
    done: bool = False


@dataclass(frozen=True)
class UserTurn:
    """What the user says next (None: nothing more), and the tools from now on."""

    text: str | None
    tools: tuple[Schema, ...]


class Session(Protocol):
    """One instance of an environment. Every method raises EnvironmentFailedError if the environment fails."""

    is_fast: bool
    """Whether no call waits: such a session needs no thread."""

    def reset(self, row: Mapping[str, Any]) -> SessionOpening: ...
    def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult: ...
    def user_turn(self) -> UserTurn: ...
    def state(self) -> Any: ...
    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict: ...
    def close(self) -> None: ...


class LocalSession:
    """A session in this process. There is no limit on the seconds of a call: it is for environments that never wait, or
    that have limits of their own."""

    def __init__(
        self,
        kind: type,
        settings: Mapping[str, Any],
        reward: Reward | None = None,
        *,
        result_chars: int = 8_000,
        is_fast: bool = True,
    ) -> None:
        self._kind, self._settings, self._reward = kind, settings, reward
        self.result_chars, self.is_fast = result_chars, is_fast
        self._row: dict[str, Any] = {}
        self._environment: Any = None
        self._file = _file_of(kind)

    def reset(self, row: Mapping[str, Any]) -> SessionOpening:
        self._row = copy.deepcopy(dict(row))

        def start() -> Any:
            self._environment = self._kind(**copy.deepcopy(dict(self._settings)))
            reset = self._environment.reset
            return reset(**_accepted(reset, copy.deepcopy(self._row)))

        observation = self._guarded(start, "reset", "environment_reset")
        if not isinstance(observation, str | None):
            what = f"`reset` returned {type(observation).__name__}, not text or None"
            raise EnvironmentFailedError(what, "environment_reset")
        environment = self._environment
        if not isinstance(environment, Environment):
            return SessionOpening(observation, tuple(method_schemas(self._kind)))
        messages = self._guarded(environment.opening, "opening")
        opening = None if messages is None else tuple(dict(message) for message in messages)
        return SessionOpening(observation, self._tools(), opening, bool(environment.tools_in_prompt))

    def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        environment, given = self._environment, copy.deepcopy(dict(arguments))
        is_ours = isinstance(environment, Environment)
        try:
            value = environment.call_tool(name, given) if is_ours else getattr(environment, name)(**given)
            text, raised = result_text(value), ""
        except Exception as error:  # boundary: a tool may raise anything
            if not self._is_tool_error(error):
                raise self._fault(error, name, "environment_fault") from error
            text = error_text(str(error) or type(error).__name__)
            raised = f"{type(error).__name__} at {place_of(error, self._file)}"
        except SystemExit as error:
            raise self._fault(error, name, "environment_fault") from error
        shown, is_cut = cut(text, self.result_chars)
        return CallResult(shown, is_cut, raised, is_ours and bool(environment.done))

    def user_turn(self) -> UserTurn:
        if not isinstance(self._environment, Environment):
            return UserTurn(None, tuple(method_schemas(self._kind)))
        said = self._guarded(self._environment.user_turn, "user_turn")
        if not isinstance(said, str | None):
            raise EnvironmentFailedError(f"`user_turn` returned {type(said).__name__}, not text or None")
        return UserTurn(said, self._tools())

    def state(self) -> Any:
        if not isinstance(self._environment, Environment):
            return None
        state = self._guarded(self._environment.state, "state")
        return json.loads(json.dumps(state, default=str))

    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict:
        verdict: Verdict = self._guarded(lambda: self._verdict(turns), "verdict")
        return verdict

    def close(self) -> None:
        if isinstance(self._environment, Environment):
            self._guarded(self._environment.close, "close")

    def _tools(self) -> tuple[Schema, ...]:
        own = self._guarded(self._environment.tool_schemas, "tool_schemas")
        return tuple(method_schemas(self._kind) if own is None else copy.deepcopy(list(own)))

    def _verdict(self, turns: Sequence[TurnRecord]) -> Verdict:
        environment = self._environment
        given = environment.verdict(turns) if isinstance(environment, Environment) else None
        if given is not None:
            return _checked(given)
        full = float(getattr(self._kind, "full_reward", 1.0))
        own = [] if not hasattr(environment, "get_reward") else [environment.get_reward()]
        by_function = [] if self._reward is None else [self._rewarded(turns)]
        verdicts = [verdict_of(plain(value), "environment", full) for value in (*own, *by_function)]
        if len(verdicts) == 1:
            return _checked(verdicts[0])
        # As in TRL, an environment's own reward is added to that of the reward function.
        total = sum(verdict.reward for verdict in verdicts)
        failed = any(verdict.failed for verdict in verdicts)
        return _checked(Verdict(total, not failed and total >= full, verdicts[-1].reason, failed=failed))

    def _rewarded(self, turns: Sequence[TurnRecord]) -> Any:
        """Call a reward function in TRL's form with this one episode; it gets the instance as `environments`."""
        assert self._reward is not None
        columns = {name: [value] for name, value in self._row.items() if name != "prompt"}
        prompts = [self._row.get("prompt", [])]
        values = {**columns, "prompts": prompts, "completions": [transcript_of(turns)]}
        rewards = plain(self._reward(**_accepted(self._reward, {**values, "environments": [self._environment]})))
        if not isinstance(rewards, list) or len(rewards) != 1:
            raise EnvironmentFailedError(
                f"the reward function returned {rewards!r:.60} for one episode, not a list of one"
            )
        return rewards[0]

    def _is_tool_error(self, error: BaseException) -> bool:
        declared = getattr(self._kind, "tool_errors", Environment.tool_errors)
        if isinstance(error, EnvironmentFailedError) or not isinstance(error, declared):
            return False
        return declared != Environment.tool_errors or not isinstance(error, FAULTS)

    def _guarded(self, work: Callable[[], Any], method: str, reason: str = "environment_fault") -> Any:
        try:
            return work()
        except (Exception, SystemExit) as error:  # boundary: an environment may raise anything
            raise self._fault(error, method, reason) from error

    def _fault(self, error: BaseException, method: str, reason: str) -> EnvironmentFailedError:
        if isinstance(error, EnvironmentFailedError):
            return error
        place = place_of(error, self._file)
        return EnvironmentFailedError(f"`{method}` raised {type(error).__name__}: {error} ({place})"[:500], reason)


def result_text(value: Any) -> str:
    """Return the result of a tool as the model reads it: text as it is, JSON values as JSON, anything else by `str`."""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            # An address differs from run to run.
            value = _ADDRESS.sub("", str(value))
    # A lone surrogate could not be written to a file.
    return str(value).encode("utf-8", "backslashreplace").decode()


def error_text(what: str) -> str:
    return result_text({"error": what})


def cut(text: str, most: int) -> tuple[str, bool]:
    """Return a text of at most about `most` characters, with a note if it was cut; and whether it was."""
    if len(text) <= most:
        return text, False
    return f"{text[:most]}\n[cut: {most:,} of {len(text):,} characters are shown]", True


def _checked(verdict: Any) -> Verdict:
    if not isinstance(verdict, Verdict):
        raise TypeError(f"the verdict is a {type(verdict).__name__}, not a Verdict")
    reward = float(verdict.reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    parts = {str(name): float(value) for name, value in verdict.parts.items()}
    return Verdict(reward, bool(verdict.correct), str(verdict.reason), bool(verdict.failed), parts)


def _accepted(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the values that the function takes by name: all of them, if it takes `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return values
    return {p.name: values[p.name] for p in parameters if p.name in values}


def _file_of(kind: type) -> str:
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return ""


def answer_request(session: LocalSession, operation: str, given: Mapping[str, Any]) -> Any:
    """Run one request of another process on a session; return its answer as JSON values."""
    if operation == "reset":
        session.result_chars = int(given["result_chars"])
        return asdict(session.reset(given["row"]))
    if operation == "call":
        return asdict(session.call(given["name"], given["arguments"]))
    if operation == "user_turn":
        return asdict(session.user_turn())
    if operation == "state":
        return session.state()
    if operation == "verdict":
        return asdict(session.verdict([turn_from(turn) for turn in given["turns"]]))
    return session.close()
