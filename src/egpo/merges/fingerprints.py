"""What a model is, apart from how it is stored: the digest of each tensor, and what it computes."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.errors import EgpoError, InputError

_NUM_PROBED = 16
_TOLERANCE = 1e-3
"""Of the largest logit. The weights are equal to the bit; only the addresses that kernels see are not."""

Watch = Callable[[str, int, int], None]
"""Told of a stage's name, how many of its parts are done, and of how many."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """`digests` by the tensors' names; `logits` of one forward pass over tokens from all over the vocabulary."""

    digests: Mapping[str, str]
    logits: Tensor

    @property
    def weights_sha256(self) -> str:
        """One digest for all weights, whatever files they lie in."""
        lines = (f"{name} {digest}\n" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def fingerprint(model: PreTrainedModel, stage: str, watch: Watch) -> Fingerprint:
    """An InputError where the model computes no finite numbers: there is nothing worth keeping in it."""
    state = model.state_dict()
    digests = {}
    for done, (name, tensor) in enumerate(state.items()):
        watch(stage, done, len(state))
        digests[name] = _digest(tensor)
    logits = _logits(model)
    if not logits.isfinite().all():
        fix = "the training diverged: choose an earlier --step"
        raise InputError("the model computes numbers that are not finite", where="forward pass", fix=fix)
    watch(stage, len(state), len(state))
    return Fingerprint(digests, logits)


def difference(written: Fingerprint, trained: Fingerprint, where: str) -> float:
    """The largest between two logits. An EgpoError where the model that was read back is not the one written."""
    odd = sorted(name for name in trained.digests if written.digests.get(name) != trained.digests[name])
    if odd or len(written.digests) != len(trained.digests):
        name = odd[0] if odd else "one that was not there"
        raise EgpoError(f"reads back with other weights: {name}", where=where, fix="is the disk sound? try again")
    apart = float((written.logits - trained.logits).abs().max())
    if apart > _TOLERANCE * float(trained.logits.abs().max()):
        raise EgpoError(f"reads back with the same weights, and computes otherwise by {apart:g}", where=where)
    return apart


def _digest(tensor: Tensor) -> str:
    kind = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    digest = hashlib.sha256(kind)
    digest.update(content)
    return digest.hexdigest()


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    num_rows = model.get_input_embeddings().weight.shape[0]
    probe_BT = torch.linspace(0, num_rows - 1, _NUM_PROBED).long()[None]
    logits: Tensor = model(input_ids=probe_BT, use_cache=False).logits
    return logits.float()
