"""Measure how the cost of a step grows with samples, length, model size and vocabulary.

    python benchmarks/scaling.py [--device cuda] [--rounds 2] [--trl] [--only samples length model vocabulary]

On a GPU the base job is the 0.6B shape of benchmarks/one_gpu.py with 8 prompts of 128 tokens, 8 responses of 256 tokens
to each; on two CPU cores, that of benchmarks/embedded_cpu.py. Every row changes one property. With `--trl`, steps of
TRL alternate with ours. `beyond` is the peak memory of a step over what is held between steps: weights and optimizer,
on a GPU also the cache.
"""

import argparse

import torch
from rich.console import Console

from _scaling_cost import show

SWEEPS = ("samples", "length", "model", "vocabulary")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trl", action="store_true", help="also measure TRL, if it is installed")
    parser.add_argument("--only", nargs="*", choices=SWEEPS, default=list(SWEEPS))
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        import _scaling_gpu as scaling
    else:
        import _scaling_cpu as scaling
    scaling.prepare()
    if arguments.trl and not scaling.trl.is_installed():
        parser.error("TRL is not here: make .env-trl/.ready, or on a GPU pip install trl")
    for sweep in arguments.only:
        jobs = scaling.SWEEPS[sweep].items()
        costs = [scaling.cost(label, job, arguments.rounds, arguments.trl) for label, job in jobs]
        show(sweep, costs, Console(width=130))


if __name__ == "__main__":
    main()
