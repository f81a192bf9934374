"""Load a policy from a model folder or by its name on the Hugging Face hub. Raise InputError if a part is missing."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from egpo.config.machine import require_model_place
from egpo.config.schema import Model
from egpo.errors import InputError, warn_once
from egpo.local.memory import out_of_memory_as
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.policy import Policy
from egpo.local.models.self_check import require_agreement
from egpo.local.progress_bars import without_progress_bars
from egpo.runs.checkpoint_manifest import verify_model
from egpo.waits import waiting

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_policy(settings: Model, seed: int = 0) -> Policy:
    """Load the model and its tokenizer, on the device and in the dtype of the settings, without dropout.

    The engine's forward pass is compared with that of transformers (`self_check`) before the policy is returned.
    """
    where = f"model {settings.path}"
    folder = _folder(require_model_place(settings.path, where), where)
    verify_model(Path(folder))
    with _from_hub(folder):
        tokenizer = _tokenizer(folder, where)
    device = choose_device(settings.device)
    if settings.deterministic and device.type == "cuda":
        _use_deterministic_kernels()
    dtype = _DTYPES.get(settings.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)
    with _from_hub(folder):
        loaded = _model(folder, settings, dtype, seed, where)
    with out_of_memory_as("moving the model to the GPU", "use a smaller model, or run fewer processes on this GPU"):
        model = loaded.to(device)
    _switch_off_dropout(model)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(
        model=model,
        tokenizer=tokenizer,
        context=_context(model),
        stop_ids=_stop_ids(model, tokenizer, where),
        pad_id=_pad_id(tokenizer),
        template=dict(settings.template),
    )
    _require_vocabulary(policy, where)
    require_agreement(policy, where)
    return policy


def choose_device(wanted: str) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`; `auto` is a GPU if torch can use one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "torch cannot use a GPU", where="model.device=cuda", fix="`egpo doctor` shows why; or set model.device=cpu"
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        # cuDNN's attention plans anew for every shape, and every pack has a new shape: three times as slow.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(wanted)


def _use_deterministic_kernels() -> None:
    """Make torch deterministic for the whole process.

    cuBLAS reads its environment variable at its first use, so this must be called before any matrix product on a GPU.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def _folder(path: str, where: str) -> str:
    """Return the path of a model. If it is a folder without a model, raise InputError.

    Otherwise transformers would look for the folder's name on the hub.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            held = ", ".join(sorted(entry.name for entry in local.iterdir())[:4]) or "nothing"
            raise InputError(
                f"not a model folder: it has no config.json (it holds {held})",
                where=where,
                fix="give a folder written by `save_pretrained`; in a run: checkpoints/global_step_N/actor/huggingface",
            )
        return str(local)
    return path


def _from_hub(folder: str) -> AbstractContextManager[None]:
    """Return a context that names the wait for the hub, if the model is not in a folder."""
    return nullcontext() if Path(folder).is_dir() else waiting("hub model", f"the hub, for the model {folder}")


def _tokenizer(folder: str, where: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # boundary: for a damaged file, transformers and tokenizers raise anything
        raise InputError(f"no tokenizer: {_first_line(error)}", where=where, fix=_fix_for(folder, error)) from error
    if not tokenizer.chat_template:
        raise InputError(
            "the tokenizer has no chat template",
            where=where,
            fix="put a chat_template.jinja into the model folder (copy it from the chat version of the model)",
        )
    return tokenizer


def _model(folder: str, settings: Model, dtype: torch.dtype, seed: int, where: str) -> PreTrainedModel:
    try:
        if settings.init == "random":
            return _random_model(folder, dtype, seed)
        with without_progress_bars():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except UnpicklingError as error:
        fix = "save the weights as safetensors, on a machine where the code in the file may run"
        what = "the weights are a pickle that contains more than tensors; loading it could run code"
        raise InputError(what, where=where, fix=fix) from error
    except Exception as error:  # boundary: for a damaged file, transformers raises anything
        what = f"the model cannot be loaded: {_first_line(error)}"
        raise InputError(what, where=where, fix=_fix_for(folder, error)) from error
    _require_every_weight(info, where)
    loaded: PreTrainedModel = model
    return loaded


def _require_every_weight(info: Mapping[str, Any], where: str) -> None:
    """Raise InputError if the folder lacks weights that its config names: transformers draws these at random. Warn if
    it has more than the config names, which are not loaded."""
    if missing := sorted(map(str, info["missing_keys"])):
        what = f"the weights of {len(missing)} tensors are missing, such as {missing[0]}"
        raise InputError(
            what, where=where, fix="check that config.json belongs to these weights, and the folder is whole"
        )
    if more := sorted(map(str, info["unexpected_keys"])):
        what = f"{where}: {len(more)} tensors, such as {more[0]}, are not part of the model that config.json describes"
        warn_once(f"more weights {where}", what)


def _random_model(folder: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """Return a model with the weights of its own initialisation, which depend on the seed alone."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder, trust_remote_code=False),
        dtype=dtype,
        attn_implementation=ATTENTION_NAME,
        trust_remote_code=False,
    )
    torch.set_rng_state(state)
    return model


def _switch_off_dropout(model: PreTrainedModel) -> None:
    """Set all dropout to 0: with dropout, the policy ratio would compare two different networks."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    model.train()


def _context(model: PreTrainedModel) -> int:
    """Return the longest sequence in tokens; 2^30 for a model without a limit."""
    longest: int | None = getattr(model.config, "max_position_embeddings", None)
    return longest or 1 << 30


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, where: str) -> frozenset[int]:
    """Return every end token of the generation config, the config and the tokenizer."""
    generation: Any = model.generation_config
    named = (generation and generation.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id)
    ids = frozenset(id for ids in named if ids is not None for id in (ids if isinstance(ids, list) else [ids]))
    if odd := [token for token in ids if not isinstance(token, int)]:
        what = f"the end token {odd[0]!r:.40} is not the number of a token"
        raise InputError(what, where=where, fix="correct eos_token_id in generation_config.json and config.json")
    if not ids:
        raise InputError(
            "no end token in the tokenizer, the config or the generation config",
            where=where,
            fix="set eos_token in tokenizer_config.json",
        )
    return ids


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the padding token, or the end token if there is none: it only fills tables, no model reads it."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def _require_vocabulary(policy: Policy, where: str) -> None:
    num_known, num_rows = len(policy.tokenizer), policy.model.get_input_embeddings().weight.shape[0]
    if num_known > num_rows:
        raise InputError(
            f"the tokenizer has {num_known} tokens and the model {num_rows}",
            where=where,
            fix="use the tokenizer that the model was trained with, or resize the model's embeddings",
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _fix_for(folder: str, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "egpo never runs code from a model folder: use a version of the model whose classes are in transformers"
    if os.path.isdir(folder):
        return "check that the folder is complete: it needs config.json, weights and tokenizer files"
    return "give a folder on this machine, or a name on the hub with a network connection"
