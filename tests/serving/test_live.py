"""Real servers: what a served model says is what the same model says here."""

import re

import httpx
import pytest

from egpo.config.schema import Model
from egpo.environments import EpisodeRecord, replay
from egpo.evals.evaluate import Exam, evaluate, load_exam
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Sampling
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache
from egpo.local.models.loading import load_policy
from egpo.serving.commands import Serving
from egpo.serving.served import served

pytestmark = [pytest.mark.verl, pytest.mark.timeout(420)]
pytest.importorskip("vllm")

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


COUNTDOWN = {
    "max_numbers": 3,
    "max_number": 12,
    "max_target": 60,
    "prompt_format": "Make {target} from {numbers}.",
    "train": 1024,
    "test": 256,
}
"""What egpo-tiny has learned. Of other numbers it makes tool calls, which `transformers serve` would parse."""


@pytest.fixture(scope="module")
def paper():
    sampling = Sampling(n=1, temperature=0.0, max_tokens=96)
    return load_exam(Exam("countdown", COUNTDOWN, split="test", num_problems=24, sampling=sampling, ks=(1,)))


@pytest.fixture(scope="module")
def many():
    return load_exam(Exam("countdown", COUNTDOWN, num_problems=64, sampling=Sampling(n=2, max_tokens=8)))


@pytest.fixture(scope="module")
def here(paper):
    return evaluate(LocalModel("egpo-tiny", load_policy(Model(path="egpo-tiny", device="cpu"))), paper)


def test_models_are_listed_where_the_hub_s_cache_does_not_exist(tmp_path, monkeypatch):
    """`egpo eval bfcl` waits for that list."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    with served("egpo-tiny", engine="transformers", timeout_s=300) as server:
        assert httpx.get(f"{server.url}/models").status_code == 200


@pytest.fixture(scope="module")
def episodes():
    """Episodes of a few turns: egpo-tiny calls tools, though not those that it is offered."""
    sampling = Sampling(n=1, temperature=0.0, max_turns=3, max_turn_tokens=64)
    return load_exam(Exam("toolbox", {"train": 8, "test": 12}, sampling=sampling, ks=(1,)))


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_answers_are_those_of_the_embedded_engine(engine, paper, many, here, episodes, tmp_path):
    """Greedy ones token for token, in float32; kernels that round otherwise may turn a tie."""
    with (
        served(Serving("egpo-tiny", "some-name"), engine=engine, timeout_s=300) as server,
        AnswerCache.open(tmp_path / "answers.jsonl") as cache,
    ):
        # Enough at once that vLLM would prefill some prompts in parts.
        model = ServedModel(Server.at(server.url, concurrency=128), server.model_name, cache)
        there = evaluate(model, paper)
        sampled = evaluate(model, many)
        if engine == "vllm":  # `transformers serve` answers with status 500 where a model's call is not JSON
            _require_parsed_calls(server)
            _require_episodes(evaluate(model, episodes))
    same = [words(ours) == words(theirs) for ours, theirs in zip(here.samples, there.samples, strict=True)]
    assert sum(same) >= 22
    assert there.figures.num_failed == 0
    assert abs(here.figures.accuracy.value - there.figures.accuracy.value) <= 2 / 24
    # Temperature 1 samples, whatever the model's generation config says or leaves out.
    first, second = ([s.output for s in sampled.samples if s.sample == place] for place in (0, 1))
    assert first != second
    assert sampled.figures.num_failed == 0


def _require_episodes(there):
    """Tools are called over several turns, and every episode can be played again.

    The words need not be the embedded engine's: the server has its own way to write the tools into the prompt.
    """
    assert there.figures.num_failed == 0
    assert there.figures.calls.value > 0
    assert max(len(sample.episode["turns"]) for sample in there.samples) > 1
    for sample in there.samples:
        assert replay(EpisodeRecord.from_stored(sample.episode)).is_same


def words(sample):
    """`transformers serve` takes thinking out of the text: with its line breaks, and whole where it is empty."""
    return re.sub(r"<think>\s*</think>", "", sample.output).replace("</think>", " </think>").split()


def _require_parsed_calls(server):
    """The model's call arrives as a call, and no longer as text."""
    body = {
        "model": server.model_name,
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": WEATHER}],
    }
    message = httpx.post(f"{server.url}/chat/completions", json=body, timeout=120).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"]
    assert "<tool_call>" not in message["content"]
