"""The environment of benchmarks/episodes.py: a world of `toolbox` as a plain class in the shape of TRL's
`environment_factory`. TRL and egpo run this same class.

The prompts list the tools of each problem as short signatures, and the chat template lists none (`HIDE_TOOLS`): TRL
would otherwise write the schemas of all tools into every prompt.
"""

import copy

from egpo.environments.toolbox.world_tools import TOOLS
from egpo.environments.toolbox.worlds import read_world
from egpo.tasks.toolbox import Toolbox

HIDE_TOOLS = "{%- set tools = none %}\n"
SETTINGS = {"tools": "signatures", "domains": ["files", "notes", "bank"], "distractors": 1}


class ToolboxWorld:
    """A world of files, notes and a bank. The reward is 1 if its state is as expected and every needed call was made;
    what the assistant says at the end is not judged, because TRL does not show it to an environment."""

    def reset(self, world: str, **row: object) -> None:
        self._world = read_world(world)
        self._state, self._made = copy.deepcopy(self._world.state), []

    def _run(self, name: str, **arguments: object) -> object:
        self._made.append([name, arguments])
        return TOOLS[name].run(self._state, **arguments)

    def files(self) -> list:
        """List the files."""
        return self._run("files")

    def read(self, file: str) -> str:
        """Read a file.

        Args:
            file: Its name.
        """
        return self._run("read", file=file)

    def write(self, file: str, text: str) -> str:
        """Write a text to a file.

        Args:
            file: Its name.
            text: The text.
        """
        return self._run("write", file=file, text=text)

    def delete(self, file: str) -> str:
        """Delete a file.

        Args:
            file: Its name.
        """
        return self._run("delete", file=file)

    def unlock(self, file: str) -> str:
        """Unlock a file.

        Args:
            file: Its name.
        """
        return self._run("unlock", file=file)

    def notes(self) -> list:
        """List the notes."""
        return self._run("notes")

    def add_note(self, text: str) -> str:
        """Add a note.

        Args:
            text: The note.
        """
        return self._run("add_note", text=text)

    def drop_note(self, text: str) -> str:
        """Remove a note.

        Args:
            text: The note.
        """
        return self._run("drop_note", text=text)

    def balance(self, name: str) -> int:
        """Tell what somebody has.

        Args:
            name: Whose money.
        """
        return self._run("balance", name=name)

    def send(self, name: str, amount: int) -> str:
        """Send money to somebody.

        Args:
            name: The receiver.
            amount: How much.
        """
        return self._run("send", name=name, amount=amount)

    def get_reward(self) -> float:
        needed = all([name, dict(arguments)] in self._made for name, arguments in self._world.needs)
        return float(needed and self._state == self._world.expected)


class WorldEpisodes(Toolbox):
    """The task `toolbox` with this class as its environment: egpo hosts it in worker processes, as any class of a
    user."""

    environment = "_toolbox_world:ToolboxWorld"


class SingleTurns(Toolbox):
    """The prompts of the task `toolbox`, without its environment: a response is one turn."""

    environment = None
