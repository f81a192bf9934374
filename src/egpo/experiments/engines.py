"""Which engine trains a recipe."""

from egpo.config import Config


def train(config: Config, *, resume: bool) -> None:
    """To its last step. What the engines need is imported for the one that is chosen."""
    if config.engine == "verl":
        from egpo.verl.launch.train import train as train_on_verl

        train_on_verl(config, resume=resume)
        return
    from egpo.local.train import train as train_here

    train_here(config, resume=resume)
