"""From a checkpoint to a model in memory, every weight accounted for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from egpo.errors import InputError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken")

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


def load_model(folder: Path, dtype: Dtype) -> PreTrainedModel:
    """A model folder, on the CPU."""
    return _loaded(folder, str(folder), dtype=dtype)


def build_model(folder: Path, state: dict[str, Tensor]) -> PreTrainedModel:
    """A fresh model of the folder's config that holds these very tensors: nothing is copied."""
    dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    return _loaded(folder, None, dtype=dtype, config=read_config(folder), state_dict=state)


def read_config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        fix = "copy config.json and the tokenizer's files of the model that was trained into it"
        raise InputError("no config.json", where=str(folder), fix=fix)
    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"a config that cannot be read ({_first_line(error)})", where=str(folder)) from error


def dtype_for(folder: Path, wanted: Dtype, stored: torch.dtype) -> torch.dtype:
    """`auto` is what the config says, which is what the training called the model's; without a word, as stored."""
    said: torch.dtype | None = getattr(torch, wanted) if wanted != "auto" else read_config(folder).dtype
    return said or stored


def without_tied(folder: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One tensor for those that the model ties: a file with both would load as a model that ties neither."""
    with torch.device("meta"):
        ties: Mapping[str, str] = _class(folder)(read_config(folder)).all_tied_weights_keys
    for copy, original in ties.items():
        if copy in state and original in state and not torch.equal(state[copy], state[original]):
            fix = "set tie_word_embeddings to false in its config.json, if the training untied them"
            raise InputError(f"{copy} and {original} are tied, and differ", where=str(folder), fix=fix)
    return {name: tensor for name, tensor in state.items() if ties.get(name) not in state}


def require_vocabulary(folder: Path, model: PreTrainedModel) -> None:
    """A tokenizer that loads, and no token without its row in the model."""
    fix = "copy the tokenizer's files of the model that was trained into it"
    if not any(path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern)):
        raise InputError("no tokenizer", where=str(folder), fix=fix)  # transformers would make an empty one
    try:
        num_known = len(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(f"no tokenizer ({_first_line(error)})", where=str(folder), fix=fix) from error
    num_rows = model.get_input_embeddings().weight.shape[0]
    if num_known > num_rows:
        raise InputError(f"the tokenizer has {num_known} tokens and the model {num_rows}", where=str(folder), fix=fix)


def _loaded(folder: Path, name: str | None, **settings: Any) -> PreTrainedModel:
    try:
        with _quiet():
            model, info = _class(folder).from_pretrained(
                name,
                **settings,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                trust_remote_code=False,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        fix = "is the folder whole? choose another --step"
        raise InputError(f"cannot be loaded ({_first_line(error)})", where=str(folder), fix=fix) from error
    _require_every_weight(info, folder)
    return model.eval()


def _class(folder: Path) -> Any:
    config = read_config(folder)
    name = (config.architectures or [""])[0]
    if not hasattr(transformers, name):
        what = f"the model class `{name}`" if name else "a config without `architectures`"
        fix = "only models that come with transformers can be merged: code from a checkpoint is not run"
        raise InputError(f"{what} is not one of transformers {transformers.__version__}", where=str(folder), fix=fix)
    return getattr(transformers, name)


def _require_every_weight(info: Mapping[str, Any], folder: Path) -> None:
    faults = []
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name if isinstance(name, str) else name[0]) for name in info[f"{kind}_keys"])
        if names:
            faults.append(f"{len(names)} {kind}, {names[0]} among them")
    if faults:
        fix = "is config.json that of the model that was trained?"
        raise InputError(f"the weights are not those of the config: {'; '.join(faults)}", where=str(folder), fix=fix)


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no load report: what is wrong is raised."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
