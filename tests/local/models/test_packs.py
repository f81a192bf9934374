"""A pack computes what each sequence would compute alone, whatever it is packed with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.config.schema import Model
from egpo.errors import InputError
from egpo.local.models.attention import attend
from egpo.local.models.loading import load_policy
from egpo.local.models.packs import GroupLayout, PackLayout, Sequences, pack_groups
from tests.local.conftest import CONFIGS
from tests.local.device import MODEL

lengths = st.lists(st.integers(1, 7), max_size=4)
groups = st.lists(st.tuples(st.integers(1, 9), lengths), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def policy(request, model_folder):
    return load_policy(Model(path=str(model_folder(request.param)), **MODEL))


def sequences(shapes, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(3, 250, (count,), generator=generator).tolist()

    return [Sequences(tokens(prompt), [tokens(length) for length in responses]) for prompt, responses in shapes]


def alone(policy, tokens):
    """Hidden states of one sequence by itself, as one prompt."""
    return policy.hidden(pack_groups([Sequences(tokens)], policy.device))


@settings(max_examples=25)
@given(groups, st.integers(0, 1000))
def test_a_pack_equals_its_sequences_one_by_one(policy, shapes, seed):
    packed = sequences(shapes, seed)
    with torch.no_grad():
        pack = pack_groups(packed, policy.device)
        found = policy.hidden(pack)[pack.source_M]
        expected, targets = [], []
        for group in packed:
            for response in group.responses:
                hidden = alone(policy, [*group.prompt, *response])
                expected.append(hidden[len(group.prompt) - 1 : -1])
                targets += response
    assert pack.target_M.tolist() == targets
    assert len(pack.token_N) == sum(group.num_tokens for group in packed)
    if expected:
        torch.testing.assert_close(found, torch.cat(expected), atol=2e-4, rtol=1e-4)


def test_gradients_of_a_pack_equal_those_of_its_sequences(policy):
    packed = sequences([(5, [4, 2, 6]), (3, [1]), (2, [5, 5])], 1)

    def gradients(loss):
        policy.model.zero_grad()
        loss.backward()
        return {
            name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None
        }

    pack = pack_groups(packed, policy.device)
    ours = gradients(policy.hidden(pack)[pack.source_M].square().sum())
    rows = [
        alone(policy, [*group.prompt, *response])[len(group.prompt) - 1 : -1]
        for group in packed
        for response in group.responses
    ]
    expected = gradients(torch.cat(rows).square().sum())
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-3, rtol=1e-4, msg=name)


def test_a_window_counts_by_the_longest_sequence_and_not_by_the_pack():
    groups = [GroupLayout(0, 5, (3, 4)), GroupLayout(12, 6, ())]
    layout = PackLayout(tuple(groups), torch.device("cpu"))
    query = torch.randn(1, 2, 18, 4)
    attend(torch.nn.Identity(), query, query, query, None, layout=layout, sliding_window=9)
    with pytest.raises(InputError, match="sliding window of 8"):
        attend(torch.nn.Identity(), query, query, query, None, layout=layout, sliding_window=8)
