"""The toolbox environment: it runs the tools on its own copy of the state, speaks for the user, and judges the end."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from egpo.environments.protocol import Environment, Schema
from egpo.environments.records import TurnRecord, changes_of
from egpo.environments.toolbox.world_tools import TOOLS, State, ToolMistake
from egpo.environments.toolbox.worlds import World, read_world
from egpo.rewards.answers import split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tool_calls.calls import same_value

REASONS = {
    "correct": "the state is the expected one, every needed call was made, and the answers are right",
    "unfinished": "the episode ended before the user had said everything",
    "wrong_state": "the state at the end is not the expected one",
    "missing_call": "a call that looks something up was not made",
    "wrong_answer": "an answer to the user does not contain what was asked for",
}
MODES = ("binary", "shaped")


class ToolboxEnvironment(Environment):
    """A generated world. The row's `world` is its JSON, `mode` is `binary` or `shaped`, `describe_tools` 0 or 1."""

    tool_errors: ClassVar[tuple[type[BaseException], ...]] = (ToolMistake,)

    def reset(
        self, world: str, mode: str = "binary", describe_tools: int = 0, tools_in_prompt: int = 0, **row: Any
    ) -> str | None:
        self._world: World = read_world(world)
        self._state: State = json.loads(json.dumps(self._world.state))
        self._num_said, self._mode, self._described = 1, mode, bool(describe_tools)
        self.tools_in_prompt = bool(tools_in_prompt)
        return None

    def tool_schemas(self) -> Sequence[Schema]:
        return [TOOLS[name].schema(described=self._described) for name in self._world.tools]

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return TOOLS[name].run(self._state, **arguments)

    def user_turn(self) -> str | None:
        if self._num_said == len(self._world.utterances):
            self._num_said += 1
            return None
        self._num_said += 1
        return self._world.utterances[self._num_said - 1]

    def state(self) -> Mapping[str, Any]:
        return self._state

    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict:
        world = self._world
        wanted = changes_of(world.state, world.expected, most=1_000)
        made = changes_of(world.state, self._state, most=1_000)
        done = sum(path in made and made[path] == change for path, change in wanted.items())
        harm = sum(path not in wanted for path in made)
        needs = sum(_was_made(name, arguments, turns) for name, arguments in world.needs)
        answers = sum(_answers(at, text, turns) for at, text in world.answers)
        if self._num_said <= len(world.utterances):
            reason = "unfinished"
        elif self._state != world.expected:
            reason = "wrong_state"
        elif needs < len(world.needs):
            reason = "missing_call"
        else:
            reason = "correct" if answers == len(world.answers) else "wrong_answer"
        correct = reason == "correct"
        if self._mode == "binary":
            return Verdict(float(correct), correct, reason)
        total = max(1, len(wanted) + len(world.needs) + len(world.answers))
        parts = {"parts": 0.5 * max(0, done + needs + answers - harm) / total, "whole": 0.5 * correct}
        return Verdict(0.5 + 0.5 if correct else parts["parts"], correct, reason, parts=parts)


def _was_made(name: str, arguments: Mapping[str, Any], turns: Sequence[TurnRecord]) -> bool:
    calls = (call for turn in turns for call in turn.calls if not call.fault)
    return any(call.name == name and same_value(dict(call.arguments), dict(arguments)) for call in calls)


def _answers(at: int, text: str, turns: Sequence[TurnRecord]) -> bool:
    """Return whether the reply to the user's text number `at` contains the text as a word of its own."""
    replies = [turn.text for turn in turns if not turn.calls and not turn.fault]
    if at >= len(replies):
        return False
    return re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-]|\.\w)", split_thinking(replies[at]).answer) is not None
