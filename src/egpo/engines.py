"""The two engines that train a recipe: `local` in this process, `verl` in separate processes.

Only this module chooses the engine, by `engine` in the recipe. Only the chosen engine is imported.
"""

from egpo.config import Config
from egpo.runs.ledger import OnStep


def train(
    config: Config,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
) -> None:
    """Train until `config.steps` steps are done, from the beginning or from a checkpoint of the run.

    `on_step` is called after each step; with the embedded engine it can stop the run by returning True. `quiet` prints
    nothing.
    """
    if config.engine == "verl":
        from egpo.verl.launch.train import train as train_with_verl

        train_with_verl(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=quiet)
        return
    from egpo.local.train import train as train_in_process

    train_in_process(config, resume=resume, resume_from=resume_from, on_step=on_step, quiet=quiet)


def dry_run(config: Config, *, resume: bool = False, resume_from: int | None = None) -> str:
    """Return a description of the planned training. `local` samples a few responses; `verl` shows its command line."""
    if config.engine == "verl":
        from egpo.verl.launch.dry_run import dry_run as show_command

        return show_command(config, resume=resume, resume_from=resume_from)
    from egpo.local.training.dry_run import dry_run as try_a_step

    return try_a_step(config)


def require_engine(config: Config) -> None:
    """Raise InputError if the recipe's engine cannot run on this machine. Callers check this before a costly probe."""
    if config.engine == "verl":
        from egpo.verl.launch.preflight import (
            ask_interpreter,
            require_devices,
            require_verl,
            require_vllm_options,
        )

        installed = ask_interpreter(config)
        require_verl(config, installed)
        require_devices(config, installed)
        require_vllm_options(config, installed.python)
