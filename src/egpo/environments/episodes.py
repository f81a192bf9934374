"""An episode: the state machine of one rollout. It knows no engine: texts of the assistant enter, messages leave.

    episode = Episode(host, row, limits)
    start = episode.start()                    # messages and tools of the prompt
    outcome = episode.assistant(text, cut_off) # runs the calls; outcome.messages are to be appended
    ...                                        # as long as outcome.goes_on
    record = episode.record()                  # with the verdict

A text with calls gets one tool message per call, in order. A text that attempts a call and cannot be read, or that was
cut off, gets one tool message with the error, and nothing of it is run. A text without calls gets the user's next
words, or ends the episode.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from egpo.environments.hosts import EnvironmentHost
from egpo.environments.protocol import EnvironmentFailedError, Schema
from egpo.environments.records import CallRecord, EpisodeRecord, Message, TurnRecord, changes_of
from egpo.environments.sessions import error_text
from egpo.errors import EgpoError, InputError
from egpo.rewards.tool_calls.ground_truth import read_unthinking
from egpo.rewards.tool_calls.tools import Toolbox, schema_fault, type_names
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS
from egpo.tool_calls.answers import AnswerReading
from egpo.tool_calls.calls import Call

if TYPE_CHECKING:
    from egpo.config.sections.training import EpisodeSettings

ENDINGS = {
    "finished": "the assistant answered without a call, and the user has nothing more to say",
    "done": "the environment ended the episode",
    "turn_limit": "the assistant has used all its turns",
    "token_limit": "the engine has no tokens left for the episode",
    "stopped": "the engine stopped the episode",
    "failed": "the environment failed: nothing is known about the model",
}
MODEL_FAULTS = {
    "cut_off": "the message was cut off at the limit of tokens; nothing of it was run",
    "too_many_calls": "too many calls in one message; nothing of it was run",
    "thinking_not_closed": "the thinking was not closed, so there is no answer",
    "malformed_call": "a call cannot be read",
    "unclosed_call": "a call starts and does not end",
    "text_after_list": "a list of calls has to be the whole answer",
    "bare_call": "a call needs its tags",
    "mixed_syntax": "there are two syntaxes of calls in one message",
    "over_limit": "a call is too long or nested too deep",
    "unknown_tool": "there is no tool of this name",
    "unknown_argument": "the tool does not take such an argument",
    "missing_argument": "an argument is missing",
    "wrong_type": "an argument has the wrong type",
    "call_after_end": "the episode had ended before this call",
    "tool_error": "the tool raised an exception",
}
"""Faults of the model. Each is counted under this name, and told to the model as `{"error": "..."}`."""


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of an episode: turns of the assistant, calls in one message, seconds of one call and of `reset` or the
    verdict, and characters of one result. The engine limits the tokens."""

    turns: int = 8
    calls_per_turn: int = 8
    call_s: float = 30.0
    reset_s: float = 120.0
    result_chars: int = 8_000

    @classmethod
    def of(cls, settings: "EpisodeSettings") -> "EpisodeLimits":
        """Return the limits of a recipe's section `rollout.episodes`."""
        return cls(
            turns=settings.max_turns,
            calls_per_turn=settings.max_calls,
            call_s=settings.call_timeout_s,
            result_chars=settings.max_result_chars,
        )

    def __post_init__(self) -> None:
        for name in ("turns", "calls_per_turn", "result_chars"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)!r} is too small", where="episode", fix="give 1 or more")
        for name in ("call_s", "reset_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise InputError(f"{name}={value!r} is not a time", where="episode", fix="give seconds above 0")


@dataclass(frozen=True)
class EpisodeStart:
    """The beginning of an episode: the messages of the prompt, and the tools for the chat template.

    `tools_in_prompt`: the messages list the tools already; the template must not be given them. `ending` is "failed" if
    the environment could not start, else "".
    """

    messages: tuple[Message, ...]
    tools: tuple[Schema, ...]
    tools_in_prompt: bool = False
    ending: str = ""

    @property
    def template_tools(self) -> list[Schema] | None:
        """The tools that the chat template has to list; None if there are none, or if the prompt lists them."""
        return None if self.tools_in_prompt else list(self.tools) or None


@dataclass(frozen=True)
class TurnOutcome:
    """What follows a text of the assistant: the messages to append, and "" or a name in ENDINGS."""

    messages: tuple[Message, ...]
    ending: str
    turn: TurnRecord

    @property
    def goes_on(self) -> bool:
        return not self.ending


class Episode:
    """One episode of one rollout, with an instance of the environment of its own. Not for several threads at once.

    `row`: the columns of the problem as JSON values. `prompt` has the chat messages; without it, what `reset` returns
    is the user's message. Without `seed`, one is derived from the row, the same for all rollouts of the problem.
    """

    def __init__(
        self,
        host: EnvironmentHost,
        row: Mapping[str, Any],
        limits: EpisodeLimits | None = None,
        *,
        tags: tuple[str, str] = THINK_TAGS,
    ) -> None:
        self.limits, self._host, self._tags = limits or EpisodeLimits(), host, tags
        self._row = seeded_row(row)
        self._session = host.session(self.limits)
        self.is_fast = self._session.is_fast
        self.messages: tuple[Message, ...] = ()
        self.tools: tuple[Schema, ...] = ()
        self.turns: list[TurnRecord] = []
        self.reasons: Counter[str] = Counter()
        self.ending = ""
        self._verdict, self._fault, self._state, self._is_over = Verdict(0.0, False, "", failed=True), "", None, False
        self._toolbox = Toolbox(())
        self._has_started = False

    def start(self) -> EpisodeStart:
        """Reset the environment, and return the prompt. A failure is not raised: `ending` is then "failed"."""
        if self._has_started:
            raise EgpoError("an episode can be started only once", where=f"environment {self._host.name}")
        self._has_started = True
        self.messages = _copied(self._row.get("prompt") or [])
        try:
            opened = self._session.reset(self._row)
            self._offer(opened.tools)
            self._state = self._session.state()
        except EnvironmentFailedError as fault:
            self._fail(fault)
            return EpisodeStart(self.messages, (), ending=self.ending)
        self.messages = _with_observation(opened.messages or self.messages, opened.observation)
        if not self.messages:
            self._fail(
                EnvironmentFailedError("the row has no `prompt`, and `reset` returned no text", "environment_reset")
            )
        return EpisodeStart(self.messages, self.tools, opened.tools_in_prompt, self.ending)

    def assistant(self, text: str, cut_off: bool = False, *, opened: bool = False) -> TurnOutcome:
        """Take the next text of the assistant, run its calls, and return what follows.

        `cut_off`: the text ended at the limit of tokens. `opened`: the prompt ended with the opening thinking tag.
        """
        if not self._has_started or self.ending:
            what = (
                "the episode has not been started" if not self._has_started else f"the episode is over: {self.ending}"
            )
            raise EgpoError(what, where=f"environment {self._host.name}")
        reading = self._read(text, cut_off, opened)
        fault, calls, ending = reading.fault, [], ""
        messages: list[Message] = []
        try:
            if fault:
                self.reasons[fault] += 1
                messages.append({"role": "tool", "content": error_text(MODEL_FAULTS[fault])})
            elif reading.calls:
                for call in reading.calls:
                    calls.append(self._run(call))
                    messages.append({"role": "tool", "name": call.name, "content": calls[-1].result})
                ending = "done" if self._is_over else ""
            else:
                said = self._session.user_turn()
                self._offer(said.tools)
                ending = "finished" if said.text is None else ""
                messages += [] if said.text is None else [{"role": "user", "content": said.text}]
            state = self._session.state()
        except EnvironmentFailedError as error:
            self._fail(error)
            self.turns.append(TurnRecord(text, cut_off, opened, fault, tuple(calls), tuple(messages)))
            return TurnOutcome(tuple(messages), self.ending, self.turns[-1])
        changes, self._state = changes_of(self._state, state), state
        self.turns.append(TurnRecord(text, cut_off, opened, fault, tuple(calls), tuple(messages), changes))
        if not ending and len(self.turns) >= self.limits.turns:
            ending = "turn_limit"
        if ending:
            self._end(ending)
        return TurnOutcome(tuple(messages), self.ending, self.turns[-1])

    def stop(self, ending: str = "stopped") -> None:
        """End the episode from outside: "token_limit" or "stopped". The verdict is still given."""
        if ending not in ("token_limit", "stopped"):
            raise EgpoError(f"`{ending}` is not an ending that an engine sets", where="episode")
        if not self.ending:
            self._end(ending)

    def close(self) -> None:
        """Release the instance of an episode that is not played to its end. There is no verdict, and no record."""
        if not self.ending:
            self._close()

    def record(self) -> EpisodeRecord:
        """Return the record of an episode that has ended."""
        if not self.ending:
            raise EgpoError("the episode has not ended", where=f"environment {self._host.name}")
        return EpisodeRecord(
            environment=self._host.name,
            settings=self._host.settings,
            row=self._row,
            limits=asdict(self.limits),
            messages=self.messages,
            tools=self.tools,
            turns=tuple(self.turns),
            ending=self.ending,
            verdict=self._verdict,
            reasons=dict(sorted(self.reasons.items())),
            deterministic=self._host.deterministic,
            reward=self._host.reward,
            fault=self._fault,
            tags=self._tags,
        )

    def _read(self, text: str, cut_off: bool, opened: bool) -> AnswerReading:
        if cut_off:
            return AnswerReading(fault="cut_off")
        if opened and self._tags[1] not in text:
            return AnswerReading(fault="thinking_not_closed")
        reading = read_unthinking(text, self._tags)
        return AnswerReading(fault="too_many_calls") if len(reading.calls) > self.limits.calls_per_turn else reading

    def _run(self, call: Call) -> CallRecord:
        arguments = dict(call.arguments)
        fault = "call_after_end" if self._is_over else self._call_fault(call)
        if fault:
            self.reasons[fault] += 1
            return CallRecord(call.name, arguments, error_text(self._fault_text(fault, call)), fault)
        result = self._session.call(call.name, self._whole_numbers(call))
        self._is_over = result.done
        self.reasons.update({"tool_error": 1} if result.raised else {})
        self.reasons.update({"result_cut": 1} if result.is_cut else {})
        return CallRecord(call.name, arguments, result.text, "tool_error" if result.raised else "", result.raised)

    def _call_fault(self, call: Call) -> str:
        if not self._host.checks_calls:
            return ""
        tool = self._toolbox.tool(call.name)
        return "unknown_tool" if tool is None else schema_fault(call.arguments, tool)

    def _fault_text(self, fault: str, call: Call) -> str:
        tool = self._toolbox.tool(call.name)
        if fault == "unknown_tool":
            return f"there is no tool {call.name[:60]}"
        if tool is None or fault == "call_after_end":
            return MODEL_FAULTS[fault]
        return f"{MODEL_FAULTS[fault]}: {call.name}({', '.join(tool.parameters)})"

    def _whole_numbers(self, call: Call) -> dict[str, Any]:
        """Return the arguments with 1.0 as 1 where the schema says `integer`: JSON has one kind of number."""
        tool = self._toolbox.tool(call.name)
        whole = set() if tool is None else {n for n, one in tool.parameters.items() if type_names(one) == ("integer",)}
        return {
            name: int(value) if name in whole and isinstance(value, float) and value.is_integer() else value
            for name, value in call.arguments.items()
        }

    def _offer(self, tools: Sequence[Schema]) -> None:
        if tuple(tools) == self.tools:
            return
        self.tools = tuple(tools)
        try:
            self._toolbox = Toolbox([_with_null(tool) for tool in tools])
        except InputError as error:
            raise EnvironmentFailedError(str(error)) from error

    def _fail(self, fault: EnvironmentFailedError) -> None:
        self.ending, self._fault = "failed", str(fault)
        self.reasons[fault.reason] += 1
        self._verdict = Verdict(0.0, False, fault.reason, failed=True)
        self._close()

    def _end(self, ending: str) -> None:
        try:
            verdict = self._session.verdict(self.turns)
        except EnvironmentFailedError as fault:
            self._fail(fault)
            return
        self.ending, self._verdict = ending, verdict
        self._close()

    def _close(self) -> None:
        with suppress(
            EnvironmentFailedError
        ):  # the verdict is known: a failure to release something does not change it
            self._session.close()


def seeded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the row with a `seed`. InputError if it has values that are not JSON."""
    for name, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            what = f"the column `{name}` has a {type(value).__name__}, which is not JSON"
            raise InputError(what, where="episode", fix="give text, numbers, lists and objects only") from error
    copied: dict[str, Any] = json.loads(json.dumps(dict(row)))
    if "seed" not in copied:
        digest = hashlib.sha256(json.dumps(copied, sort_keys=True).encode()).digest()
        copied["seed"] = int.from_bytes(digest[:4], "big") >> 1
    return copied


def _copied(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    return tuple(dict(message) for message in messages)


def _with_observation(messages: Sequence[Mapping[str, Any]], observation: str | None) -> tuple[Message, ...]:
    """Return the messages with what `reset` returned appended to the last one, as TRL does."""
    if observation is None:
        return _copied(messages)
    if not messages:
        return ({"role": "user", "content": observation},)
    return (*_copied(messages[:-1]), {**messages[-1], "content": f"{messages[-1]['content']}{observation}"})


def _with_null(tool: Schema) -> Schema:
    """Return a tool whose nullable parameters also have the type null: transformers marks them with `nullable`."""
    function = dict(tool.get("function", tool))
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return tool
    widened = {
        name: {**one, "type": [*type_names(one), "null"]} if one.get("nullable") and type_names(one) else one
        for name, one in properties.items()
    }
    return {**function, "parameters": {**parameters, "properties": widened}}
