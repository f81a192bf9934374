"""How far the engine's logits and transformers' own are from exact ones, what faults the self-check would catch, and
what it costs:

    python benchmarks/self_check.py --model smollm2-135m --device cuda --dtype bfloat16
    python benchmarks/self_check.py --model qwen2.5 --model qwen3 --model llama3

The second form checks small models of these shapes with the outliers of trained ones (outlier_models.py in the tests).
For every path: both error distributions over the tokens of the fixed text, and the ratio that must not exceed 1. For
every fault: the same ratio, which must exceed 1 (its margin). How large the outliers of the residual stream are. Cost
in seconds and in memory beyond the model's own; with `--fresh load`, `digest` or `check` only the cost of this part, in
a process that has done nothing else.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from egpo.config.schema import Model
from egpo.local.models import loading, self_check
from egpo.local.models.verdicts import verdict_key
from tests.local.conftest import build_tokenizer
from tests.local.models.mutations import CACHE_SEES, MUTATIONS, mutations_of
from tests.local.models.outlier_models import FAMILIES, build_outlier_model, outlier_figures

QUANTILES = (0.5, 0.9, 0.99, 1.0)
PARTS = ("load", "digest", "check")


def main() -> None:
    words = argparse.ArgumentParser(description="Measure the self-check of a model.")
    words.add_argument(
        "--model",
        action="append",
        help=f"Folder, GGUF file, short name, name on the hub, or one of {', '.join(FAMILIES)}. May be repeated.",
    )
    words.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    words.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    words.add_argument(
        "--fresh", choices=PARTS, help="Measure only the cost of this part: run it in a new process each."
    )
    given = words.parse_args()
    if given.fresh:
        show_fresh_cost(given)
        return
    for name in given.model or ["smollm2-135m"]:
        with tempfile.TemporaryDirectory() as scratch:
            show(name, _written(name, scratch), given)


def show(name: str, path: str, given: argparse.Namespace) -> None:
    policy, load_s = load(path, given)
    print(f"\n== {name} on {policy.device}, {policy.head_VD.dtype}, path {policy.path}, torch {torch.__version__}")
    show_cost(policy, load_s)
    with torch.no_grad():
        group = self_check.text_tokens(policy)
        show_outliers(policy, group)
        checks = [Checked("", policy, group)]
        if policy.path != "transformers" and policy.head_VD.dtype != torch.float32:
            checks.append(Checked(", first layers in float32", *self_check.shallow_policy(policy)))
        for check in checks:
            check.show_distributions()
        show_margins(checks)


def _written(name: str, folder: str) -> str:
    """Return the path of a model; one with outliers by construction is written to the folder first."""
    if name not in FAMILIES:
        return name
    build_outlier_model(name, build_tokenizer()).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def load(path: str, given: argparse.Namespace) -> tuple[loading.Policy, float]:
    """Load the model without its check, which is measured afterwards."""
    loading.require_agreement = lambda policy, where: None
    settings = Model(path=path, device=given.device, dtype=given.dtype)
    loading.load_policy(settings)  # the first one fetches, converts and fills the file cache
    start = time.perf_counter()
    policy = loading.load_policy(settings)
    return policy, time.perf_counter() - start


def show_outliers(policy: loading.Policy, group: self_check.Sequences) -> None:
    found = outlier_figures(policy.model, [*group.prompt, *group.responses[0]])
    print(
        f"residual stream, largest channel over the median one: {found.usual_ratio:.0f} usually (kurtosis "
        f"{found.usual_kurtosis:.0f}), {found.peak_ratio:.0f} at its peak of {found.peak_size:,.0f} (kurtosis "
        f"{found.peak_kurtosis:.0f})"
    )


def show_fresh_cost(given: argparse.Namespace) -> None:
    """Load the model in this process, with nothing, the digest or the whole check after it."""
    torch.set_num_threads(1)
    work = {"load": lambda policy: None, "digest": verdict_key, "check": self_check.measure_paths}[given.fresh]
    loading.require_agreement = lambda policy, where: None
    (name,) = given.model or ["smollm2-135m"]
    loaded = []
    settings = Model(path=name, device=given.device, dtype=given.dtype)
    load_s = timed(lambda: loaded.append(loading.load_policy(settings)))
    with torch.no_grad():
        work_s = timed(lambda: work(loaded[0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"loading {load_s}; {given.fresh} {work_s}; peak of the process {peak:,.0f} MiB")


@torch.no_grad()
def show_cost(policy: loading.Policy, load_s: float) -> None:
    """Twice: the first check also compiles kernels, where the device needs them compiled."""
    weights = sum(weight.numel() * weight.element_size() for weight in policy.model.parameters())
    on_gpu = policy.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    digest = timed(lambda: verdict_key(policy))
    first, again = (timed(lambda: self_check.measure_paths(policy)) for _ in range(2))
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"loading {load_s:.2f} s, {torch.get_num_threads()} threads; digest of the weights {digest}; the check "
        f"{first}, again {again} (allowed {max(5.0, 0.05 * load_s):.1f} s)\n"
        f"weights {weights / 2**20:,.0f} MiB; peak beyond them {(peak - weights) / 2**20:,.0f} MiB"
        + ("" if on_gpu else " (of the whole process, libraries included)")
    )


def timed(compute: Callable[[], object]) -> str:
    """Return seconds by the clock, and of the processor, which tell more where other work shares the cores."""
    start, processor = time.perf_counter(), time.process_time()
    compute()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return f"{time.perf_counter() - start:.2f} s ({time.process_time() - processor:.2f} s of processor time)"


class Checked:
    """A policy with the exact logits of its text."""

    def __init__(self, note: str, policy: loading.Policy, group: self_check.Sequences) -> None:
        self.note, self.policy, self.group = note, policy, group
        self.reference = self_check.ReferenceLogits.of(policy, group)

    def found(self) -> dict[str, list[torch.Tensor]]:
        return {
            f"packed{self.note}": self_check.packed_logits(self.policy, self.group),
            f"cached{self.note}": self_check.cached_logits(self.policy, self.group),
        }

    def ratios(self) -> dict[str, float]:
        return {path: self.reference.errors_of(path, logits).ratio for path, logits in self.found().items()}

    def show_distributions(self) -> None:
        for path, logits in self.found().items():
            pairs = list(zip(logits, self.reference.exact, self.reference.their_errors, strict=False))
            ours = torch.cat([self_check.token_errors(found, exact[: len(found)]) for found, exact, _ in pairs])
            theirs = torch.cat([errors[: len(found)] for found, _, errors in pairs])
            ratio = self.reference.errors_of(path, logits).ratio
            print(f"\n{path}: {len(ours)} tokens; ratio {ratio:.3f}, floor {self.reference.floor:.2g}")
            for name, errors in (("engine", ours), ("transformers", theirs)):
                spots = ", ".join(f"{share:.0%} {float(torch.quantile(errors, share)):.3g}" for share in QUANTILES)
                print(f"  {name:<13} mean {float(errors.mean()):.3g}, {spots}")


def show_margins(checks: list[Checked]) -> None:
    print("\nfaults put into the engine's pass: ratio (caught above 1)")
    largest = {}
    for name in mutations_of(checks[0].policy):
        ratios: dict[str, float] = {}
        for check in checks:
            with MUTATIONS[name](check.policy):
                ratios |= check.ratios()
        shown = {path: ratio for path, ratio in ratios.items() if name in CACHE_SEES or "cached" not in path}
        paths = [kind for kind in ("packed", "cached") if any(path.startswith(kind) for path in shown)]
        largest[name] = min(max(ratio for path, ratio in shown.items() if path.startswith(kind)) for kind in paths)
        print(f"  {name:<30} " + ", ".join(f"{path} {ratio:.2f}" for path, ratio in shown.items()))
    least = min(largest, key=lambda name: largest[name])
    print(f"smallest margin: {largest[least]:.2f} ({least})")


if __name__ == "__main__":
    main()
