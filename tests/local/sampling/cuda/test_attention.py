"""The attention of new tokens against a plain softmax: on a GPU, and by Triton's interpreter where there is none."""

import os
import subprocess
import sys

import pytest
import torch

SHAPES = [(4, 2, 8, 5), (9, 3, 64, 4), (4, 1, 16, 6)]
"""Heads of queries and of keys, their width, and rows."""
PROMPTS, PLACES, OVER = [7, 64], [0, 70, 63, 64, 95, 5], 1
"""Tokens of the prompts, the place of each row's new token, and the row that has ended."""


def check(queries, keys, width, rows, device):
    from egpo.local.sampling.cuda.kernels.attention import LayerCache, RowPlaces, attend_new

    def integers(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    generator = torch.Generator().manual_seed(rows)
    shapes = [(2, keys, 64, width)] * 2 + [(rows, keys, 96, width)] * 2 + [(rows, queries, width)]
    *cached, query = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    cache = LayerCache(*cached)
    prompt = [0, 0] + [1] * (rows - 2)
    places = RowPlaces(
        prompt_R=integers(prompt),
        length_P=integers(PROMPTS),
        tile_R=integers([2, 0, rows - 2] + [0] * (rows - 3)),
        slot_R=integers(list(range(rows))[::-1]),
        place_R=integers(PLACES[:rows]),
        live_R=integers([int(row != OVER) for row in range(rows)]),
    )
    found = attend_new(query, cache, places, width**-0.5).view(rows, queries, width)
    for row in range(rows):
        if row == OVER:
            continue
        of_prompt, own = slice(PROMPTS[prompt[row]]), slice(PLACES[row] + 1)
        slot = rows - 1 - row
        for head in range(queries):
            k = head // (queries // keys)
            key = torch.cat([cache.prompt_keys[prompt[row], k, of_prompt], cache.keys[slot, k, own]])
            value = torch.cat([cache.prompt_values[prompt[row], k, of_prompt], cache.values[slot, k, own]])
            expected = torch.softmax(key @ query[row, head] * width**-0.5, 0) @ value
            torch.testing.assert_close(found[row, head], expected, atol=1e-5, rtol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_a_plain_softmax(shape):
    check(*shape, "cuda")


@pytest.mark.verl
def test_attention_is_right_where_there_is_no_gpu():
    """By Triton's interpreter. Triton is part of verl's environment."""
    pytest.importorskip("triton")
    code = f"from {__name__} import check\nfor shape in {SHAPES}: check(*shape, 'cpu')"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
