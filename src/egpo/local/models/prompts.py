"""Problems to token ids, through the model's own chat template."""

from collections.abc import Sequence

from jinja2 import TemplateError

from egpo.chat_templates import render
from egpo.errors import EgpoError, InputError
from egpo.local.models.policy import Policy
from egpo.tasks import Problem, Task


def prompt_text(policy: Policy, task: Task, problem: Problem) -> str:
    """The prompt as the model reads it."""
    messages = task.prompt(problem)
    if isinstance(messages, str) or not messages:
        raise InputError(
            f"the task's `prompt` returned {messages!r:.60}",
            where=f"problem {problem.key}",
            fix='return messages: [{"role": "user", "content": ...}]',
        )
    try:
        return render(policy.tokenizer, messages, variables=policy.template)
    except EgpoError:
        raise
    except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise InputError(
            f"the chat template refuses the prompt: {error}",
            where=f"problem {problem.key}",
            fix="compare the task's messages with what the template expects",
        ) from error


def prompt_tokens(policy: Policy, task: Task, problems: Sequence[Problem]) -> list[tuple[int, ...]]:
    texts = [prompt_text(policy, task, problem) for problem in problems]
    for problem, text in zip(problems, texts, strict=True):
        _require_utf8(problem, text)
    encoded = policy.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [tuple(ids) for ids in encoded]


def _require_utf8(problem: Problem, text: str) -> None:
    """Half of a surrogate pair, as careless JSON holds it, is no text: tokenizers raise on it, each in its own way."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"its prompt holds {text[error.start]!r}, half of a surrogate pair",
            where=f"problem {problem.key!r:.80}",
            fix="mend the data: such a character comes of text that was cut or decoded wrongly",
        ) from error


def require_room(policy: Policy, problem: Problem, num_tokens: int, max_response_tokens: int) -> None:
    """A prompt and its response must fit what the model can read."""
    room = policy.context - max_response_tokens
    if num_tokens > room:
        raise InputError(
            f"a prompt of {num_tokens} tokens and a response of {max_response_tokens} do not fit the model's "
            f"{policy.context}",
            where=f"problem {problem.key[:80]}",
            fix=f"leave such problems out with rollout.max_prompt_tokens={max(room, 1)}"
            if room > 0
            else "lower rollout.max_response_tokens",
        )
