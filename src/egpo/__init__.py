"""Entropy-guided reinforcement learning for language models.

The public names of the package. Each is imported when it is first used, so that `import egpo` is fast and does not
load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from egpo.version import __version__

if TYPE_CHECKING:
    from egpo.advantages import ESTIMATORS, Signals, explain, over_tokens
    from egpo.api import compare, evaluate, probe, report, sft, train
    from egpo.api_results import RunResult
    from egpo.config import Config, load_config
    from egpo.errors import EgpoError, InputError
    from egpo.rewards import Verdict, score, trl_reward
    from egpo.runs.ledger import StepReport
    from egpo.segments import Segments, mean_over, opened_by_prompt, segment_masks
    from egpo.tasks import Problem, load_task

_HOME_OF = {
    "ESTIMATORS": "egpo.advantages",
    "Signals": "egpo.advantages",
    "explain": "egpo.advantages",
    "over_tokens": "egpo.advantages",
    "Config": "egpo.config",
    "load_config": "egpo.config",
    "EgpoError": "egpo.errors",
    "InputError": "egpo.errors",
    "Verdict": "egpo.rewards",
    "score": "egpo.rewards",
    "Segments": "egpo.segments",
    "mean_over": "egpo.segments",
    "opened_by_prompt": "egpo.segments",
    "segment_masks": "egpo.segments",
    "load_task": "egpo.tasks",
    "RunResult": "egpo.api_results",
    "StepReport": "egpo.runs.ledger",
    "train": "egpo.api",
    "sft": "egpo.api",
    "evaluate": "egpo.api",
    "probe": "egpo.api",
    "compare": "egpo.api",
    "report": "egpo.api",
    "Problem": "egpo.tasks",
    "trl_reward": "egpo.rewards",
}

__all__ = [
    "ESTIMATORS",
    "Config",
    "EgpoError",
    "InputError",
    "Problem",
    "RunResult",
    "Segments",
    "Signals",
    "StepReport",
    "Verdict",
    "__version__",
    "compare",
    "evaluate",
    "explain",
    "load_config",
    "load_task",
    "mean_over",
    "opened_by_prompt",
    "over_tokens",
    "probe",
    "report",
    "score",
    "segment_masks",
    "sft",
    "train",
    "trl_reward",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'egpo' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
