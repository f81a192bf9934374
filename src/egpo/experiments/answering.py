"""A model that answers: loaded in this process, or behind a server that lasts as long as the questions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from egpo.config import Config
from egpo.config.machine import model_folder, this_machine
from egpo.errors import InputError
from egpo.evals.evaluate import file_name
from egpo.evals.responses import Respondent
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache
from egpo.evals.targets import LocalTarget
from egpo.serving.commands import Serving
from egpo.serving.served import served

_THINKING = "enable_thinking"


@contextmanager
def answering(candidate: LocalTarget, config: Config, say: Callable[[str], None]) -> Iterator[Respondent]:
    """`eval.serve` decides. `say` hears the server's log."""
    if not config.eval.serve:
        with candidate.opened() as model:
            yield model
        return
    require_servable(config)
    python = this_machine().environments.verl
    with (
        served(_serving(candidate, config), python=python, say=say) as server,
        TemporaryDirectory() as folder,
        AnswerCache.open(Path(folder) / "answers.jsonl") as cache,
    ):
        yield ServedModel(Server.at(server.url), server.model_name, cache)


def _serving(candidate: LocalTarget, config: Config) -> Serving:
    """Without parsers: the reward reads thoughts and calls as the model writes them."""
    thinking = config.model.template.get(_THINKING)
    return Serving(
        model_folder(candidate.place.model),
        file_name(candidate.label),
        thinking=None if thinking is None else bool(thinking),
        tool_parser="none",
        reasoning_parser="none",
    )


def require_servable(config: Config) -> None:
    """A server is asked by messages alone: what it cannot be told must not be forgotten silently."""
    untold = [f"model.template.{key}" for key in config.model.template if key != _THINKING]
    untold += ["rollout.stop"] if config.rollout.stop or config.rollout.stop_tokens else []
    if untold:
        fix = "evaluate in this process: eval.serve=false"
        raise InputError(f"a server cannot be told `{untold[0]}`", where="eval.serve", fix=fix)
