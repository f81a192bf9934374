"""The toolbox task: short episodes with a few stateful tools, which a small model can learn.

The worlds, the tools and the judge are those of the environment `toolbox`. A whole episode can be written as one text,
the assistant's texts with `TURN_BREAK` between them: `gold` writes it so, and `judge` plays it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

from egpo.data import Dropped, Record, Row
from egpo.data.rows import Message
from egpo.data.tool_prompt import qwen3_system_text
from egpo.environments import EnvironmentHost
from egpo.environments.toolbox.world_tools import DOMAINS, TOOLS
from egpo.environments.toolbox.worlds import World, WorldKnobs, draw_world, read_world
from egpo.errors import InputError
from egpo.rewards.verdict import Verdict
from egpo.tasks.episodes import TURN_BREAK, judge_episode
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import Sizes, SourcedTask, require_at_least, require_choice, require_whole

Mode = Literal["binary", "shaped"]
ToolsText = Literal["template", "signatures", "qwen3"]
_TEST_SHARE = 5
"""One problem in five belongs to the test split, by the digest of its key, whatever the seed and the sizes."""


class Toolbox(SourcedTask):
    """A task of generated worlds with stateful tools (files, notes, calendar, bank, shop, home).

    The user asks for `min_requests` to `max_requests` things from `domains` (None: all six); `distractors` tools are
    offered that are not needed. `chains`, `missing` and `errors` are the shares of requests in which one call needs the
    result of another, in which something has to be asked for, and in which a tool refuses at first. `tools` says who
    lists the tools: the chat template ("template"), or the system message, as short signatures or in Qwen3's format.
    `describe_tools`: with descriptions. `thinking`: gold trajectories think before each turn. `mode` of the reward is
    "binary" or "shaped".
    """

    data_source: ClassVar[str] = "toolbox"
    generated_data_source: ClassVar[str] = "toolbox"
    ability: ClassVar[str] = "function_calling"
    generated_sizes: ClassVar[Sizes] = Sizes(train=1_024, test=256)
    environment: ClassVar[str] = "toolbox"

    def __init__(
        self,
        *,
        mode: Mode = "binary",
        domains: Sequence[str] | None = None,
        min_requests: int = 1,
        max_requests: int = 1,
        distractors: int = 2,
        chains: float = 0.0,
        missing: float = 0.0,
        errors: float = 0.0,
        tools: ToolsText = "template",
        describe_tools: bool = False,
        thinking: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        require_choice("toolbox", "mode", mode, get_args(Mode))
        require_choice("toolbox", "tools", tools, get_args(ToolsText))
        require_at_least("toolbox", 1, min_requests=min_requests, max_requests=max_requests)
        require_whole("toolbox", distractors=distractors)
        if isinstance(domains, str) or (domains is not None and not domains):
            raise InputError(
                "`domains` is not a list of names", where="task toolbox", fix=f"choose from {', '.join(DOMAINS)}"
            )
        chosen = DOMAINS if domains is None else tuple(domains)
        self._knobs = WorldKnobs(chosen, min_requests, max_requests, distractors, chains, missing, errors)
        self.mode, self._tools, self._described, self._thinking = mode, tools, describe_tools, thinking
        self._host: EnvironmentHost | None = None

    def draw(self, rng: random.Random) -> Problem:
        return self.problem_from(draw_world(rng, self._knobs))

    def generate(self, split: str, count: int, taken: set[str], seed: int) -> Iterator[Problem]:
        """Yield generated problems of one split. A problem belongs to one split only, for every seed."""
        others: set[str] = set()
        drawing = super().generate(split, 2**31, others, seed)
        made = 0
        while made < count:
            problem = next(drawing)
            if self.split_of(problem.key) == split:
                made += 1
                taken.add(problem.key)
                yield problem

    def split_of(self, key: str) -> str:
        """Return the split to which the problem with this key belongs."""
        return "test" if int(key, 16) % _TEST_SHARE == 0 else "train"

    def problem_from(self, world: World) -> Problem:
        """Return the problem of a world: the prompt is the user's first text, with a system message if it lists the
        tools."""
        extra: dict[str, str | int] = {
            "world": world.to_json(),
            "mode": self.mode,
            "describe_tools": int(self._described),
            "tools_in_prompt": int(self._tools != "template"),
        }
        said: Message = {"role": "user", "content": world.utterances[0]}
        messages = (said,) if self._tools == "template" else ({"role": "system", "content": self._listed(world)}, said)
        return Problem(world.key, messages, world.key, self.ability, extra)

    def _listed(self, world: World) -> str:
        if self._tools == "signatures":
            return "\n".join(TOOLS[name].signature() for name in world.tools)
        return qwen3_system_text("", [TOOLS[name].schema(described=self._described) for name in world.tools])

    def read(self, record: Record, index: int) -> Problem | Dropped:
        world = record.value.get("world")
        if not isinstance(world, str):
            fix = "leave `source` out: the worlds of this task are generated"
            raise InputError("the row has no `world`", where=record.where, fix=fix)
        return self.problem_from(read_world(world))

    def key(self, row: Row) -> str:
        return row.ground_truth

    def problem_of(self, row: Row) -> Problem:
        return replace(super().problem_of(row), extra={**row.extra, "mode": self.mode})

    def gold_turns(self, problem: Problem) -> list[str]:
        """Return the assistant's texts of an episode that earns the full reward."""
        return read_world(str(problem.extra["world"])).gold_texts(thinking=self._thinking)

    def gold(self, problem: Problem) -> str:
        return TURN_BREAK.join(self.gold_turns(problem))

    def judge(self, problem: Problem, text: str) -> Verdict:
        """Play an episode that is written as one text, and return its verdict."""
        self._host = self._host or EnvironmentHost(self.environment)
        return judge_episode(self._host, problem, text)
