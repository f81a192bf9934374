"""Options of vLLM that the user passes through: `--engine-option tensor_parallel_size=2`, `eval.engine_options`.

The names are vLLM's own, with `_` or `-`. `check_engine_options` asks vLLM's parser, in vLLM's environment, whether an
option exists and takes this value, and compares the GPUs that it needs with those that are there. Nothing of vLLM is
imported in this process.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from egpo.errors import InputError, nearest, notify_once
from egpo.gpus import Gpu, read_gpus, require_free_memory
from egpo.processes.commands import run_limited

Options = Mapping[str, Any]
"""vLLM's options: name -> value. True and False turn a switch on and off; a mapping is passed as JSON, a list as
several values."""


_ON_COMMAND_LINE = "--engine-option"


@dataclass(frozen=True)
class EngineOptions:
    """Options of vLLM for servers that are started, and where the user gave them."""

    values: Options = field(default_factory=dict)
    given_by: str = _ON_COMMAND_LINE


NO_OPTIONS = EngineOptions()
SET_BY_EGPO = {
    "model": "give the model as MODEL",
    "served-model-name": "use --name",
    "host": "use --host",
    "port": "use --port",
    "max-model-len": "use --max-tokens (`egpo serve`) or --max-model-len (`egpo eval bfcl`)",
    "reasoning-parser": "use --reasoning-parser",
    "tool-call-parser": "use --tool-parser",
}
"""Options that egpo sets itself, and how to set them instead on a command line. A recipe has no such settings."""
_UNREACHABLE = ("api-key", "config", "grpc", "headless", "ssl-certfile", "ssl-keyfile", "uds")
"""Options with which egpo could not reach the server that it has started, and would wait until the time limit. `config`
is a file of options, which may contain any of the others."""
_JSON_LISTS = ("allowed-origins", "allowed-methods", "allowed-headers")
"""Options whose list vLLM reads as one JSON text."""
USUAL_SHARE = 0.9
"""vLLM's default share of the GPU memory, if its parser does not say."""
_LIMIT_S = 180


def parse_options(words: Iterable[str], where: str = _ON_COMMAND_LINE) -> dict[str, Any]:
    """Return the options in `name=value` words. A name alone turns a switch on, as does `true`. `[1, 2]` is a list.

    >>> parse_options(["tensor_parallel_size=2", "enforce-eager", "enable_prefix_caching=false"])
    {'tensor-parallel-size': '2', 'enforce-eager': True, 'enable-prefix-caching': False}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, has_value, text = word.partition("=")
        if not name.strip("-_ "):
            fix = "write name=value, as in tensor_parallel_size=2"
            raise InputError(f"`{word}` has no name", where=where, fix=fix)
        found[option_name(name)] = _value(text) if has_value else True
    return found


def _value(text: str) -> Any:
    if text.startswith("["):
        with suppress(ValueError):
            return json.loads(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def option_name(name: str) -> str:
    """Return an option's name as vLLM's parser has it, without leading dashes."""
    head, dot, rest = name.strip().lstrip("-").partition(".")
    return head.replace("_", "-") + dot + rest


def as_words(options: Options) -> list[str]:
    """Return the options as words of vLLM's command line.

    >>> as_words({"tensor_parallel_size": 2, "enforce_eager": True, "enable_prefix_caching": False})
    ['--tensor-parallel-size', '2', '--enforce-eager', '--no-enable-prefix-caching']
    """
    words = []
    for key, value in options.items():
        name = option_name(key)
        if "." in name and isinstance(value, bool | list | tuple):
            # A part of an option: vLLM reads its value as JSON, and would take the next word for that of a switch.
            words.append(f"--{name}={json.dumps(value)}")
        elif value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif _is_several_words(name, value):
            words += [f"--{name}", *map(_as_text, value)]
        elif value is not None:
            text = _as_text(value)
            # A text that begins with a dash would be read as the next option.
            words += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return words


def _is_several_words(name: str, value: Any) -> bool:
    """Return whether the value is a list of which each value is a word of its own, and no JSON text."""
    return isinstance(value, list | tuple) and "." not in name and name not in _JSON_LISTS


def _as_text(value: Any) -> str:
    """Return a value as vLLM's command line has it."""
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)


def _base_name(key: str) -> str:
    """Return the option that a key sets: `compilation-config` for `compilation_config.mode`."""
    return option_name(key).partition(".")[0].rstrip("+")


def refuse_own_options(options: Options, where: str = _ON_COMMAND_LINE) -> None:
    """Raise InputError for an option that egpo sets itself, that would run code from a model folder, or with which egpo
    could not reach the server; and for a list of which one value would be read as such an option."""
    for key, value in options.items():
        name = _base_name(key)
        if _is_several_words(option_name(key), value) and any(str(one).startswith("--") for one in value):
            what = f"a value of `{key}` begins with dashes, and vLLM would read it as another option"
            raise InputError(what, where=where, fix="leave that value out of the list")
        if name == "trust-remote-code":
            fix = "leave the option out, and use a version of the model whose classes are in transformers"
            raise InputError("this would run code from a model folder, which egpo never does", where=where, fix=fix)
        if name in SET_BY_EGPO:
            fix = SET_BY_EGPO[name] if where == _ON_COMMAND_LINE else "leave the option out"
            raise InputError(f"egpo sets vLLM's `{name}` itself", where=where, fix=fix)
        if name in _UNREACHABLE:
            fix = "leave the option out, or start vLLM yourself and evaluate with `egpo eval --url`"
            raise InputError(f"with `{name}`, egpo could not reach the server", where=where, fix=fix)


@dataclass(frozen=True)
class ParsedCommand:
    """The answer of vLLM's parser to a command line: the names of all options, its error (`fault`), and parsed values.

    `short`: short option, such as `tp` -> the option's long name.
    """

    names: tuple[str, ...]
    fault: str
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    memory_share: float
    short: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel


# Run by vLLM's interpreter. vLLM moved its parser between versions. On a machine without a
# GPU, a vLLM for GPUs makes its parser only if the device is set.
_QUESTION = """
import contextlib, importlib, io, json, sys
with contextlib.suppress(ImportError, AttributeError):
    from vllm.platforms import current_platform
    current_platform.device_type = current_platform.device_type or "cuda"
for name in ("vllm.utils.argparse_utils", "vllm.utils"):
    with contextlib.suppress(ImportError, AttributeError):
        parser_class = importlib.import_module(name).FlexibleArgumentParser
        break
for name in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
    with contextlib.suppress(ImportError, AttributeError):
        make = importlib.import_module(name).make_arg_parser
        break
parser = make(parser_class())
strings = [action.option_strings for action in parser._actions]
names = sorted({one.lstrip("-") for each in strings for one in each if one.startswith("--")})
short = {one.lstrip("-"): next((long.lstrip("-") for long in each if long.startswith("--")), one)
         for each in strings for one in each if not one.startswith("--")}
said, fault, parsed = io.StringIO(), "", None
try:
    with contextlib.redirect_stderr(said):
        parsed = parser.parse_args(sys.argv[1:])
except SystemExit:
    fault = said.getvalue().strip().rpartition(": error: ")[2] or "refused"
except Exception as error:
    fault = str(error) or type(error).__name__
get = lambda key, usual: usual if parsed is None else getattr(parsed, key, None) or usual
print("OPTIONS" + json.dumps({
    "names": names, "short": short, "fault": fault, "tensor_parallel": get("tensor_parallel_size", 1),
    "data_parallel": get("data_parallel_size_local", None) or get("data_parallel_size", 1),
    "pipeline_parallel": get("pipeline_parallel_size", 1),
    "memory_share": get("gpu_memory_utilization", 0.9)}))
"""


@cache
def ask_parser(python: str, words: tuple[str, ...]) -> ParsedCommand | None:
    """Return what vLLM's own parser says about these words; None if it cannot be asked in this version of vLLM."""
    try:
        done = run_limited(
            [python, "-c", _QUESTION, *words],
            wait="interpreter",
            what=f"vLLM's parser, in {python}",
            limit_s=_LIMIT_S,
            variables={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    _, marked, answer = done.stdout.rpartition("OPTIONS")
    if not marked:
        return None
    held = json.loads(answer)
    return ParsedCommand(**{**held, "names": tuple(held["names"])})


def check_engine_options(options: Options, python: str, words: Sequence[str], where: str) -> ParsedCommand | None:
    """Raise InputError if vLLM has no such option, naming the nearest one, or does not take its value.

    `words` is the whole command line of the server after `-m module`. Without options nothing is asked, since
    importing vLLM takes seconds.
    """
    if not options:
        return None
    refuse_own_options(options, where)
    return require_known_options(options, python, words, where)


def require_known_options(options: Options, python: str, words: Sequence[str], where: str) -> ParsedCommand | None:
    """Raise InputError if vLLM's parser lacks an option, or refuses `words`; return its answer.

    Without a parser, print a notice and return None.
    """
    parsed = ask_parser(python, tuple(words))
    if parsed is None:
        notify_once("vLLM's parser could not be asked: engine options are not checked before the server starts")
        return None
    known = {name.replace("_", "-") for name in parsed.names}
    for key in options:
        name = _base_name(key)
        if name not in known:
            raise InputError(f"vLLM has no option `{key}`", where=where, fix=_instead(name, parsed, known))
        if options[key] is False and name == option_name(key) and f"no-{name}" not in known:
            raise InputError(f"vLLM's `{name}` cannot be turned off", where=where, fix="leave the option out")
    if parsed.fault:
        lines = (line.strip() for line in parsed.fault.splitlines() if "further information" not in line)
        fault = " ".join(lines)
        raise InputError(f"vLLM refuses it: {fault}", where=where, fix="see `vllm serve --help=all` for its values")
    return parsed


def _instead(name: str, parsed: ParsedCommand, known: set[str]) -> str:
    """Return the advice for an unknown option. The list of all options would have hundreds of names."""
    if name in parsed.short:
        return f"write `{parsed.short[name]}`"
    advice = nearest(name, known - _negated(known))
    return advice if len(advice) < 200 else "see `vllm serve --help=all` for its options"


def _negated(names: set[str]) -> set[str]:
    return {name for name in names if name.removeprefix("no-") in names and name.startswith("no-")}


def require_gpus(parsed: ParsedCommand | None, on_cpu: bool, gpus: Sequence[Gpu] | None, where: str) -> None:
    """Raise InputError if the server needs more GPUs than there are, or if other processes fill them.

    `gpus` is None if they are not known; then vLLM itself finds such a fault, a minute later. Without engine options
    (`parsed` is None) the server needs one GPU and vLLM's default share of its memory.
    """
    require_gpu_count(parsed, on_cpu, gpus, where)
    if gpus is not None and not on_cpu:
        needed, share = (1, USUAL_SHARE) if parsed is None else (parsed.num_gpus, parsed.memory_share)
        require_free_memory(gpus[:needed], share, "the engine option gpu_memory_utilization", "vLLM")


def require_gpu_count(parsed: ParsedCommand | None, on_cpu: bool, gpus: Sequence[Gpu] | None, where: str) -> None:
    """Raise InputError if the server needs more GPUs than there are."""
    needed = 1 if parsed is None else parsed.num_gpus
    if on_cpu and needed > 1:
        what = f"{needed} GPUs are needed, and this vLLM is built for CPUs, where one process serves a model"
        raise InputError(what, where=where, fix="leave the parallel sizes out, or use a vLLM for GPUs (--python)")
    if on_cpu or gpus is None or needed <= len(gpus):
        return
    sizes = "" if parsed is None else (
        f" (tensor parallel {parsed.tensor_parallel} x data parallel {parsed.data_parallel}"
        + (f" x pipeline parallel {parsed.pipeline_parallel}" if parsed.pipeline_parallel > 1 else "")
        + ")"
    )  # fmt: skip
    fix = f"lower them to {len(gpus)} GPUs in all" if gpus else "make a GPU visible (CUDA_VISIBLE_DEVICES)"
    wanted = "a GPU is needed" if needed == 1 else f"{needed} GPUs are needed{sizes}"
    raise InputError(f"{wanted}, and {len(gpus)} can be used", where=where, fix=fix)


def check_server(options: Options, python: str, on_cpu: bool, words: Sequence[str], where: str) -> None:
    """Check the options and GPUs of a vLLM server before it is started."""
    parsed = check_engine_options(options, python, words, where)
    require_gpus(parsed, on_cpu, None if on_cpu else read_gpus(), where)
