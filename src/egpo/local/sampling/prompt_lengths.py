"""The lengths of prompts in tokens, as they will be sampled from: those of episodes with the environment's part."""

from collections.abc import Sequence

from egpo.chat_turns import require_tools
from egpo.config.schema import Rollout
from egpo.config.sections.training import EpisodeSettings
from egpo.environments import EpisodeThreads
from egpo.local.draws import Draws
from egpo.local.models.policy import Policy, prompt_tokens
from egpo.local.sampling.episode_rows import Episodes
from egpo.tags import THINK_TAGS
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_of


def prompt_lengths(
    policy: Policy, task: Task, problems: Sequence[Problem], settings: EpisodeSettings, *, at_once: int = 256
) -> list[int]:
    """Return the length of each problem's prompt.

    What an environment says first, and the tools that the chat template lists, are known only from an instance that was
    reset: each problem's is started once, `at_once` at a time. An environment that cannot start has a short prompt.
    InputError if the chat template does not write the tools.
    """
    if not problems or environment_of(task, problems[0]) is None:
        return [len(prompt) for prompt in prompt_tokens(policy, task, problems)]
    lengths: list[int] = []
    rollout = Rollout(n=1, episodes=settings)
    with EpisodeThreads() as threads:
        for first in range(0, len(problems), at_once):
            chosen = problems[first : first + at_once]
            started = Episodes(policy, task, chosen, rollout, Draws(0), threads, THINK_TAGS)
            for state in started.rows:
                state.episode.close()
            if any(start.template_tools for start in started.starts):
                require_tools(policy.tokenizer, variables=policy.template)
            lengths += [len(started.prompt(row)) for row in range(len(chosen))]
    return lengths
