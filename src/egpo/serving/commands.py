"""The command line of a server, from the model and its template."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from egpo.errors import InputError
from egpo.serving.engines import Engine
from egpo.serving.templates import Template

# What a request leaves out is left out, and not what the model's publisher recommends: two models would be sampled
# in two ways, and neither as the embedded engine samples. The end tokens of the generation config stay.
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}

# GiB of key-value cache, where vLLM would take half of the memory; its sampler would compile itself on first use, 20
# seconds and a C++ compiler.
_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "2", "TORCH_COMPILE_DISABLE": "1"}


@dataclass(frozen=True)
class Serving:
    """How a model is served.

    `thinking` True or False asks the template for it or against it, None leaves it to the template. The parsers are
    vLLM's names: `auto` follows the template, `none` leaves the text as the model wrote it. `dtype` `auto` is the
    model's own, and float32 on a CPU. `more` goes to the server's command line as it is.
    """

    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 0
    thinking: bool | None = None
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    dtype: str = "auto"
    max_tokens: int | None = None
    more: Sequence[str] = field(default=())


def command(serving: Serving, engine: Engine, template: Template) -> list[str]:
    if serving.thinking is not None and not template.may_switch:
        fix = "leave it out: the template has no `enable_thinking`"
        raise InputError("this model's thinking cannot be switched", where="--thinking", fix=fix)
    if any(word.partition("=")[0].replace("_", "-") == "--trust-remote-code" for word in serving.more):
        fix = "leave it out, and use a version of the model whose classes are in transformers"
        raise InputError("code from a model folder is never run", where="--trust-remote-code", fix=fix)
    build = _vllm if engine.kind == "vllm" else _transformers
    return [engine.python, *build(serving, engine, template), *serving.more]


def environment(engine: Engine) -> dict[str, str]:
    """The caller's, whose settings come first."""
    settings = _QUIET | (_ON_CPU if engine.on_cpu else {})
    if "OMP_NUM_THREADS" in os.environ:
        settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else vLLM takes all cores, whatever that says
    return settings | os.environ


def _vllm(serving: Serving, engine: Engine, template: Template) -> list[str]:
    """Started as a module: the script `vllm` asks for a distribution of that name, which vllm-cpu is not."""
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", serving.model, "--served-model-name", serving.name]
    words += ["--host", serving.host, "--port", str(serving.port)]
    words += ["--max-model-len", str(serving.max_tokens or "auto")]
    words += ["--override-generation-config", json.dumps(_NEUTRAL)]
    words += ["--dtype", "float32" if engine.on_cpu and serving.dtype == "auto" else serving.dtype]
    # Where a prompt is prefilled in parts, a seed ends the server: "CPU Generator does not use offset".
    words += ["--enforce-eager", "--no-enable-chunked-prefill"] * engine.on_cpu
    # A worker of its own, once killed, leaves 400 MB in /dev/shm.
    words += ["--distributed-executor-backend", "uni"] * engine.on_cpu
    if parser := _chosen(serving.tool_parser, template.tool_parser):
        words += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if parser := _chosen(serving.reasoning_parser, template.reasoning_parser):
        words += ["--reasoning-parser", parser]
    if serving.thinking is not None:
        words += ["--default-chat-template-kwargs", json.dumps({"enable_thinking": serving.thinking})]
    return words


def _transformers(serving: Serving, engine: Engine, template: Template) -> list[str]:
    """It parses calls and thinking by itself. The name is a folder where it is started (`egpo.serving.offers`)."""
    for option, value in _only_vllm(serving).items():
        if value:
            fix = "install vLLM, or leave it out"
            raise InputError("`transformers serve` has no such setting", where=option, fix=fix)
    words = ["-m", "transformers.cli.transformers", "serve", serving.name]
    words += ["--host", serving.host, "--port", str(serving.port)]
    words += ["--dtype", "float32" if engine.on_cpu and serving.dtype == "auto" else serving.dtype]
    if serving.thinking is not None:
        words += ["--reasoning", "on" if serving.thinking else "off"]
    return words


def _only_vllm(serving: Serving) -> Mapping[str, bool]:
    return {
        "--tool-parser": serving.tool_parser not in ("auto", "none"),
        "--reasoning-parser": serving.reasoning_parser not in ("auto", "none"),
        "--max-tokens": serving.max_tokens is not None,
    }


def _chosen(wanted: str, of_template: str | None) -> str | None:
    return of_template if wanted == "auto" else None if wanted == "none" else wanted
