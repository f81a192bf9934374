"""`examples/one_file_egpo.py` computes what the package computes: judge, segments, advantages and the first update."""

import importlib.util
import math
import random
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo import ESTIMATORS, Signals
from egpo.assets import MODELS
from egpo.config import load_config
from egpo.errors import EgpoWarning
from egpo.local.collect import collect
from egpo.local.measure import estimate, measure
from egpo.local.run import open_run
from egpo.local.updates.update import update
from egpo.rewards.countdown import judge_countdown
from egpo.segments import segment_masks

FILE = Path(__file__).parents[1] / "examples" / "one_file_egpo.py"
TINY = MODELS["egpo-tiny"]
RECIPE = [
    "model.path=egpo-tiny",
    "model.device=cpu",
    "task.name=countdown",
    "task.settings={mode: binary, max_numbers: 3, max_number: 12, max_target: 60, train: 256, test: 16, "
    "prompt_format: 'Make {target} from {numbers}.'}",
    "rollout.prompts=6",
    "rollout.n=4",
    "rollout.max_response_tokens=64",
    "update.lr=3e-5",
]


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


one_file = _load(FILE)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Tensors this small gain nothing from a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


def plain_model():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def sampled(tokenizer):
    """Problems of the file, and what it samples for them."""
    torch.manual_seed(0)
    rng = random.Random(0)
    problems = [one_file.draw_problem(rng) for _ in range(4)]
    return problems, one_file.sample(plain_model(), tokenizer, problems, n=3, max_tokens=40, temperature=0.8)


def left_padded(rollouts, pad_id):
    """The rollouts of the engine as those of the file: a row of tokens per response, its prompt padded on the left."""
    prompts = [rollouts.prompts[problem] for problem in rollouts.problem_B.tolist()]
    longest = max(map(len, prompts))
    prompt_BL = torch.tensor([[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask_BL = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    tables = (rollouts.response_BT, rollouts.mask_BT, rollouts.logp_BT, rollouts.entropy_BT)
    return one_file.Rollouts(prompt_BL, mask_BL, *tables)


def test_it_imports_the_package_only_for_the_path_of_the_model():
    imports = [line.strip() for line in FILE.read_text().splitlines() if "import" in line and "egpo" in line]
    assert [line.partition("  #")[0] for line in imports] == ["from egpo.assets import MODELS"]


rewards = st.floats(-2, 2, width=32) | st.sampled_from([0.0, 0.1, 0.9, 1.0])
entropies = st.floats(0, 5, width=32) | st.sampled_from([0.0, 1e-7, -1e-8, math.nan])


@given(st.integers(2, 5).flatmap(lambda g: st.lists(st.lists(st.tuples(rewards, entropies), min_size=g, max_size=g))))
def test_its_advantages_are_those_of_the_estimators(groups):
    if not groups:
        return
    table_PG2 = torch.tensor(groups)
    reward_PG, entropy_PG = table_PG2.unbind(-1)
    group_PG = torch.arange(len(groups))[:, None].expand_as(reward_PG)
    signals = Signals(reward_PG.flatten(), group_PG.flatten(), entropy_PG.flatten())
    for name, estimator in one_file.ESTIMATORS.items():
        expected_B = ESTIMATORS[name](signals)
        torch.testing.assert_close(estimator(reward_PG, entropy_PG).flatten().float(), expected_B, rtol=1e-6, atol=1e-6)


def test_it_records_the_log_probabilities_and_entropies_that_it_sampled_from(sampled):
    _, rollouts = sampled
    logp_BT = one_file.response_logp(plain_model(), rollouts, torch.arange(12), 0.8)
    torch.testing.assert_close(logp_BT[rollouts.mask_BT], rollouts.logp_BT[rollouts.mask_BT], rtol=0, atol=1e-4)
    assert (rollouts.entropy_BT >= -1e-6).all()


def test_its_judge_is_that_of_countdown(tokenizer, sampled):
    problems, rollouts = sampled
    texts = one_file.response_texts(tokenizer, rollouts)
    pairs = [(problems[row // 3], text) for row, text in enumerate(texts)]
    known = one_file.Problem((2, 3, 4), 14)
    answers = ["2+3*4", "(2+3)*4", "2+3+4", "2*(3+4)", "1/0", "2**3", "abs(2)", "", "(" * 300, "2+3*4+"]
    pairs += [(known, f"<think>\n</think>\n<answer>{answer}</answer>") for answer in answers]
    answer = "<answer>2+3*4</answer>"
    pairs += [(known, f"<think>{answer}"), (known, answer), (known, f"</think>{answer}</think>"), (known, "")]
    found = [one_file.judge(problem, text) for problem, text in pairs]
    expected = [judge_countdown(text, problem.numbers, problem.target, mode="binary").reward for problem, text in pairs]
    assert found == expected
    assert {0.0, 1.0} <= set(found[len(texts) :])


def test_its_segments_are_those_of_the_package(tokenizer, sampled):
    _, rollouts = sampled
    texts = ["<think>\na\n</think>\n\nb", "before<think>a</think>b", "a</think>b", "only an answer", "<think>cut off"]
    rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    written_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask_BT = torch.arange(written_BT.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    blank = torch.zeros(written_BT.shape)
    for one in (rollouts, one_file.Rollouts(blank, blank, written_BT, mask_BT, blank, blank)):
        thinking_BT, answer_BT = one_file.split_responses(tokenizer, one, ("<think>", "</think>"))
        with pytest.warns(EgpoWarning, match="neither") if one is not rollouts else nullcontext():
            expected = segment_masks(one.response_BT, one.mask_BT, tokenizer)
        assert thinking_BT.equal(expected.thinking_BT)
        assert answer_BT.equal(expected.answer_BT)


@pytest.mark.parametrize("estimator", ["grpo", "egpo", "egpo_calibrated"])
def test_its_first_update_is_that_of_the_engine(tokenizer, estimator):
    """Loss and gradient norm to 1e-5 relative, weights to 1e-6 of their norm, and their change to 1e-3 of its norm.

    The change is compared more loosely: Adam's first step divides each gradient by its own size, so that a weight whose
    gradient is almost 0 turns rounding errors into a step of the size of the learning rate.
    """
    run = open_run(load_config(None, [*RECIPE, f"algorithm.estimator={estimator}"]))
    batch = collect(run, 0)
    measures = measure(run.policy, batch.rollouts, run.config.segments.tags)
    estimated = estimate(batch, measures, run.config.algorithm)

    rollouts = left_padded(batch.rollouts, run.policy.pad_id)
    reward_PG = batch.reward_B.view(-1, 4)
    entropy_PG = one_file.segment_entropy(tokenizer, rollouts, one_file.SEGMENT[estimator]).view(-1, 4)
    advantage_B = one_file.ESTIMATORS[estimator](reward_PG, entropy_PG).flatten().float()
    assert advantage_B.count_nonzero() > 4
    torch.testing.assert_close(advantage_B, estimated.advantage_B, rtol=1e-6, atol=1e-6)

    model = plain_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0)
    loss, grad_norm = one_file.update(model, optimizer, rollouts, advantage_B)
    stats = update(run.policy, run.optimizer, batch.rollouts, estimated.advantage_B, run.settings, run.budget, 0)
    metrics = stats.metrics()
    assert loss == pytest.approx(metrics["actor/pg_loss"], rel=1e-5)
    assert grad_norm == pytest.approx(metrics["actor/grad_norm"], rel=1e-5)

    engine = dict(run.policy.model.named_parameters())
    ours, theirs, first = (
        torch.cat([weights[name].detach().flatten() for name in before])
        for weights in (dict(model.named_parameters()), engine, before)
    )
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
    assert (ours - theirs).norm() <= 1e-3 * (theirs - first).norm()
    assert (theirs - first).norm() > 0


def test_a_step_of_training_prints_its_figures(tokenizer, capsys):
    torch.manual_seed(0)
    model = plain_model()
    before = model.lm_head.weight.detach().clone()
    one_file.train(model, tokenizer, "egpo_calibrated", steps=1, prompts=3, n=4, max_tokens=40, lr=1e-4)
    assert "step   1  reward 0." in capsys.readouterr().out
    assert not model.lm_head.weight.equal(before)
