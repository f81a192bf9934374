"""The plug-in's entry point: verl imports this module in each of its processes (entry point group `verl.plugins`).

The table `HOOKS` maps a module of verl, Hydra or transformers to a function that is called after its import. So
estimators and trainers are registered only in processes that use them, and importing this module is cheap.

verl catches an exception of a plug-in and logs it at debug level. Therefore errors are printed here, and a command line
that uses the plug-in ends at once (by `SystemExit`, which verl does not catch). An error in a hook is outside verl's
`try`, and ends the run before its first step.
"""

import os
import platform
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

USE_V1 = "run verl's main_ppo with trainer.use_v1=True and trainer.v1.trainer_mode=sync or colocate_async"
NAMES_US = re.compile(
    r"(adv_estimator|trainer_mode)=.?egpo|algorithm\.egpo|reward_manager\.name=.?hybrid"
    r"|(adv_estimator|policy_loss\.loss_mode)=.?[\w.]+:"
)
"""Matches arguments of verl's command line that use the plug-in; `egpo` in a path does not count."""
NOTICE_GIVEN = "EGPO_VERL_NOTICE_GIVEN"
NAMES_AN_ESTIMATOR = re.compile(r"adv_estimator=\W?(\w+)")


def load() -> None:
    """Register the hooks. On an error, print it; exit with code 2 if the command line uses the plug-in."""
    try:
        _register_hooks()
    except Exception as error:  # boundary: verl would ignore the error silently
        _print_error(error)
        if any(map(_uses_us, sys.argv[1:])):
            raise SystemExit(2) from error


def _uses_us(argument: str) -> bool:
    """Return whether an argument of verl's command line uses the plug-in."""
    if NAMES_US.search(argument):
        return True
    named = NAMES_AN_ESTIMATOR.search(argument)
    try:
        from egpo.verl.settings import ESTIMATORS
    except Exception:  # boundary: this import may be what failed
        return False
    return named is not None and named[1] in ESTIMATORS


def _register_hooks() -> None:
    from egpo.errors import NOTICE_PREFIX
    from egpo.support import WITHOUT_FLASHINFER
    from egpo.verl.imports import when_imported
    from egpo.verl.settings import installed_version, require_supported

    if find_spec("flashinfer") is None:
        for name, value in WITHOUT_FLASHINFER.items():
            os.environ.setdefault(name, value)
    notice = require_supported(installed_version())
    if notice and NOTICE_GIVEN not in os.environ:
        os.environ[NOTICE_GIVEN] = "1"  # for verl's other processes, each of which would print it again
        print(f"{NOTICE_PREFIX}{notice}", file=sys.stderr, flush=True)
    for name, hook in HOOKS.items():
        when_imported(name, _with_printed_errors(hook))


def _with_printed_errors(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def print_and_raise(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            _print_error(error)
            raise

    return print_and_raise


def _print_error(error: Exception) -> None:
    from egpo.verl.settings import SUPPORTED, installed_version
    from egpo.version import __version__

    versions = f"egpo {__version__}, verl {installed_version()} ({SUPPORTED} is supported)"
    print(
        f"egpo: the plug-in for verl could not be loaded: {type(error).__name__}: {error}\n"
        f"{versions}, Python {platform.python_version()}; run `egpo doctor` for details, "
        "or set VERL_USE_EXTERNAL_PLUGINS=none to run verl without the plug-in",
        file=sys.stderr,
        flush=True,
    )


def _register_estimators(core_algos: ModuleType) -> None:
    from egpo.verl.estimators import register_estimators, register_forms_of_judged
    from egpo.verl.losses import accept_plugin_losses

    register_estimators(core_algos)
    register_forms_of_judged(core_algos)
    accept_plugin_losses(core_algos)


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


def _register_agent_loops(_: ModuleType) -> None:
    from egpo.verl.agent_loop import register_agent_loop

    register_agent_loop()


def _register_attention(modeling_utils: ModuleType) -> None:
    from egpo.verl.packed_attention import register_attention

    register_attention(modeling_utils)


HOOKS = {
    "hydra.core.override_parser.overrides_parser": _accept_our_keys,
    "transformers.modeling_utils": _register_attention,
    "verl.experimental.agent_loop": _register_agent_loops,
    "verl.experimental.reward_loop.reward_manager": _register_reward_managers,
    "verl.trainer.ppo.core_algos": _register_estimators,
    "verl.trainer.ppo.v1": _register_trainers,
    "verl.trainer.ppo.ray_trainer": _guard_old_trainer,
    "verl.trainer.main_ppo": _guard_separate_trainers,
}

load()
