"""A registry with a single model, which replaces BFCL's registry of models.

BFCL's own registry has a fixed list of model names, and imports the packages of a dozen vendors. This module runs in
BFCL's environment, where egpo is not installed.
"""

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from bounded_answers import READY_S, bounded, patient

MODEL = "model"
"""The only name in the registry. It has no `_`, because BFCL turns `_` into `/` and back."""

HANDLERS = {
    "qwen_fc": ("bfcl_eval.model_handler.local_inference.qwen_fc", "QwenFCHandler", True),
    "qwen": ("bfcl_eval.model_handler.local_inference.qwen", "QwenHandler", False),
    "llama": ("bfcl_eval.model_handler.local_inference.llama_3_1", "LlamaHandler_3_1", True),
    "template": ("template_handler", "ByTemplate", True),
}
"""For each prompt format: the module and the class of BFCL's handler, and BFCL's flag `is_fc_model` (true for models
that receive tools in the format of function calling)."""


@dataclass
class ModelConfig:
    """A replacement for BFCL's class `ModelConfig`, with the fields that its generation and its checker read."""

    model_name: str
    display_name: str
    model_handler: Any
    is_fc_model: bool
    underscore_to_dot: bool = False
    url: str = ""
    org: str = ""
    license: str = ""
    input_price: float | None = None
    output_price: float | None = None


def register(
    served_name: str, prompt_format: str, timeout_s: float, max_tokens: int | None = None, context: int | None = None
) -> None:
    """Replace BFCL's registry of models by one that holds only the served model.

    This must be called before any module of BFCL is imported. `max_tokens` and `context` limit each answer.
    """
    mapping: dict[str, ModelConfig] = {}
    module: Any = ModuleType("bfcl_eval.constants.model_config")
    module.ModelConfig, module.MODEL_CONFIG_MAPPING = ModelConfig, mapping
    sys.modules["bfcl_eval.constants.model_config"] = module
    place, name, is_fc_model = HANDLERS[prompt_format]
    handler = getattr(importlib.import_module(place), name)
    mapping[MODEL] = ModelConfig(
        served_name, served_name, bounded(handler, max_tokens, context, timeout_s), is_fc_model
    )
    base = importlib.import_module("bfcl_eval.model_handler.local_inference.base_oss_handler")
    asked = base.requests
    base.requests = SimpleNamespace(get=patient(asked.get, min(READY_S, timeout_s)), exceptions=asked.exceptions)
