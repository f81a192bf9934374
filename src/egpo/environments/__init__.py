"""Environments: stateful worlds in which a model calls tools over several turns, and the driver of their episodes.

A row of a task enters (`prompt`, `seed`, further columns); an `EpisodeRecord` with its verdict leaves. No engine is
imported here: an engine samples the assistant's texts and hands them to an `Episode`.

    protocol.py         `Environment`, what a class may define; its tools and their schemas
    table.py            loads an environment by its name in ENVIRONMENTS, or an outside class as `module:Class`
    sessions.py         a session: one instance, used by one rollout, with its faults told apart from its tools' errors
    session_workers.py  sessions in worker processes, with a time limit per call; inside/session_worker.py runs there
    hosts.py            `EnvironmentHost` opens sessions; `EpisodeThreads` runs slow ones side by side
    episodes.py         `Episode`, the state machine of one rollout: a text in, new messages out
    records.py          what is stored of an episode: turns, calls, results, changes of state, verdict, reasons
    replays.py          plays a recorded episode again: the same verdict, or where it differs

The environments of the package:

    toolbox/            generated worlds of a few stateful tools, with gold trajectories
    bfcl/               BFCL's multi-turn cases, hosted in BFCL's own Python environment
    openenv.py          a client of OpenEnv servers; web_sockets.py is its connection

To add an environment of the package, add a row to ENVIRONMENTS in table.py.
"""

from egpo.environments.episodes import Episode, EpisodeLimits, EpisodeStart, TurnOutcome
from egpo.environments.hosts import EnvironmentHost, EpisodeThreads
from egpo.environments.protocol import Environment, EnvironmentFailedError
from egpo.environments.records import CallRecord, EpisodeRecord, TurnRecord
from egpo.environments.replays import Replay, replay
from egpo.environments.table import ENVIRONMENTS, load_environment

__all__ = [
    "ENVIRONMENTS",
    "CallRecord",
    "Environment",
    "EnvironmentFailedError",
    "EnvironmentHost",
    "Episode",
    "EpisodeLimits",
    "EpisodeRecord",
    "EpisodeStart",
    "EpisodeThreads",
    "Replay",
    "TurnOutcome",
    "TurnRecord",
    "load_environment",
    "replay",
]
