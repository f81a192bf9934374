"""Compare the engine's forward passes with those of transformers on real text, before anything is trained.

Some features of models cannot be seen in their config, such as position biases of attention (ALiBi), soft-capped
logits, or a recurrent state instead of a key-value cache. A feature that the engine does not support makes the logits
differ, and InputError is raised.

The bound is measured. Three passes compute the logits of the same text: the engine's and transformers' own in the
model's precision, and an exact one in the next higher precision (float32 for 16 bits, float64 for float32). The error
of a token is the root mean square over the vocabulary of its distance from the exact logits. The engine's errors may
be at most FACTOR times those of transformers at the mean over the tokens, and TAIL_FACTOR times at the 99th percentile.
A trained model has a few channels far larger than the others, and rounds far worse than random weights do, so no fixed
bound serves.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from egpo.errors import InputError
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.exact_forward import plain_logits
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import Policy
from egpo.local.models.verdicts import record_verdict, recorded_verdict, verdict_key

FACTOR, TAIL_FACTOR = 3.0, 8.0
"""With outliers as in trained models, single tokens have errors of ten times the mean, and they are others in each
pass. Between two correct passes on 60 models of tests/local/models/outlier_models.py, in both precisions, the means
differed by up to 1.5 times and the 99th percentiles by up to 2.8 times. With outliers three times as large (120 models)
it was 2.1 and 5 times, and once 13 times."""
FLOORS = {torch.float32: 2.0**-15, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Smallest mean error that is held against the engine, as a fraction of the size of the logits (their root mean
square). For 16 bits it is the rounding of the logits alone, and transformers' own error is larger. In float32, errors
are a few hundred roundings at most (2^-24 each) and depend on the order of sums: on SmolLM2-135M the engine's kernels
are 3.8e-5 from float64 and transformers 0.8e-5, both of no consequence. 2^-15 is 1/128 of one rounding in bfloat16."""
TAIL_FLOOR = 4.0
"""The same at the 99th percentile, in units of the one at the mean."""
PROMPT_LENGTH, RESPONSE_LENGTHS = 16, (64, 40)
DECODED = 16
"""Tokens of each response that are also computed one at a time with a cache."""
SHALLOW_LAYERS = 2
_MOST_WEIGHTS = 4e8
"""On a CPU, a model with more weights is checked on fewer tokens, so that the check costs about the same."""

TEXT = """A train leaves the station at 9:15 and travels 84 kilometres in 70 minutes. How fast does it go on average?
First we write the time in hours: 70 / 60 = 7/6. Then the speed is 84 / (7/6) = 84 * 6 / 7 = 72 kilometres per hour.
"Are you sure?" asked Maria, who had expected less. We can check it: 72 * 7/6 = 84, which is what we were told.

def speed(distance_km: float, minutes: int) -> float:
    # Return kilometres per hour.
    return distance_km * 60.0 / minutes

The old harbour of the town was built in 1873, and most of its warehouses are now flats, cafés and small museums.
In June the ferries to the islands run twice a day; in winter, when storms close the strait, people wait for a week.
"""


@dataclass(frozen=True)
class Errors:
    """Distances from the exact logits over the tokens of the text: their mean and their 99th percentile."""

    mean: float
    p99: float

    @classmethod
    def of(cls, error_T: Tensor) -> "Errors":
        return cls(float(error_T.mean()), float(torch.quantile(error_T, 0.99)))


@dataclass(frozen=True)
class PathErrors:
    """The engine's errors on one path (`packed` or `cached`), and transformers' own on the same tokens."""

    path: str
    ours: Errors
    theirs: Errors
    floor: float
    num_tokens: int

    @property
    def ratio(self) -> float:
        """The engine's error in units of the largest one allowed. Above 1 the model is refused."""
        mean = self.ours.mean / max(FACTOR * self.theirs.mean, self.floor)
        tail = self.ours.p99 / max(TAIL_FACTOR * self.theirs.p99, TAIL_FLOOR * self.floor)
        # NaN compares as false with everything.
        return max(ratio if ratio <= ratio else torch.inf for ratio in (mean, tail))


@torch.no_grad()
def require_agreement(policy: Policy, where: str) -> None:
    """Raise InputError if the logits of a pack or of a cache are further from exact ones than transformers' own are.

    The measurement is kept in egpo's cache and not repeated for the same weights, code and device, if it took long."""
    key = verdict_key(policy)
    paths = [PathErrors(**{**row, "ours": Errors(**row["ours"]), "theirs": Errors(**row["theirs"])})
             for row in recorded_verdict(key)]  # fmt: skip
    if not paths:
        start = time.perf_counter()
        try:
            paths = measure_paths(policy)
        except RuntimeError as error:  # of torch: an operation of the model that has no higher precision
            if isinstance(error, torch.OutOfMemoryError):
                raise
            what = f"{type(policy.model).__name__} cannot be checked: {str(error).splitlines()[0]:.160}"
            raise InputError(what, where=where, fix="use engine=verl for this model") from error
        record_verdict(key, [asdict(path) for path in paths], time.perf_counter() - start)
    for path in paths:
        if not path.ratio <= 1:
            raise InputError(
                _refusal(policy, path),
                where=where,
                fix="the local engine supports only standard causal attention, and logits that are the product of "
                "hidden states and the head's weight; use engine=verl for this model",
            )


def _refusal(policy: Policy, path: PathErrors) -> str:
    precision = str(policy.head_VD.dtype).removeprefix("torch.")
    exact = str(_exact_dtype(policy)).removeprefix("torch.")
    return (
        f"the engine computes {type(policy.model).__name__} wrongly: {path.path} logits differ from {exact} by "
        f"{path.ours.mean:.2g} on average and {path.ours.p99:.2g} at the 99th percentile of {path.num_tokens} tokens, "
        f"transformers' own in {precision} by {path.theirs.mean:.2g} and {path.theirs.p99:.2g}; allowed is "
        f"{FACTOR:g} and {TAIL_FACTOR:g} times that, and no less than {path.floor:.2g} and "
        f"{TAIL_FLOOR * path.floor:.2g}"
    )


def measure_paths(policy: Policy) -> list[PathErrors]:
    """Measure both paths of the engine, and transformers beside them.

    In 16 bits the rounding hides small faults, such as a wrong epsilon of a norm. Where the engine has layers of its
    own, the first ones are therefore measured in float32 too."""
    paths = measure_both(policy, text_tokens(policy))
    if policy.path != "transformers" and policy.head_VD.dtype != torch.float32:
        paths += measure_both(*shallow_policy(policy), note=f" (first {SHALLOW_LAYERS} layers in float32)")
    return paths


def measure_both(policy: Policy, group: Sequences, note: str = "") -> list[PathErrors]:
    """Measure the path of packs and the path of caches on one group."""
    check = ReferenceLogits.of(policy, group)
    packed = check.errors_of(f"packed{note}", packed_logits(policy, group))
    return [packed, check.errors_of(f"cached{note}", cached_logits(policy, group))]


@dataclass(frozen=True, eq=False)
class ReferenceLogits:
    """The exact logits of each response to a prompt, and the errors of transformers in the model's precision."""

    exact: list[Tensor]
    their_errors: list[Tensor]
    floor: float

    @classmethod
    def of(cls, policy: Policy, group: Sequences) -> "ReferenceLogits":
        rows, first = [[*group.prompt, *response[:-1]] for response in group.responses], len(group.prompt) - 1
        all_exact = plain_logits(policy.model, rows, _exact_dtype(policy))
        all_theirs = plain_logits(policy.model, rows)
        exact = [logits[first : len(row)] for logits, row in zip(all_exact, rows, strict=True)]
        pairs = zip(all_theirs, exact, rows, strict=True)
        theirs = [token_errors(logits[first : len(row)], logits_TV) for logits, logits_TV, row in pairs]
        size = float(torch.cat([logits.square().mean(dim=-1) for logits in exact]).mean().sqrt())
        return cls(exact, theirs, FLOORS[policy.head_VD.dtype] * size)

    def errors_of(self, path: str, found: Sequence[Tensor]) -> PathErrors:
        """Return the errors of the logits of some responses, or of their first tokens."""
        pairs = list(zip(found, self.exact, self.their_errors, strict=False))
        ours = torch.cat([token_errors(logits, exact[: len(logits)]) for logits, exact, _ in pairs])
        theirs = torch.cat([errors[: len(logits)] for logits, _, errors in pairs])
        return PathErrors(path, Errors.of(ours), Errors.of(theirs), self.floor, len(ours))


def _exact_dtype(policy: Policy) -> torch.dtype:
    return torch.float64 if policy.head_VD.dtype == torch.float32 else torch.float32


def token_errors(logits_TV: Tensor, exact_TV: Tensor) -> Tensor:
    """Return for each token the root mean square over the vocabulary of the difference, in float32."""
    rows = zip(torch.split(logits_TV, 32), torch.split(exact_TV, 32), strict=True)
    return torch.cat([(ours.to(exact.dtype) - exact).square().mean(dim=-1).sqrt().float() for ours, exact in rows])


def text_tokens(policy: Policy) -> Sequences:
    """Return the text as a prompt and two responses to it, cut short for a short context and for a large model."""
    tokens = policy.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    needed = PROMPT_LENGTH + sum(RESPONSE_LENGTHS)
    tokens = (tokens * (needed // max(len(tokens), 1) + 1))[:needed]
    longest = _longest_response(policy)
    responses, start = [], PROMPT_LENGTH
    for length in RESPONSE_LENGTHS:
        responses.append(tokens[start : start + min(length, longest)])
        start += length
    return Sequences(tokens[:PROMPT_LENGTH], responses)


def _longest_response(policy: Policy) -> int:
    num_weights = sum(weight.numel() for weight in policy.model.parameters())
    share = min(1.0, _MOST_WEIGHTS / num_weights) if policy.device.type == "cpu" else 1.0
    return max(1, min(max(8, int(share * max(RESPONSE_LENGTHS))), policy.context - PROMPT_LENGTH))


def shallow_policy(policy: Policy) -> tuple[Policy, Sequences]:
    """Return the model's first layers in float32, with the rows of the vocabulary that the text needs, and the text in
    its numbers."""
    group = text_tokens(policy)
    used = sorted({token for part in (group.prompt, *group.responses) for token in part})
    place = {token: index for index, token in enumerate(used)}
    renumbered = Sequences(
        [place[token] for token in group.prompt], [[place[token] for token in part] for part in group.responses]
    )
    return replace(policy, model=_shallow_model(policy.model, used)), renumbered


def _shallow_model(model: PreTrainedModel, tokens: list[int]) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    layers = min(SHALLOW_LAYERS, config.num_hidden_layers)
    changes = {"num_hidden_layers": layers, "vocab_size": len(tokens), "tie_word_embeddings": False}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = config.layer_types[:layers]
    config.update({**changes, "attention_dropout": 0.0, "pad_token_id": None})
    with torch.device("meta"):
        shallow: PreTrainedModel = type(model)(config)
    weights = {name: weight.float() for name, weight in model.base_model.state_dict().items() if _is_kept(name, layers)}
    shallow.base_model.load_state_dict(weights, strict=False, assign=True)
    shallow.get_input_embeddings().weight = Parameter(model.get_input_embeddings().weight[tokens].float())
    shallow.get_output_embeddings().weight = Parameter(model.get_output_embeddings().weight[tokens].float())
    # Its table of frequencies is no weight, and would stay without values.
    shallow.base_model.rotary_emb = model.base_model.rotary_emb
    shallow.set_attn_implementation(ATTENTION_NAME)
    return shallow


def _is_kept(name: str, layers: int) -> bool:
    part, _, rest = name.partition(".")
    return part == "norm" or (part == "layers" and int(rest.partition(".")[0]) < layers)


def packed_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    """Return the logits of every response, from one pack."""
    pack = pack_groups([group], policy.device)
    logits_MV = policy.logits(policy.hidden(pack)[pack.source_M])
    return list(torch.split(logits_MV, [len(response) for response in group.responses]))


def cached_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    """Return the logits of the first DECODED tokens of both responses, one token at a time with a cache."""
    responses = [response[:DECODED] for response in group.responses]
    num_tokens = min(map(len, responses))
    pack, slots = pack_groups([Sequences(group.prompt)], policy.device), policy.open_slots()
    hidden_ND = policy.hidden(pack, slots)
    slots.spread(pack.layout, [0, 0], max_new=num_tokens)
    rows = [hidden_ND[-1:].expand(2, -1)]
    for step in range(num_tokens - 1):
        token_R = torch.tensor([response[step] for response in responses], device=policy.device)
        rows.append(policy.next_hidden(token_R, slots))
    return [policy.logits(torch.stack([row[place] for row in rows])) for place in range(2)]
