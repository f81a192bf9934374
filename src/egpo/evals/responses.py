"""Responses of an evaluated model: how they are sampled, the protocol that models implement, and the stored records.

`evals/<name>.jsonl` holds every response with its verdict, one JSON object per line. As in the rollouts of a run, a
field that verl also writes has verl's name, so that `egpo audit rewards` can read these files, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.runs.json_lines import encoded, lines_file, read_lines

if TYPE_CHECKING:
    from egpo.config.sections.training import EpisodeSettings
    from egpo.environments.records import EpisodeRecord
    from egpo.tasks import Problem, Task
from egpo.runs.stored import EvaluationFile

ProgressCallback = Callable[[int, int], None]
"""A function that displays progress. Its arguments are the number of responses so far and their total number."""


def ignore_progress(done: int, total: int) -> None:
    """Do nothing: the progress callback for callers without a progress display."""


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled. `n` is the number per problem; temperature 0 is greedy decoding, and needs `n` = 1.

    `max_tokens`: longest response. None: 1,024 tokens, or fewer if the context is shorter; a served model uses the
    server's default. `top_k` = 0 and `min_p` = 0 turn these filters off. `max_turns` and `max_turn_tokens` limit the
    episodes of a task with an environment; None: as in the recipe. `max_tokens` is then the limit of a whole episode; a
    served model, whose tokens are counted by the server, is only limited in each turn.
    """

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    max_turns: int | None = None
    max_turn_tokens: int | None = None

    def __post_init__(self) -> None:
        faults = {
            f"n={self.n}": self.n < 1,
            f"temperature={self.temperature}": not 0 <= self.temperature < float("inf"),
            f"top_p={self.top_p}": not 0 < self.top_p <= 1,
            f"max_tokens={self.max_tokens}": self.max_tokens is not None and self.max_tokens < 1,
            f"seed={self.seed}": not 0 <= self.seed < 2**32,
            f"top_k={self.top_k}": self.top_k < 0,
            f"min_p={self.min_p}": not 0 <= self.min_p <= 1,
            f"max_turns={self.max_turns}": self.max_turns is not None and self.max_turns < 1,
            f"max_turn_tokens={self.max_turn_tokens}": self.max_turn_tokens is not None and self.max_turn_tokens < 1,
            f"n={self.n} with greedy decoding": self.temperature == 0 and self.n > 1,
        }
        for name, is_wrong in faults.items():
            if is_wrong:
                greedy = "greedy" in name
                fix = "set n=1: greedy responses are all equal" if greedy else "see `egpo eval --help` for its range"
                raise InputError(f"{name} is not allowed", where="sampling", fix=fix)

    @property
    def described(self) -> str:
        """The number of responses and the temperature as a part of a file name: `greedy`, or such as `n8-t0.7`."""
        return "greedy" if self.temperature == 0 else f"n{self.n}-t{self.temperature:g}"

    def limited_episodes(self, settings: "EpisodeSettings") -> "EpisodeSettings":
        """Return the limits of episodes, with those that are set here."""
        chosen = {"max_turns": self.max_turns, "max_turn_tokens": self.max_turn_tokens}
        return settings.model_copy(update={name: value for name, value in chosen.items() if value is not None})

    def as_json_value(self) -> dict[str, Any]:
        """Return the settings; limits of episodes only if they are set."""
        limits = ("max_turns", "max_turn_tokens")
        return {name: value for name, value in asdict(self).items() if value is not None or name not in limits}


@dataclass(frozen=True)
class Response:
    """One response of a model, not yet judged.

    `problem` is the index of its problem, and `sample` its number among the responses to this problem, from 0.
    `entropy` is the mean entropy of each segment, in nats. Unknown values are None or missing: a server reports no
    entropy. `failure` is the reason why the server gave no text; None if it did. `episode`: the record of an episode,
    which has its verdict; `text` then has the assistant's texts of all turns.
    """

    problem: int
    sample: int
    prompt: str
    text: str
    num_tokens: int | None = None
    finished: bool | None = None
    entropy: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    episode: "EpisodeRecord | None" = None


class Respondent(Protocol):
    """A model that can be evaluated: loaded into this process, or behind a server."""

    @property
    def label(self) -> str:
        """The model's name in tables."""
        ...

    def respond(
        self, task: "Task", problems: "Sequence[Problem]", sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        """Return `sampling.n` responses per problem, but none to a problem whose prompt is too long for the model."""
        ...


@dataclass(frozen=True)
class SampleRecord:
    """One judged response. Unknown values are None or missing."""

    problem: str
    """Key of the problem."""
    sample: int
    """Number of this response among those to the same problem, from 0."""
    input: str
    """The prompt, as text."""
    output: str
    """The text of the response that was judged."""
    gts: Any
    """The ground truth."""
    score: float
    """The reward."""
    acc: bool
    """Whether the response is fully correct."""
    reason: str
    """Reason of the score, as the reward names it; if the server failed, a key of `server_requests.FAILURES`."""
    failed: bool = False
    """Whether the checker or the server failed. If so, `score` and `acc` say nothing about the model."""
    num_tokens: int | None = None
    finished: bool | None = None
    """Whether the response ended by itself: False if it was truncated at the length limit."""
    segments: Mapping[str, float] = field(default_factory=dict)
    """Mean entropy of `thinking`, `answer` and `response` in nats; an empty segment is missing."""
    data_source: str = ""
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    episode: Mapping[str, Any] | None = None
    """The stored form of an episode's record (`EpisodeRecord.stored`); None for a single response."""


def write_samples(path: Path, samples: Iterable[SampleRecord]) -> None:
    write_atomically(path, b"".join(encoded(_as_line(sample)) for sample in samples))


def read_samples(path: Path) -> list[SampleRecord]:
    """Return the records of all lines of a file. Fields that this version does not know are ignored."""
    return [_as_record(line.value, f"{path}, line {line.number}") for line in read_lines(path, whole=True)]


@dataclass(frozen=True)
class StoredEvaluation(EvaluationFile):
    """An evaluation read from disk: `header` is the JSON with the figures, `samples` are the judged responses."""

    @cached_property
    def samples(self) -> Sequence[SampleRecord]:
        """All judged responses of the evaluation, read from the `.jsonl` file beside it.

        Reading raises InputError if this file is missing or damaged.
        """
        path = self.path.with_suffix(".jsonl")
        if lines_file(path) is None:
            fix = "evaluate again, or compare figures alone with `egpo compare --scores`"
            raise InputError("the responses of this evaluation are missing", where=str(path), fix=fix)
        samples, written = tuple(read_samples(path)), self.header.get("num_responses")
        if isinstance(written, int) and len(samples) != written:
            what = f"the file has {len(samples):,} responses, but {written:,} were written"
            raise InputError(what, where=str(path), fix="restore the file, or evaluate again")
        return samples

    @property
    def passes(self) -> list[list[SampleRecord]]:
        """The responses grouped by sample number: the first response to each problem, then the second, and so on."""
        found: dict[int, list[SampleRecord]] = {}
        for sample in self.samples:
            found.setdefault(sample.sample, []).append(sample)
        return [found[number] for number in sorted(found)]


def _as_line(sample: SampleRecord) -> dict[str, Any]:
    line = {item.name: getattr(sample, item.name) for item in fields(sample)}
    if sample.episode is None:
        del line["episode"]
    # A custom reward may be NaN, which JSON does not have.
    return line | {"score": sample.score if math.isfinite(sample.score) else None}


def _as_record(line: Mapping[str, Any], where: str) -> SampleRecord:
    known = {item.name: line[item.name] for item in fields(SampleRecord) if item.name in line}
    if known.get("score", 0.0) is None:
        known["score"] = math.nan
    try:
        return SampleRecord(**known)
    except TypeError as error:
        fix = "give a file that `egpo eval` wrote"
        raise InputError(f"this line is not a stored response ({error})", where=where, fix=fix) from error
