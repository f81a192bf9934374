"""How long an answer may be: what is asked of the server, said in the record, and refused by a comparison."""

import json
import shutil
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.comparisons.comparison import compare_runs
from egpo.errors import ConfigError
from egpo.evals.bfcl.inside.bounded_answers import bounded
from egpo.evals.bfcl.passes import BfclSettings, run_pass
from egpo.evals.bfcl.verdicts import CaseVerdict, evaluation_of
from egpo.evals.evaluate import Origin, write_evaluation
from tests.evals.bfcl.gold_server import serving
from tests.evals.bfcl.test_official import PYTHON, needs_bfcl

CONTEXT = 24576


class Handler:
    """As BFCL's: a client with `completions.create`, a tokenizer, a context."""

    max_context_length = 100
    tokenizer = SimpleNamespace(tokenize=str.split)

    def __init__(self):
        self.sent = []
        self.client = SimpleNamespace(completions=SimpleNamespace(create=lambda **request: self.sent.append(request)))


@pytest.mark.parametrize(
    ("longest", "context", "num_prompt_tokens", "expected"),
    [
        (30, None, 10, 30),
        (5000, None, 10, 88),
        (5000, 60, 10, 48),
        (5000, 600, 10, 88),
        (None, 60, 10, 48),
        (30, None, 98, 0),
        (30, None, 99, 1000),
        (30, 60, 59, 1000),
    ],
    ids=["the bound", "room", "the server's", "the model's", "room alone", "no room", "too long", "for the server"],
)
def test_an_answer_has_the_bound_or_the_room_and_a_prompt_too_long_is_bfcls_affair(
    longest, context, num_prompt_tokens, expected
):
    handler = bounded(Handler, longest, context, timeout_s=9)()
    prompt = "word " * num_prompt_tokens
    handler.client.completions.create(prompt=prompt, max_tokens=1000, timeout=7)
    assert handler.sent == [{"prompt": prompt, "max_tokens": expected, "timeout": 9}]


def test_without_a_context_of_the_server_the_bound_is_bfcls_own():
    roomy = type("Roomy", (Handler,), {"max_context_length": 10**6})
    handler = bounded(roomy, None, 10**5, timeout_s=9)()
    handler.client.completions.create(prompt="word", max_tokens=4096)
    assert handler.sent[0]["max_tokens"] == 4096


@pytest.fixture(scope="module")
def long_sighted(tmp_path_factory):
    """egpo-tiny's tokenizer with a context that BFCL's prompts fit."""
    folder = tmp_path_factory.mktemp("model") / "tiny-long"
    shutil.copytree(resolve_model("egpo-tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return str(folder)


@needs_bfcl
@pytest.mark.parametrize(
    ("prompt_format", "max_tokens"),
    [("qwen_fc", None), ("qwen_fc", 128), ("qwen", 10_000), ("llama", 30_000), ("template", 128)],
)
def test_what_the_official_evaluator_asks_for_in_each_format(prompt_format, max_tokens, long_sighted, tmp_path):
    cases, bodies = {"simple_python": ["simple_python_0", "simple_python_1"]}, []
    with serving(lambda prompt: "No.", bodies=bodies) as (url, _):
        asked = BfclSettings(url, "gold", long_sighted, tuple(cases), cases, prompt_format, max_tokens=max_tokens)
        run_pass(PYTHON, asked, tmp_path / "pass", lambda line: None)
    assert len(bodies) == 2
    tokenizer = AutoTokenizer.from_pretrained(long_sighted)
    for body in bodies:
        room = CONTEXT - len(tokenizer.tokenize(body["prompt"])) - 2
        assert body["max_tokens"] == min(max_tokens or 4096, room)


def written(folder, max_tokens):
    cases = [CaseVerdict(f"a_{place}", "a", place > 0, "x", False, "p", "t", 1) for place in range(4)]
    evaluation = evaluation_of(f"m{max_tokens}", BfclSettings("", "m", "t", ("a",), max_tokens=max_tokens), [cases])
    return write_evaluation(folder, f"bfcl-a-{max_tokens}", evaluation, Origin(f"m{max_tokens}"))


def test_evaluations_that_differ_in_it_are_not_compared(tmp_path):
    plain, same, other = (written(tmp_path, max_tokens) for max_tokens in (None, 4096, 512))
    assert json.loads(other.read_text())["sampling"]["max_tokens"] == 512
    assert not compare_runs([plain, same]).unfair
    with pytest.raises(ConfigError, match=r"evaluation sampling.max_tokens: nothing \(mNone\); 512 \(m512\)"):
        compare_runs([plain, other])
