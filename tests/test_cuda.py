"""What runs on a CPU gives the same on a GPU. (`make test-gpu`)"""

import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals, explain
from egpo.segments import mean_over, opened_by_prompt, segment_masks
from tests.advantages.batches import tokens_for
from tests.segments.tokenizers_for_tests import BUILDERS, tokenizer_named

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning"),
]


def random_signals(seed, device):
    generator = torch.Generator().manual_seed(seed)
    rows = 512
    entropy = torch.rand(rows, generator=generator) * 3
    entropy[torch.rand(rows, generator=generator) < 0.1] = torch.nan
    return Signals(
        reward_B=(torch.randint(4, (rows,), generator=generator) / 3).to(device),
        group_B=torch.randint(70, (rows,), generator=generator).to(device),
        entropy_B=entropy.to(device),
        correct_B=(torch.rand(rows, generator=generator) < 0.5).to(device),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("normalize", [True, False])
def test_estimators_agree_with_the_cpu(name, normalize, seed):
    on_cpu, on_gpu = (random_signals(seed, device) for device in ("cpu", "cuda"))
    tokens = tokens_for(512, seed)
    tables = (tokens.entropy_BT, tokens.mask_BT) if ESTIMATORS[name].level == "token" else ()
    there = [table.cuda() for table in tables]
    advantage = ESTIMATORS[name](on_gpu, *there, normalize=normalize)
    assert advantage.is_cuda
    expected = ESTIMATORS[name](on_cpu, *tables, normalize=normalize)
    torch.testing.assert_close(advantage.cpu(), expected, rtol=1e-6, atol=1e-6)
    assert explain(name, on_gpu, *there) == pytest.approx(explain(name, on_cpu, *tables), rel=1e-6)


@pytest.mark.parametrize("kind", sorted(BUILDERS))
def test_segment_masks_agree_with_the_cpu(kind):
    tokenizer = tokenizer_named(kind)
    texts = ["<think>a </think> b", "see </think> 7", "<think>let me", "no tags", "a <think> b </think> c </think> d"]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    length = max(map(len, ids))
    response = torch.tensor([row + [0] * (length - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])
    entropy = torch.rand(response.shape, generator=torch.Generator().manual_seed(0))
    on_cpu = segment_masks(response, mask, tokenizer)
    on_gpu = segment_masks(response.cuda(), mask.cuda(), tokenizer)
    for part in ("thinking_BT", "answer_BT", "response_BT"):
        assert torch.equal(getattr(on_gpu, part).cpu(), getattr(on_cpu, part))
    means = mean_over(entropy.cuda(), on_gpu.thinking_BT)
    torch.testing.assert_close(means.cpu(), mean_over(entropy, on_cpu.thinking_BT), equal_nan=True)
    assert not opened_by_prompt(response.cuda(), mask.cuda(), tokenizer).any()
