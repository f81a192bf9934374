"""egpo.trl in real TRL, on egpo-tiny: its advantages are those computed by hand, and TRL's loss uses them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from egpo.advantages import ESTIMATORS, Signals
from egpo.assets import resolve_model

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".env-trl"
RUNS = ("grpo", "egpo", "token_entropy", "calibrated_nll", "reused")
SPREAD = ("egpo_spread", "token_entropy_spread")
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
pytestmark = pytest.mark.skipif(not (FOLDER / "trl").is_dir(), reason="TRL is not here: make .env-trl/.ready")


def python(*words, cwd=ROOT):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr[-20_000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each run saw, by name: a list of its processes."""
    out = tmp_path_factory.mktemp("trl")
    python("-m", "tests.trl_steps", str(out), *RUNS)
    python(*TWO, "-m", "tests.trl_steps", str(out), *SPREAD)
    found = {name: [torch.load(out / f"{name}.0.pt")] for name in RUNS}
    return found | {name: [torch.load(out / f"{name}.{rank}.pt") for rank in range(2)] for name in SPREAD}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))


def thinking(step, tokenizer):
    """The tokens from just after <think> to </think>, found in the text of ever longer prefixes."""
    mask_BT = torch.zeros_like(step["completion_mask"], dtype=torch.bool)
    for row, (ids, kept) in enumerate(zip(step["completion_ids"], step["completion_mask"], strict=True)):
        for end in range(int(kept.sum())):
            before = tokenizer.decode(ids[:end])
            mask_BT[row, end] = "<think>" in before and "</think>" not in before
    return mask_BT


def mean(value_BT, mask_BT):
    return (value_BT * mask_BT).sum(1) / mask_BT.sum(1)


def by_hand(step, group, eps=1e-6):
    """GRPO's advantages from the rewards, group by group; 0 where no function gave a reward."""
    reward_N = step["rewards"].double().nansum(1)
    judged_N = ~step["rewards"].isnan().all(1)
    found = torch.zeros_like(reward_N)
    for start in range(0, len(reward_N), group):
        here = torch.arange(start, start + group)[judged_N[start : start + group]]
        found[here] = (reward_N[here] - reward_N[here].mean()) / (reward_N[here].std() + eps)
    return found


def loss_of(advantages, step):
    """The first loss of a step: all ratios are 1."""
    advantages = advantages if advantages.ndim == 2 else advantages[:, None]
    return -float((advantages * step["completion_mask"]).sum() / step["completion_mask"].sum())


def test_grpo_is_trls_own_but_for_its_constant(runs):
    """TRL adds 1e-4 to the standard deviation, egpo 1e-6."""
    steps = runs["grpo"][0]["steps"]
    assert any(step["own"].abs().max() > 0.5 for step in steps)
    for step in steps:
        assert torch.allclose(by_hand(step, 4, eps=1e-4), step["own"].double(), atol=1e-5)
        assert torch.allclose(by_hand(step, 4), step["advantages"].double(), atol=1e-5)
        assert torch.allclose(step["advantages"], step["own"], atol=1e-3)


@pytest.mark.parametrize(("name", "lam"), [("egpo", 0.6), ("reused", 0.4)])
def test_egpo_is_what_the_formula_gives_for_plain_logits(runs, tokenizer, name, lam):
    differs = False
    for step in runs[name][0]["steps"]:
        base_B, H_B = by_hand(step, 4), mean(step["entropy"], thinking(step, tokenizer)).nan_to_num(0.0)
        wanted_B = base_B + lam * torch.minimum(H_B, base_B.abs() / 2)
        assert torch.allclose(step["advantages"].double(), wanted_B, atol=1e-5)
        assert step["losses"][0] == pytest.approx(loss_of(wanted_B, step), abs=1e-5)
        assert torch.allclose(torch.tensor(step["logged"]).double(), wanted_B, atol=1e-5)
        differs |= abs(step["losses"][0] - loss_of(step["own"], step)) > 1e-3
    assert differs


def test_advantages_per_token_reach_the_loss(runs):
    differs = False
    for step in runs["token_entropy"][0]["steps"]:
        mask_BT, judged_B = step["completion_mask"].bool(), ~step["rewards"].isnan().all(1)
        signals = Signals(step["rewards"].nansum(1)[judged_B], torch.arange(8)[judged_B] // 4)
        wanted_BT = torch.zeros_like(step["entropy"])
        found = ESTIMATORS["token_entropy"](signals, step["entropy"][judged_B], mask_BT[judged_B])
        wanted_BT[judged_B] = found.double()
        assert torch.allclose(step["advantages"].double(), wanted_BT, atol=1e-5)
        assert step["losses"][0] == pytest.approx(loss_of(wanted_BT, step), abs=1e-5)
        differs |= abs(step["losses"][0] - loss_of(step["own"], step)) > 1e-3
    assert differs


def test_nll_correctness_and_scale_are_passed_on(runs, tokenizer):
    for step in runs["calibrated_nll"][0]["steps"]:
        thinking_BT, mask_BT = thinking(step, tokenizer), step["completion_mask"].bool()
        closed_B = torch.tensor(["</think>" in tokenizer.decode(ids) for ids in step["completion_ids"]])
        opened_B = torch.tensor(["<think>" in tokenizer.decode(ids) for ids in step["completion_ids"]])
        after_BT = mask_BT & ~thinking_BT & (thinking_BT.long().cumsum(1) > 0) & closed_B[:, None]
        answer_BT = torch.where(opened_B[:, None], after_BT, mask_BT & ~closed_B[:, None])
        judged_B = ~step["rewards"].isnan().all(1)
        signals = Signals(
            reward_B=step["rewards"].nansum(1)[judged_B],
            group_B=torch.arange(8)[judged_B] // 4,
            entropy_B=mean(step["entropy"], answer_BT)[judged_B],
            nll_B=mean(-step["logp"], answer_BT)[judged_B],
            correct_B=step["rewards"][judged_B, 1] == 1,
        )
        settings = {"measure": "nll", "sides": "positive_only", "normalize": False}
        wanted_B = torch.zeros(8)
        wanted_B[judged_B] = ESTIMATORS["egpo_calibrated"](signals, **settings)
        assert torch.allclose(step["advantages"], wanted_B, atol=1e-5)


def test_passes_of_a_step(runs):
    """One pass for the loss. Estimators of entropy add one, unless old log-probabilities are computed anyway."""
    num = {name: runs[name][0]["passes"] for name in RUNS}
    assert num == {"grpo": 2, "egpo": 4, "token_entropy": 4, "calibrated_nll": 4, "reused": 3}


def test_a_group_may_be_spread_over_processes(runs, tokenizer):
    for parts in zip(*(process["steps"] for process in runs["egpo_spread"]), strict=True):
        assert torch.equal(parts[0]["rewards"].nan_to_num(-1), parts[1]["rewards"].nan_to_num(-1))
        H_N = torch.cat([mean(part["entropy"], thinking(part, tokenizer)) for part in parts]).nan_to_num(0.0)
        base_N = by_hand(parts[0], 8)
        wanted_N = base_N + 0.4 * torch.minimum(H_N, base_N.abs() / 2)
        found_N = torch.cat([part["advantages"] for part in parts])
        assert torch.allclose(found_N.double(), wanted_N, atol=1e-5)
    for parts in zip(*(process["steps"] for process in runs["token_entropy_spread"]), strict=True):
        assert [part["advantages"].shape for part in parts] == [part["completion_ids"].shape for part in parts]
        base_N = by_hand(parts[0], 8)
        for rank, part in enumerate(parts):
            base_B, mask_BT = base_N[4 * rank : 4 * rank + 4, None], part["completion_mask"].bool()
            assert bool((part["advantages"][~mask_BT] == 0).all())
            assert bool(((part["advantages"] * base_B >= 0) & ((part["advantages"] - base_B) >= -1e-5))[mask_BT].all())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"estimator": "egop"}, "did you mean `egpo`?"),
        ({"estimator_settings": {"lamda": 1.0}}, "did you mean `lam`?"),
        ({"estimator": "gtpo"}, "`correct_B` is missing"),
        ({"correct_from": "is_evn"}, "did you mean `is_even`?"),
        ({"scale_rewards": "batch"}, "scale_rewards is `batch`"),
    ],
)
def test_bad_input_is_refused_at_construction(words, expected, tmp_path):
    theirs = {key: words[key] for key in words if key == "scale_rewards"}
    ours = {key: value for key, value in words.items() if key not in theirs}
    code = (
        "from tests import trl_steps\nfrom egpo.errors import InputError\n"
        f"trl_steps.RUNS['bad'] = ({ours!r}, {theirs!r})\n"
        f"try:\n    trl_steps.make('bad', {str(tmp_path)!r}, None)\n    raise SystemExit('was accepted')\n"
        f"except InputError as error:\n    assert {expected!r} in str(error), error\n"
    )
    python("-c", code)


def test_another_version_is_used_with_a_warning_or_refused_with_what_is_missing():
    code = """
import warnings
from tests import trl_steps
from egpo.errors import EgpoError
from egpo.trl import GRPOTrainer, _require_supported
from transformers import Trainer
warnings.simplefilter("error")
_require_supported(GRPOTrainer, "1.16.3", True)
try:
    _require_supported(GRPOTrainer, "1.99.0", True)
    raise SystemExit("no warning")
except UserWarning as warning:
    assert "TRL 1.99.0 is installed" in str(warning)
try:
    _require_supported(Trainer, "1.99.0", True)
    raise SystemExit("was accepted")
except EgpoError as error:
    assert "_calculate_rewards(inputs), " in str(error) and "advantages per token" in str(error), error
"""
    python("-c", code)


def test_the_example_of_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "trl.md").read_text()
    lines = [line[4:] for line in page.splitlines() if line.startswith("    ") or not line]
    code = "\n".join(lines)
    assert "trainer.train()" in code
    python("-W", "ignore", "-c", f"import sys; sys.path.append({str(FOLDER)!r})\n{code}", cwd=tmp_path)
