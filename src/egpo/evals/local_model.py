"""Samples responses from a model that is loaded into this process, in batches, with the embedded engine.

In the names of tensors, B is the number of rows (responses) of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from egpo.config.schema import Rollout
from egpo.config.sections.training import EpisodeSettings
from egpo.errors import InputError
from egpo.evals.responses import ProgressCallback, Response, Sampling
from egpo.local.draws import Draws
from egpo.local.measure import measure
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.sampling.sample import sample
from egpo.local.training.preflight import require_tags_in_text
from egpo.tags import THINK_TAGS
from egpo.tasks import Problem, Task

ROWS_AT_ONCE = 256
_USUAL_MAX_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A model loaded into this process, and how its responses are delimited.

    `tags` open and close the thinking. A response ends at one of the strings `stop`, one of the token ids
    `stop_tokens`, or the model's own end token. `rows_at_once` responses are sampled per batch. Problems whose prompts
    are longer than `max_prompt_tokens` are left out. `episodes`: limits, for tasks with an environment.
    """

    label: str
    policy: Policy
    tags: tuple[str, str] = THINK_TAGS
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    rows_at_once: int = ROWS_AT_ONCE
    max_prompt_tokens: int | None = None
    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)

    @property
    def ends_at(self) -> str:
        """What ends a response, in words."""
        return self.policy.ends_at(self.stop, self.stop_tokens)

    def respond(
        self, task: Task, problems: Sequence[Problem], sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        """Sample responses to the problems, or episodes if the task has an environment.

        They depend on the seed, but not on which problems share a batch. Problems whose prompts are too long get none.
        """
        require_tags_in_text(self.policy.tokenizer, self.tags, task)
        lengths = prompt_lengths(self.policy, task, problems, self.episodes, at_once=self.rows_at_once)
        rollout = self._rollout(sampling, lengths)
        room = self.policy.context - rollout.max_response_tokens
        longest = room if self.max_prompt_tokens is None else min(room, self.max_prompt_tokens)
        fitting = [index for index, length in enumerate(lengths) if length <= longest]
        responses: list[Response] = []
        for batch in self._batches(fitting, sampling.n):
            watch(len(responses), len(fitting) * sampling.n)
            draws = Draws(sampling.seed, purpose="evaluation")
            rollouts = sample(self.policy, task, [problems[i] for i in batch], rollout, draws, tags=self.tags)
            responses += self._read(rollouts, batch)
        watch(len(responses), len(fitting) * sampling.n)
        return responses

    def _batches(self, indices: list[int], n: int) -> Iterator[list[int]]:
        size = max(1, self.rows_at_once // n)
        yield from (indices[first : first + size] for first in range(0, len(indices), size))

    def _rollout(self, sampling: Sampling, prompt_lengths: list[int]) -> Rollout:
        rollout = Rollout(
            n=sampling.n,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_response_tokens=self._max_tokens(sampling.max_tokens, prompt_lengths),
            stop=self.stop,
            stop_tokens=self.stop_tokens,
            episodes=sampling.limited_episodes(self.episodes),
        )
        # `Rollout` belongs to training and rejects a temperature of 0, which an evaluation may have: set it unchecked.
        return rollout.model_copy(update={"temperature": float(sampling.temperature)})

    def _max_tokens(self, wanted: int | None, prompt_lengths: list[int]) -> int:
        """Return the length limit of a response in tokens: `wanted`, or if that is None, 1,024 or what fits.

        What fits is the part of the context that the longest prompt leaves. If `wanted` is given, problems whose
        prompts leave less are left out later. Raise InputError if no response would fit.
        """
        length = max(prompt_lengths) if wanted is None else min(prompt_lengths)
        room = self.policy.context - length
        if room < (wanted or 1):
            raise InputError(
                f"a prompt of {length} tokens leaves {max(room, 0)} tokens for the response in the model's context of "
                f"{self.policy.context} tokens",
                where=f"model {self.label}",
                fix="lower --max-tokens, or use problems with shorter prompts",
            )
        return wanted or min(_USUAL_MAX_TOKENS, room)

    def _read(self, rollouts: Rollouts, batch: list[int]) -> Iterator[Response]:
        measures = measure(self.policy, rollouts, self.tags)
        prompts = self.policy.tokenizer.batch_decode([list(prompt) for prompt in rollouts.prompts])
        lengths, finished = rollouts.length_B.tolist(), rollouts.finished_B.tolist()
        n = len(rollouts) // len(batch)
        for row, place in enumerate(rollouts.problem_B.tolist()):
            entropies = {name: float(entropy_B[row]) for name, entropy_B in measures.entropy.items()}
            yield Response(
                problem=batch[place],
                sample=row % n,
                prompt=prompts[place],
                text=rollouts.texts[row],
                num_tokens=lengths[row],
                finished=finished[row],
                entropy={name: value for name, value in entropies.items() if isfinite(value)},
                episode=None if rollouts.episodes is None else rollouts.episodes[row].record,
            )
