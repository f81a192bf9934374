"""Sequences side by side without padding; a prompt stands once for all the responses that follow it.

P problems, B rows; N tokens of a pack, M response tokens of a pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.local.models.attention import GroupLayout, PackLayout


@dataclass(frozen=True)
class Sequences:
    """One prompt and the responses to it. Without responses the prompt is a sequence by itself."""

    prompt: Sequence[int]
    responses: Sequence[Sequence[int]] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes in a pack: the last one of a response predicts nothing, and stays out."""
        return len(self.prompt) + sum(len(response) - 1 for response in self.responses)


@dataclass(frozen=True, eq=False)
class Pack:
    """One forward pass. `source_M` says whose hidden state predicts each response token, `target_M` which token that
    is: group by group, response by response, in order."""

    token_N: Tensor
    position_N: Tensor
    layout: PackLayout
    source_M: Tensor
    target_M: Tensor


def pack_groups(groups: Sequence[Sequences], device: torch.device | str = "cpu") -> Pack:
    """Each group in turn: its prompt, then its responses. Every prompt and every response holds a token at least."""
    tokens: list[int] = []
    positions: list[Tensor] = []
    sources: list[Tensor] = []
    layouts = []
    for group in groups:
        prompt_length, start = len(group.prompt), len(tokens)
        assert prompt_length > 0, "a prompt without tokens"
        tokens.extend(group.prompt)
        positions.append(torch.arange(prompt_length))
        for response in group.responses:
            # The first token is predicted by the prompt's last one, each later token by the one before it.
            sources.append(torch.tensor([start + prompt_length - 1]))
            sources.append(torch.arange(len(tokens), len(tokens) + len(response) - 1))
            positions.append(torch.arange(prompt_length, prompt_length + len(response) - 1))
            tokens.extend(response[:-1])
        layouts.append(GroupLayout(start, prompt_length, tuple(len(response) - 1 for response in group.responses)))
    targets = [token for group in groups for response in group.responses for token in response]
    return Pack(
        token_N=torch.tensor(tokens, device=device),
        position_N=torch.cat(positions).to(device),
        layout=PackLayout(tuple(layouts), torch.device(device)),
        source_M=(torch.cat(sources) if sources else torch.empty(0, dtype=torch.long)).to(device),
        target_M=torch.tensor(targets, dtype=torch.long, device=device),
    )
