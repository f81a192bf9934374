"""Which engine trains a recipe."""

from egpo.config import Config


def require_engine(config: Config) -> None:
    """InputError where the engine that is to train is not here: before the probe is paid for, and not after it."""
    if config.engine == "verl":
        from egpo.verl.launch.preflight import ask_interpreter, require_devices, require_verl

        installed = ask_interpreter(config)
        require_verl(config, installed)
        require_devices(config, installed)


def train(config: Config, *, resume: bool) -> None:
    """To its last step. What the engines need is imported for the one that is chosen."""
    if config.engine == "verl":
        from egpo.verl.launch.train import train as train_on_verl

        train_on_verl(config, resume=resume)
        return
    from egpo.local.train import train as train_here

    train_here(config, resume=resume)
