"""A client of OpenEnv servers, as an environment.

`GET /health` and `GET /schema` are asked over HTTP. The episode itself uses the server's WebSocket `/ws`, on which each
connection has an instance of its own: in OpenEnv 0.3 the routes `POST /reset` and `POST /step` make a new instance for
every request, so that no episode of two steps is possible over them.

The server's action becomes one tool, `step`, whose arguments are the fields of the action. If the server's actions are
calls of MCP tools, each of its tools is a tool.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx

from egpo.environments.protocol import Environment, EnvironmentFailedError, Schema
from egpo.environments.records import TurnRecord
from egpo.environments.web_sockets import WebSocket
from egpo.errors import InputError
from egpo.rewards.verdict import Verdict
from egpo.waits import waiting

_NOT_SENT = ("prompt", "ground_truth")
_REWARDS = ("sum", "last")


class OpenEnv(Environment):
    """An episode on an OpenEnv server. `url`: its address, such as http://127.0.0.1:8000.

    `call_s`, `reset_s`: the limits of one step and of the start in seconds (default: those of the episode). `reward`:
    the "sum" of the steps' rewards, or the "last" one. An episode is correct from `full_reward` on. The row's columns,
    `seed` included, are passed to the server's `reset`, which takes those that it knows.
    """

    deterministic: ClassVar[bool] = False

    def __init__(
        self, url: str, *, call_s: float = 30.0, reset_s: float = 120.0, reward: str = "sum", full_reward: float = 1.0
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InputError(
                f"url={url!r:.80} is not an address", where="environment openenv", fix="give http://HOST:PORT"
            )
        if reward not in _REWARDS:
            raise InputError(
                f"reward={reward!r:.40} is not allowed", where="environment openenv", fix='give "sum" or "last"'
            )
        self._url, self._call_s, self._reset_s = url.rstrip("/"), call_s, reset_s
        self._by, self._full = reward, full_reward
        self._socket: WebSocket | None = None
        self._rewards: list[float] = []

    def reset(self, *args: Any, **row: Any) -> str | None:
        with waiting("openenv", f"the OpenEnv server at {self._url}", limit_s=self._reset_s):
            self._action = self._schema()
            self._socket = WebSocket(f"{self._url}/ws", self._reset_s)
        given = {name: value for name, value in row.items() if name not in _NOT_SENT}
        reply = self._ask("reset", given, self._reset_s)
        self._mcp_tools = self._listed_tools() if self._calls_tools() else None
        return _shown(reply["observation"]) or None

    def tool_schemas(self) -> Sequence[Schema]:
        if self._mcp_tools is not None:
            return self._mcp_tools
        properties = {name: one for name, one in (self._action.get("properties") or {}).items() if name != "metadata"}
        required = [name for name in self._action.get("required") or [] if name in properties]
        parameters = {"type": "object", "properties": properties, "required": required}
        about = str(self._action.get("description") or "Take a step in the environment.").strip()
        return [{"type": "function", "function": {"name": "step", "description": about, "parameters": parameters}}]

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        action: Mapping[str, Any] = arguments
        if self._mcp_tools is not None:
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        reply = self._ask("step", action, self._call_s)
        self.done = bool(reply.get("done"))
        if isinstance(reply.get("reward"), int | float):
            self._rewards.append(float(reply["reward"]))
        return _shown(reply["observation"])

    def state(self) -> Mapping[str, Any] | None:
        return self._ask("state", None, self._call_s)

    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict:
        total = sum(self._rewards) if self._by == "sum" else (self._rewards or [0.0])[-1]
        correct = total >= self._full
        return Verdict(total, correct, "correct" if correct else "below_full_reward")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _schema(self) -> dict[str, Any]:
        try:
            with httpx.Client(timeout=self._reset_s, trust_env=not self._url.startswith("http://127.")) as client:
                client.get(f"{self._url}/health").raise_for_status()
                found = client.get(f"{self._url}/schema").raise_for_status().json()
            action: dict[str, Any] = found["action"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            what = f"there is no OpenEnv server at {self._url} ({type(error).__name__}: {error})"
            raise EnvironmentFailedError(what, "environment_reset") from error
        return action

    def _calls_tools(self) -> bool:
        return {"tool_name", "arguments"} <= set(self._action.get("properties") or {})

    def _listed_tools(self) -> list[Schema]:
        tools = self._ask("step", {"type": "list_tools"}, self._call_s)["observation"].get("tools") or []
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "parameters": tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"},
                },
            }
            for tool in tools
        ]

    def _ask(self, kind: str, data: Mapping[str, Any] | None, limit_s: float) -> dict[str, Any]:
        """Send a message and return the data of the reply.

        ValueError if the server says that the action is not valid, or that its environment raised: the model's mistake.
        EnvironmentFailedError for anything else.
        """
        assert self._socket is not None
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            with waiting("openenv", f"`{kind}` of the OpenEnv server at {self._url}", limit_s=limit_s):
                reply = json.loads(self._socket.ask(json.dumps(message), limit_s))
            answer: dict[str, Any] = reply["data"]
        except TimeoutError as error:
            raise EnvironmentFailedError(
                f"`{kind}` gave no answer within {limit_s:g} s", "environment_timeout"
            ) from error
        except (ConnectionError, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailedError(
                f"the OpenEnv server failed in `{kind}`: {error}", "environment_died"
            ) from error
        if reply.get("type") != "error":
            return answer
        said, code = str(answer.get("message")), str(answer.get("code"))
        if kind == "step" and code == "VALIDATION_ERROR":
            raise ValueError(f"the action is not valid: {_first_error(answer)}")
        if kind == "step" and code == "EXECUTION_ERROR":
            raise ValueError(said)
        fix = "; allow more with max_concurrent_envs of the server" if code == "CAPACITY_REACHED" else ""
        raise EnvironmentFailedError(f"the OpenEnv server refused `{kind}`: {code} {said}{fix}", "environment_fault")


def _first_error(answer: Mapping[str, Any]) -> str:
    errors = answer.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    place = ".".join(str(part) for part in first.get("loc", ()))
    return f"{place} {first.get('msg', '')}".strip() or "unknown"


def _shown(observation: Any) -> str:
    """Return an observation as text: a field alone as it is, several as JSON without those that say nothing."""
    if not isinstance(observation, dict):
        return str(observation)
    told = {name: value for name, value in observation.items() if value not in (None, "", [], {})}
    if len(told) == 1 and isinstance(alone := next(iter(told.values())), str):
        return alone
    return json.dumps(told, ensure_ascii=False) if told else ""
