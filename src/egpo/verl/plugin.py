"""What verl imports in every one of its processes (entry point group `verl.plugins`).

Nothing heavy happens here: estimators and trainers are registered once verl itself has imported the modules that hold
its tables, which most of its processes never do.

verl drops what a plug-in raises while it is imported, at debug level. So the complaint is printed here, and a command
line that names us ends at once (by `SystemExit`, which verl does not catch). What fails later, in a hook, is outside
verl's `try` and ends the run before its first step.
"""

import platform
import re
import sys
from collections.abc import Callable
from types import ModuleType

USE_V1 = "run verl's main_ppo with trainer.use_v1=True and trainer.v1.trainer_mode=sync or colocate_async"
NAMES_US = re.compile(r"(adv_estimator|trainer_mode)=.?egpo|algorithm\.egpo|reward_manager\.name=.?hybrid")
"""In an argument of verl's command line; a path may hold our name and mean nothing by it."""


def load() -> None:
    try:
        _wait_for_verl()
    except Exception as error:  # the boundary: verl would drop it in silence
        _complain(error)
        if any(map(NAMES_US.search, sys.argv[1:])):
            raise SystemExit(2) from error


def _wait_for_verl() -> None:
    from egpo.verl.imports import when_imported
    from egpo.verl.settings import installed_version, require_supported

    require_supported(installed_version())
    for name, hook in HOOKS.items():
        when_imported(name, _loudly(hook))


def _loudly(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def complain_and_raise(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            _complain(error)
            raise

    return complain_and_raise


def _complain(error: Exception) -> None:
    from egpo.verl.settings import SUPPORTED, installed_version
    from egpo.version import __version__

    versions = f"egpo {__version__}, verl {installed_version()} ({SUPPORTED} is supported)"
    print(
        f"egpo: the plug-in for verl could not be loaded: {type(error).__name__}: {error}\n"
        f"{versions}, Python {platform.python_version()}; `egpo doctor` tells more, "
        "and VERL_USE_EXTERNAL_PLUGINS=none has verl run without the plug-in",
        file=sys.stderr,
        flush=True,
    )


def _register_estimators(core_algos: ModuleType) -> None:
    from egpo.verl.estimators import register_estimators

    register_estimators(core_algos)


def _register_trainers(v1: ModuleType) -> None:
    from egpo.verl.plugin_checks import refuse_our_estimators
    from egpo.verl.trainers import EntropyTrainer, register_trainers

    register_trainers(v1.trainer_base)
    refuse_our_estimators(v1.PPOTrainer, USE_V1, allowed=EntropyTrainer)


def _guard_old_trainer(ray_trainer: ModuleType) -> None:
    from egpo.verl.plugin_checks import refuse_our_estimators

    refuse_our_estimators(ray_trainer.RayPPOTrainer, USE_V1)


def _guard_separate_trainers(main_ppo: ModuleType) -> None:
    from egpo.verl.plugin_checks import refuse_separate_trainers

    refuse_separate_trainers(main_ppo, USE_V1)


def _accept_our_keys(overrides_parser: ModuleType) -> None:
    from egpo.verl.overrides import accept_our_keys

    accept_our_keys(overrides_parser)


def _register_reward_managers(_: ModuleType) -> None:
    from egpo.verl.hybrid_manager import register_hybrid_manager

    register_hybrid_manager()


HOOKS = {
    "hydra.core.override_parser.overrides_parser": _accept_our_keys,
    "verl.experimental.reward_loop.reward_manager": _register_reward_managers,
    "verl.trainer.ppo.core_algos": _register_estimators,
    "verl.trainer.ppo.v1": _register_trainers,
    "verl.trainer.ppo.ray_trainer": _guard_old_trainer,
    "verl.trainer.main_ppo": _guard_separate_trainers,
}

load()
