"""A task of episodes that egpo-tiny can take part in. One of its problems is `toolbox`; others have the tools that the
model knows, in an environment from outside, which runs in a worker process; the environment of one cannot start."""

import json
from dataclasses import replace
from typing import ClassVar

from egpo.environments import Environment
from egpo.rewards.verdict import Verdict
from egpo.tasks import load_task

ONE_CALL = {"max_turns": 1, "max_calls": 1, "max_tools": 2, "describe_tools": False, "instruction": ""}


class Counting(Environment):
    """It counts the calls of an episode: the result of each is its number. The user asks twice."""

    tools_in_prompt = True

    def reset(self, tools, **row):
        self._tools, self._calls, self._asked = json.loads(tools), [], 0

    def tool_schemas(self):
        return self._tools

    def call_tool(self, name, arguments):
        self._calls.append(name)
        return f"call {len(self._calls)}"

    def user_turn(self):
        self._asked += 1
        return "Please do it again." if self._asked == 1 else None

    def state(self):
        return {"calls": len(self._calls)}

    def verdict(self, turns):
        enough = len(self._calls) > 1
        return Verdict(min(len(self._calls), 4) / 4, enough, "enough" if enough else "too_few")


class Broken(Counting):
    def reset(self, **row):
        raise RuntimeError("no world today")


class LiveEpisodes:
    environment: ClassVar = {
        "toolbox": "toolbox",
        "counting": "tests.verl.live_episodes:Counting",
        "broken": "tests.verl.live_episodes:Broken",
    }

    def problems(self, split):
        toolbox = load_task("toolbox", tools="signatures", distractors=1, mode="shaped", train=4, test=4)
        calls = load_task("function_calling", train=4, test=4, **ONE_CALL).problems(split)
        chosen = [("toolbox", toolbox.problems(split)[0]), ("counting", calls[2]), ("counting", calls[3])]
        chosen.append(("broken", calls[1]))
        return [replace(one, extra={**one.extra, "environment": name}) for name, one in chosen]

    def prompt(self, problem):
        return [dict(message) for message in problem.messages]

    def judge(self, problem, text):
        raise AssertionError("episodes are judged by their environments")

    def gold(self, problem):
        return ""
