"""A real OpenEnv server with two environments: runs under the interpreter of .env-openenv, not ours.

`openenv_server.py PORT counter|tools`
"""

import sys
import time
from uuid import uuid4

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Add(Action):
    """Add a number to the counter. Negative numbers are refused."""

    number: int = Field(..., description="What to add.")


class Counted(Observation):
    total: int = 0
    note: str = ""


class Counter(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state, self._total = State(episode_id=str(uuid4()), step_count=0), 0

    def reset(self, seed=None, episode_id=None, goal: int = 10, **kwargs):
        self._goal, self._total, self._seed = goal, 0, seed
        self._state = State(episode_id=episode_id or "e", step_count=0)
        return Counted(total=0, note=f"Reach {goal}.", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        if action.number < 0:
            raise ValueError("negative")
        if action.number == 99:
            time.sleep(600)
        if action.number == 98:
            import os

            os._exit(1)
        self._total += action.number
        self._state.step_count += 1
        done = self._total == getattr(self, "_goal", 10)
        return Counted(total=self._total, done=done, reward=1.0 if done else 0.0)

    @property
    def state(self):
        return self._state


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("tools")
        self._notes = []

        @server.tool
        def add_note(text: str) -> str:
            """Add a note."""
            self._notes.append(text)
            return f"{len(self._notes)} notes"

        super().__init__(server)
        self._state = State(episode_id="e", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._notes.clear()
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=None)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    port, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "counter":
        app = create_fastapi_app(Counter, Add, Counted, max_concurrent_envs=4)
    else:
        app = create_fastapi_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
