"""Lower limits of the time of a step in benchmarks/embedded_cpu.py: the matrix products that no engine can avoid.

Three limits, from the loosest to the strictest:
- the products with the weights, as torch computes them;
- the same, plus attention's own products (scores and values forward, their four gradients backward) at the same rate;
- all of these operations at the highest rate that any large product reaches in the same run, torch's or the engine's.
"""

import time

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedConfig

from _embedded_job import Job
from egpo.local.run import Run
from egpo.native.library import address, kernels

MICRO_TOKENS = 2048  # tokens per pass, as in the engine on a CPU
Seconds = dict[str, float]


class Products:
    """All products with a weight matrix that a step needs.

    Sampling: every prompt once, then one token of every response at a time. Update: forward, gradient of the input and
    gradient of the weight over all tokens, every prompt once. The output head counts only at positions that predict a
    token of a response.
    """

    def __init__(self, run: Run, job: Job) -> None:
        model, self._job = run.policy.model, job
        self._head = model.get_output_embeddings().weight.detach()
        layers = (layer.weight.detach() for layer in model.base_model.modules() if isinstance(layer, torch.nn.Linear))
        self._weights = list(layers)
        responses = job.rows * (job.new_tokens - 1)
        self._num_tokens, self._num_predicted = job.prompts * job.prompt_tokens + responses, job.prompts + responses
        sizes = {size for weight in (*self._weights, self._head) for size in weight.shape}
        self._inputs = {size: torch.randn(MICRO_TOKENS, size) for size in sizes}
        products = self._num_tokens * sum(map(torch.numel, self._weights)) + self._num_predicted * self._head.numel()
        self.operations = _operations(2 * products)
        self.attention_operations = _operations(_attention(model.config, job))
        self.rates: list[float] = []

    def run(self) -> Seconds:
        self.rates.append(_highest_rate())
        job, start = self._job, time.perf_counter()
        self._forward(job.prompts * job.prompt_tokens, job.prompts)
        for _ in range(job.new_tokens - 1):
            self._forward(job.rows, job.rows)
        middle = time.perf_counter()
        for weights, num_tokens in ((self._weights, self._num_tokens), ([self._head], self._num_predicted)):
            for first in range(0, num_tokens, MICRO_TOKENS):
                for weight in weights:
                    self._forward_and_backward(weight, min(MICRO_TOKENS, num_tokens - first))
        end = time.perf_counter()
        return {"step": end - start, "sample": middle - start, "update": end - middle}

    def with_attention(self, rounds: list[Seconds]) -> list[Seconds]:
        """Return the seconds of `run` plus those of attention, computed at the speed of the products of that stage."""
        shares = {stage: 1 + self.attention_operations[stage] / self.operations[stage] for stage in self.operations}
        stages = [{stage: seconds[stage] * share for stage, share in shares.items()} for seconds in rounds]
        return [{**seconds, "step": sum(seconds.values())} for seconds in stages]

    def at_the_highest_rate(self) -> Seconds:
        rate = max(self.rates)
        stages = {name: (self.operations[name] + self.attention_operations[name]) / rate for name in self.operations}
        return {**stages, "step": sum(stages.values())}

    def _forward(self, num_rows: int, num_predicted: int) -> None:
        for weight in self._weights:
            linear(self._inputs[weight.shape[1]][:num_rows], weight)
        linear(self._inputs[self._head.shape[1]][:num_predicted], self._head)

    def _forward_and_backward(self, weight: Tensor, num_tokens: int) -> None:
        num_out, num_in = weight.shape
        tokens, gradient = self._inputs[num_in][:num_tokens], self._inputs[num_out][:num_tokens]
        linear(tokens, weight)
        torch.mm(gradient, weight)
        torch.mm(gradient.t(), tokens)


def _operations(forward: int) -> dict[str, int]:
    """Count operations: backward has two products for each forward product. Recomputation is not counted."""
    return {"sample": forward, "update": 3 * forward}


def _attention(config: PreTrainedConfig, job: Job) -> int:
    """Count attention's operations: for every pair of a token and a token it sees, a score and a weighted value."""
    own = job.new_tokens - 1
    pairs = job.rows * (own * job.prompt_tokens + own * (own + 1) // 2)
    pairs += job.prompts * job.prompt_tokens * (job.prompt_tokens + 1) // 2
    return 4 * pairs * config.num_hidden_layers * config.num_attention_heads * config.head_dim


def _highest_rate() -> float:
    """Measure the operations per second of the fastest large product on torch's cores. Takes some milliseconds."""
    num_tokens, num_in, num_out = MICRO_TOKENS, 192, 256
    x, weight, out = torch.randn(num_tokens, num_in), torch.randn(num_out, num_in), torch.empty(num_tokens, num_out)
    products = [lambda: torch.mm(x, weight.t(), out=out)]
    library = kernels()
    if library is not None:
        packed = torch.empty(library.packed_size(num_out, num_in))
        library.pack(address(weight), num_out, num_in, address(packed))
        sizes = num_tokens, num_in, num_out
        products.append(lambda: library.multiply(address(x), address(packed), None, address(out), *sizes))
    return max(2 * num_tokens * num_in * num_out / min(map(_seconds, [product] * 10)) for product in products)


def _seconds(product) -> float:
    start = time.perf_counter()
    for _ in range(5):
        product()
    return (time.perf_counter() - start) / 5
