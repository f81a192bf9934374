"""Options of vLLM pass through to the server, and a wrong one is named before anything starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.config import load_config
from egpo.errors import InputError
from egpo.experiments.exams import require_evaluable
from egpo.experiments.pipeline import require_runnable
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from egpo.gpus import Gpu, parse_gpus, visible
from egpo.serving import engine_options, served
from egpo.serving.commands import ChatTemplate, Engine, Serving, command
from egpo.serving.engine_options import (
    ParsedCommand,
    as_words,
    check_engine_options,
    check_server,
    option_name,
    parse_options,
    refuse_own_options,
    require_gpus,
)
from egpo.serving.served import dry_run

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
GIB = 2**30
PLAIN = ChatTemplate(None, opens_thinking=False, may_switch=False)
WHERE = "--engine-option"


def gpus(*free, total=80):
    return [Gpu(index, total * GIB, one * GIB) for index, one in enumerate(free)]


def parsed(tensor=1, data=1, pipeline=1, share=0.9):
    return ParsedCommand((), "", tensor, data, pipeline, share)


def test_options_follow_what_egpo_sets_so_that_they_win():
    options = parse_options(
        ["tensor_parallel_size=2", "--dtype=float16", "enforce_eager", "enable_prefix_caching=false"]
    )
    words = command(Serving("/m", "m", options=options), Engine("vllm", "python", on_cpu=False), PLAIN)
    assert words[-5:] == ["2", "--dtype", "float16", "--enforce-eager", "--no-enable-prefix-caching"]
    assert max(at for at, word in enumerate(words) if word == "--dtype") > words.index("--override-generation-config")


def test_values_of_a_recipe_are_passed_in_their_form():
    options = {"max_num_seqs": 8, "gpu_memory_utilization": 0.5, "compilation_config": {"mode": 3}, "seed": None}
    assert as_words(options) == [
        *("--max-num-seqs", "8", "--gpu-memory-utilization", "0.5", "--compilation-config", '{"mode": 3}')
    ]


def test_a_list_is_several_values_unless_vllm_reads_json():
    assert as_words({"cudagraph_capture_sizes": [1, 2]}) == ["--cudagraph-capture-sizes", "1", "2"]
    assert as_words({"allowed_origins": ["*"]}) == ["--allowed-origins", '["*"]']
    assert parse_options(["cudagraph_capture_sizes=[1, 2]", "x=[1"]) == {"cudagraph-capture-sizes": [1, 2], "x": "[1"}


def test_a_part_of_an_option_is_not_a_switch():
    """vLLM's parser would take the next word for its value, and end with an IndexError where there is none."""
    given = [
        "compilation_config.pass_config.fuse=true",
        "compilation_config.cache=False",
        'compilation_config.x=[1, "-y"]',
    ]
    words = as_words(parse_options(given))
    assert words == [
        *("--compilation-config.pass_config.fuse=true", "--compilation-config.cache=false"),
        '--compilation-config.x=[1, "-y"]',
    ]
    refuse_own_options({"compilation_config.custom_ops": ["--none"], "allowed_origins": ["--"]})
    options = {"max_num_seqs.part": False}
    assert check_engine_options(options, STAND_IN, as_words(options), WHERE).fault == ""


def test_a_value_is_never_read_as_another_option():
    assert as_words({"hf_token": "--port=9", "seed": -1}) == ["--hf-token=--port=9", "--seed=-1"]


@given(st.dictionaries(st.from_regex(r"[a-z]{2,6}([_-][a-z]{2,6})?", fullmatch=True), st.integers(0, 99), max_size=4))
def test_a_name_means_the_same_with_either_dash(options):
    words = [f"{name}={value}" for name, value in options.items()]
    other = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert parse_options(words) == parse_options(other)
    assert as_words(parse_options(words)) == as_words({option_name(name): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("port=9", "egpo sets vLLM's `port` itself; use --port"),
        ("served_model_name=x", "use --name"),
        ("trust_remote_code", "this would run code from a model folder"),
        ("trust_remote_code.x=1", "this would run code from a model folder"),
        ("model.x=3", "egpo sets vLLM's `model` itself"),
        ("port+=3", "egpo sets vLLM's `port` itself"),
        ("api_key=secret", "with `api-key`, egpo could not reach the server; leave the option out, or start vLLM"),
        ("uds=/tmp/x", "with `uds`, egpo could not reach the server"),
        ("config=more.yaml", "with `config`, egpo could not reach the server"),
        ("=3", "`=3` has no name"),
        ('lora_modules=["a=b", "--trust-remote-code"]', "a value of `lora-modules` begins with dashes"),
    ],
)
def test_options_that_are_not_the_user_s(option, fault):
    with pytest.raises(InputError) as caught:
        command(Serving("/m", "m", options=parse_options([option])), Engine("vllm", "python", on_cpu=False), PLAIN)
    assert fault in str(caught.value)


def test_what_a_recipe_cannot_set_is_to_be_left_out():
    """The options of `egpo serve` are none of a recipe's."""
    serving = Serving("/m", "m", options={"max_model_len": 9}, options_from="eval.engine_options")
    said = r"eval\.engine_options: egpo sets vLLM's `max-model-len` itself; leave the option out"
    with pytest.raises(InputError, match=said):
        command(serving, Engine("vllm", "python", on_cpu=False), PLAIN)


def test_transformers_has_no_such_options():
    serving = Serving("/m", "m", options={"max_num_seqs": 3}, options_from="eval.engine_options")
    with pytest.raises(InputError, match=r"eval\.engine_options: `transformers serve` has no such setting"):
        command(serving, Engine("transformers", "python", on_cpu=False), PLAIN)


def test_an_option_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"vLLM has no option `tensor_parallel`; did you mean `tensor-parallel-size`"):
        check_engine_options({"tensor_parallel": 2}, STAND_IN, ["--tensor-parallel", "2"], WHERE)
    with pytest.raises(InputError, match=r"vLLM refuses it: argument --max-num-seqs: invalid value: 'many'"):
        check_engine_options({"max_num_seqs": "many"}, STAND_IN, ["--max-num-seqs", "many"], WHERE)
    found = check_engine_options({"tensor_parallel_size": 2}, STAND_IN, ["--tensor-parallel-size", "2", "-x"], WHERE)
    assert (found.tensor_parallel, found.num_gpus) == (2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 2}, "no option `tp`; write `tensor-parallel-size`"),
        ({"nothing_like_it": 2}, "no option `nothing_like_it`; see `vllm serve --help=all`"),
        ({"disable_log_stats": False}, "vLLM's `disable-log-stats` cannot be turned off; leave the option out"),
        ({"enforce_eager": False}, None),
    ],
)
def test_what_to_write_instead_is_said_in_one_line(options, said):
    if said is None:
        check_engine_options(options, STAND_IN, as_words(options), WHERE)
        return
    with pytest.raises(InputError) as caught:
        check_engine_options(options, STAND_IN, as_words(options), WHERE)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_without_options_vllm_is_not_asked(monkeypatch):
    monkeypatch.setattr(engine_options, "ask_parser", pytest.fail)
    assert check_engine_options({}, "python", [], WHERE) is None


def test_a_parser_that_cannot_be_asked_is_said_and_not_fatal(capsys):
    assert check_engine_options({"max_num_seqs": 1}, "/no/such/python", [], WHERE) is None
    assert "engine options are not checked" in capsys.readouterr().err


@pytest.mark.parametrize(("tensor", "data", "there", "fits"), [(2, 1, 2, True), (4, 1, 2, False), (2, 2, 3, False)])
def test_more_ranks_than_gpus_are_refused_in_one_line(tensor, data, there, fits):
    found = gpus(*[79] * there)
    if fits:
        require_gpus(parsed(tensor, data), False, found, WHERE)
        return
    with pytest.raises(InputError) as caught:
        require_gpus(parsed(tensor, data), False, found, WHERE)
    said = str(caught.value)
    assert (
        f"{tensor * data} GPUs are needed (tensor parallel {tensor} x data parallel {data}), and {there} can be" in said
    )
    assert "\n" not in said


def test_a_gpu_that_another_process_fills_is_named():
    with pytest.raises(InputError, match=r"^GPU 1: 60\.0 of 80\.0 GiB are in use by other processes.*at most 0\.23"):
        require_gpus(parsed(2), False, gpus(79, 20), WHERE)
    require_gpus(parsed(2, share=0.2), False, gpus(79, 20), WHERE)
    require_gpus(parsed(1), False, gpus(79, 20), WHERE)
    with pytest.raises(InputError, match="GPU 0"):
        require_gpus(None, False, gpus(3), WHERE)  # also without options: vLLM's default share
    require_gpus(parsed(8), False, None, WHERE)  # nothing is known
    with pytest.raises(InputError, match="a GPU is needed, and 0 can be used; make a GPU visible"):
        require_gpus(None, False, [], WHERE)


def test_a_vllm_for_cpus_serves_in_one_process():
    require_gpus(parsed(), True, [], WHERE)
    with pytest.raises(InputError, match="2 GPUs are needed, and this vLLM is built for CPUs"):
        require_gpus(parsed(2), True, [], WHERE)


def test_nvidia_smi_is_read():
    text = "0, GPU-aaaa-1, 143771, 143000\n1, GPU-bbbb-2, 143771, 512\n"
    found = parse_gpus(text)
    assert [(one.index, one.total_bytes / 2**20, one.free_bytes / 2**20) for one in found] == [
        (0, 143771, 143000),
        (1, 143771, 512),
    ]
    assert parse_gpus("") == []
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the driver") is None
    assert parse_gpus("0, GPU-a, [N/A], 3") is None
    names = {None: [0, 1], "1": [1], "1,0": [1, 0], "GPU-bbbb": [1], "": [], "0,7,1": [0]}
    assert {word: [one.index for one in visible(found, word)] for word in names} == names


@pytest.mark.parametrize("name", ["MIG-0a1b2c3d-0000-0000-0000-000000000000", "MIG-GPU-0000-0/1/0"])
def test_a_part_of_a_gpu_is_not_taken_for_no_gpu(monkeypatch, nvidia_smi, name):
    """`nvidia-smi` lists whole GPUs: what a part of one (MIG) has free is not known here, and vLLM itself looks."""
    nvidia_smi((143771, 40000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    assert "vllm.entrypoints" in serve_on_gpus(monkeypatch)


def test_the_dry_run_prints_the_command_and_starts_nothing(monkeypatch):
    monkeypatch.setenv("STAND_IN", "broken")
    shown = dry_run(Serving("egpo-tiny", "tiny", options={"max_num_seqs": 7}), python=STAND_IN)
    assert shown.endswith("--max-num-seqs 7")
    assert "-m vllm.entrypoints.openai.api_server --model" in shown
    with pytest.raises(InputError, match="this vLLM is built for CPUs"):
        dry_run(Serving("egpo-tiny", "tiny", options={"tensor_parallel_size": 2}), python=STAND_IN)


def serve_on_gpus(monkeypatch, **options):
    monkeypatch.setattr(served, "find_engine", lambda wanted, python: Engine("vllm", STAND_IN, on_cpu=False))
    return dry_run(Serving("egpo-tiny", "tiny", options=options))


def test_the_dry_run_checks_as_many_gpus_as_there_are(monkeypatch, nvidia_smi):
    """With the lines of `nvidia-smi` of two GPUs, of which another process fills the second; there is no GPU here."""
    nvidia_smi((143771, 143000), (143771, 40000))
    assert "vllm.entrypoints" in serve_on_gpus(monkeypatch)
    with pytest.raises(
        InputError, match=r"4 GPUs are needed \(tensor parallel 4 x data parallel 1\), and 2 can be used"
    ):
        serve_on_gpus(monkeypatch, tensor_parallel_size=4)
    with pytest.raises(InputError, match=r"^GPU 1: 101\.3 of 140\.4 GiB are in use by other processes, and vLLM takes"):
        serve_on_gpus(monkeypatch, tensor_parallel_size=2)
    assert "--tensor-parallel-size 2" in serve_on_gpus(monkeypatch, tensor_parallel_size=2, gpu_memory_utilization=0.2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(InputError, match=r"^GPU 1: 101\.3 of 140\.4 GiB"):
        serve_on_gpus(monkeypatch)


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("eval.serve=true", r"eval\.engine_options: vLLM has no option `max_seqs`; did you mean `max-num-seqs`"),
        ("eval.bfcl.categories=[multi_turn_base]", r"eval\.engine_options: vLLM has no option `max_seqs`"),
        ("eval.serve=false", None),
    ],
)
def test_options_of_a_recipe_are_checked_before_it_trains(tmp_path, monkeypatch, section, fault):
    """Not after hours, when the server of the evaluation starts."""
    monkeypatch.chdir(tmp_path)
    Path("egpo.machine.yaml").write_text(f"environments: {{verl: {STAND_IN}}}\n")
    config = load_config("countdown_tiny", [section, "eval.engine_options.max_seqs=7"])
    if fault is None:
        require_evaluable(config)
        return
    with pytest.raises(InputError, match=fault):
        require_evaluable(config)
    with pytest.raises(InputError, match="2 GPUs are needed, and this vLLM is built for CPUs"):
        require_evaluable(load_config("countdown_tiny", [section, "eval.engine_options.tensor_parallel_size=2"]))
    if section == "eval.serve=true":
        command = [sys.executable, "-m", "egpo", "run", "countdown_tiny", section, "eval.engine_options.max_seqs=7"]
        done = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, env=os.environ)
        assert (done.returncode, "did you mean `max-num-seqs`" in done.stderr) == (2, True)
        (experiment,) = load_experiments(["countdown_tiny"], [section, "eval.engine_options.max_seqs=7"])
        with pytest.raises(InputError, match=fault):
            require_runnable(experiment, Selection.of())
    assert not Path("runs").exists()


@pytest.mark.parametrize("verb", [["serve"], ["eval", "bfcl"]])
def test_the_verbs_take_engine_options(verb, tmp_path):
    (tmp_path / "egpo.machine.yaml").write_text(f"environments: {{verl: {STAND_IN}}}\n")
    command = [sys.executable, "-m", "egpo", *verb, "egpo-tiny", "--dry-run", "--engine-option"]
    if verb == ["serve"]:
        command[5:5] = ["--python", STAND_IN]
    done = subprocess.run([*command, "max_num_seqs=7"], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("--max-num-seqs 7")
    done = subprocess.run([*command, "max_seqs=7"], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 2
    assert "vLLM has no option `max-seqs`; did you mean `max-num-seqs`?" in done.stderr


VLLM_WITHOUT_A_GPU = {
    "platforms": "from types import SimpleNamespace\ncurrent_platform = SimpleNamespace(device_type='')",
    "utils": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "entrypoints.openai.cli_args": """
from vllm.platforms import current_platform
def make_arg_parser(parser):
    if not current_platform.device_type:
        raise RuntimeError("Failed to infer device type")
    parser.add_argument("--max-num-seqs", type=int)
    return parser
""",
}
"""A stand-in for vLLM 0.25.1 for GPUs on a machine without a GPU: it cannot make its parser."""


def test_options_are_checked_where_a_vllm_for_gpus_finds_none(tmp_path, monkeypatch):
    for name, text in VLLM_WITHOUT_A_GPU.items():
        module = tmp_path.joinpath("vllm", *name.split("."), "__init__.py")
        module.parent.mkdir(parents=True)
        module.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match="did you mean `max-num-seqs`"):
        check_engine_options({"max_num_seq": 8}, sys.executable, ["--max-num-seq", "8"], WHERE)
    assert check_engine_options({"max_num_seqs": 8}, sys.executable, ["--max-num-seqs", "8"], WHERE).fault == ""


@pytest.mark.verl
@pytest.mark.timeout(420)
def test_the_real_parser_of_vllm_knows_its_options():
    pytest.importorskip("vllm")
    words = command(Serving("/m", "m"), Engine("vllm", sys.executable, on_cpu=True), PLAIN)[3:]
    options = {
        "tensor_parallel_size": 2,
        "data_parallel_size": 2,
        "gpu_memory_utilization": 0.4,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "compilation_config": {"mode": 0},
    }
    found = check_engine_options(options, sys.executable, [*words, *as_words(options)], WHERE)
    assert (found.tensor_parallel, found.data_parallel, found.memory_share) == (2, 2, 0.4)
    assert json.loads(json.dumps(found.names)).count("max-num-seqs") == 1
    with pytest.raises(InputError, match=r"no option `max_num_seq`; did you mean `max-num-seqs`"):
        check_engine_options({"max_num_seq": 1}, sys.executable, [*words, "--max-num-seq", "1"], WHERE)
    for options, said in (
        ({"compilation_config": "mode=0"}, "refuses it: argument --compilation-config.*Invalid JSON"),
        ({"tp": 2}, "write `tensor-parallel-size`"),
        ({"disable_log_stats": False}, "cannot be turned off"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            check_engine_options(options, sys.executable, [*words, *as_words(options)], WHERE)
        assert "\n" not in str(caught.value)
    options = {"cudagraph_capture_sizes": [1, 2], "allowed_origins": ["*"], "hf_token": "--port=9"}
    options |= {"compilation_config.cudagraph_capture_sizes": [1, 2], "speculative_config.enforce_eager": True}
    options |= {"structured_outputs_config.disable_any_whitespace": False}
    check_engine_options(options, sys.executable, [*words, *as_words(options)], WHERE)
    with pytest.raises(InputError, match="vLLM refuses it: argument --max-num-seqs"):
        check_server({"max_num_seqs": "many"}, sys.executable, True, [*words, "--max-num-seqs", "many"], WHERE)
