"""What is trained."""

from collections.abc import Iterator
from pathlib import Path

from egpo.config import Config
from egpo.config.machine import require_model_place
from egpo.verl.launch.translation.setting import ACTOR, MODEL, REFERENCE, ROLLOUT, Setting


def model_settings(config: Config) -> Iterator[Setting]:
    """`model.device` is the local engine's; `init: random` and `deterministic` have been refused."""
    model = config.model
    yield Setting(f"{MODEL}.path", model_place(model.path), "model.path")
    for key in (f"{MODEL}.trust_remote_code", "data.trust_remote_code"):
        yield Setting(key, False, "code from a model folder never runs")
    yield Setting(
        f"{MODEL}.enable_gradient_checkpointing", model.gradient_checkpointing, "model.gradient_checkpointing"
    )
    for name, value in model.template.items():
        yield Setting(f"data.apply_chat_template_kwargs.{name}", value, "model.template")
    if model.dtype == "float32":
        yield from float32_settings()
    if model.lora is not None:
        yield Setting(f"{MODEL}.lora_rank", model.lora.rank, "model.lora")
        yield Setting(f"{MODEL}.lora_alpha", model.lora.alpha, "model.lora")
        yield Setting(f"{MODEL}.target_modules", list(model.lora.layers) or "all-linear", "model.lora")


def model_place(path: str) -> str:
    """A folder as an absolute path, which every process finds; a name of the hub as it is."""
    folder = Path(require_model_place(path, f"model {path}")).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


def float32_settings() -> Iterator[Setting]:
    """verl keeps float32 weights anyway and computes in bfloat16: here it computes and samples in float32, too."""
    for engine in (f"{ACTOR}.fsdp_config", f"{REFERENCE}.fsdp_config"):
        yield Setting(f"{engine}.dtype", "float32", "model.dtype")
        for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            yield Setting(f"{engine}.mixed_precision.{part}", "fp32", "model.dtype")
    yield Setting(f"{ROLLOUT}.dtype", "float32", "model.dtype")
