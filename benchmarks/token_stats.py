"""Measure log-probability and entropy per token against naive logits: time forward and backward, and peak memory.

    python benchmarks/token_stats.py [--device cuda --dtype bfloat16 --tokens 8192]

Naive is the usual code: full logits, `log_softmax`, `gather`, and the entropy from the same tensor, as autograd keeps
it. The limit is three matrix products (one forward, two backward) at the rate that one such product reaches here.
Memory is what each needs on top of its inputs and their gradients, on a CPU in a separate process.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from egpo.token_stats import token_stats
from interleaved import time_interleaved


def naive(hidden, weight, targets, temperature):
    logp = ((hidden @ weight.t()).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


STATISTICS = {"ours": token_stats, "naive": naive}


def make_inputs(arguments):
    torch.manual_seed(0)
    place = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}
    hidden = torch.randn(arguments.tokens, arguments.hidden, **place).requires_grad_()
    weight = (torch.randn(arguments.vocabulary, arguments.hidden, **place) / arguments.hidden**0.5).requires_grad_()
    targets = torch.randint(arguments.vocabulary, (arguments.tokens,), device=arguments.device)
    return hidden, weight, targets


def forward_and_backward(statistics, inputs):
    hidden, weight, _ = inputs
    hidden.grad = weight.grad = None
    logp, _ = statistics(*inputs, 0.7)
    logp.sum().backward()


def gradient_bytes(inputs):
    return sum(tensor.numel() * tensor.element_size() for tensor in inputs[:2])


def peak_bytes(name, arguments):
    """Return the peak memory of one forward and backward pass in bytes, beyond the memory in use before it."""
    if arguments.device == "cuda":
        inputs = make_inputs(arguments)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_and_backward(STATISTICS[name], inputs)
        return torch.cuda.max_memory_allocated() - before - gradient_bytes(inputs)
    command = [sys.executable, __file__, "--measure", name, *sys.argv[1:]]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure_here(name, arguments):
    inputs = make_inputs(arguments)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts from what is resident now
    before = _status_kib("VmRSS")
    forward_and_backward(STATISTICS[name], inputs)
    print((_status_kib("VmHWM") - before) * 1024 - gradient_bytes(inputs))


def _status_kib(key):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(key))


def time_all(arguments):
    """Return the seconds of one matrix product, and the timings of both. The inputs are freed when it returns."""
    inputs = make_inputs(arguments)
    hidden, weight = (tensor.detach() for tensor in inputs[:2])
    product = time_interleaved({"product": lambda: hidden @ weight.t()}, 3, _settle(arguments))["product"]
    contenders = {name: (lambda f=f: forward_and_backward(f, inputs)) for name, f in STATISTICS.items()}
    return product.median_s, time_interleaved(contenders, arguments.rounds, _settle(arguments))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure_here(arguments.measure, arguments)
    product_s, timings = time_all(arguments)
    peaks = {name: peak_bytes(name, arguments) for name in STATISTICS}
    title = (
        f"{arguments.tokens} tokens, vocabulary {arguments.vocabulary}, hidden {arguments.hidden}, {arguments.dtype}"
    )
    table = Table(title=f"{title}, {arguments.device}", title_justify="left")
    for heading in ("", "ms", "times naive", "times the limit", "peak MiB", "of naive's"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{timing.median_s * 1e3:.1f}",
            str(timing.over(timings["naive"])),
            f"{timing.median_s / (3 * product_s):.2f}",
            f"{peaks[name] / 2**20:.0f}",
            f"1/{peaks['naive'] / peaks[name]:.1f}",
        )
    Console().print(table)
    return None


def _settle(arguments):
    return torch.cuda.synchronize if arguments.device == "cuda" else lambda: None


if __name__ == "__main__":
    main()
