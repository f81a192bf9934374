"""vLLM as the peer of a rollout: an engine for a job of benchmarks/_gpu_job.py, and rows that end at given lengths.

One request per row, in the job's order: the rows of a group have the same prompt, which vLLM computes and stores once
(prefix caching, its default). Each request has its own `max_tokens`, and ignores the end token.
"""

import importlib.metadata
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from packaging.requirements import Requirement

import _gpu_job as jobs

SAMPLING: dict[str, object] = {"ignore_eos": True, "detokenize": False}
"""Options of vLLM's requests that differ from its defaults, here and in TRL with vLLM. Without text, its rollouts are
faster."""


def is_installed() -> bool:
    return find_spec("vllm") is not None


def open_engine(
    job: jobs.Job, folder: Path, memory_share: float, **options: object
) -> tuple[object, dict[str, object]]:
    """Return vLLM's engine in this process, all rows at once, and its arguments."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    arguments = {
        "model": str(folder),
        "gpu_memory_utilization": memory_share,
        "max_num_seqs": job.rows,
        "max_model_len": job.config().max_position_embeddings,
        **options,
    }
    return LLM(**arguments), {name: value for name, value in arguments.items() if name != "model"}


def settings_by_row(base: object, lengths: Sequence[int]) -> list[object]:
    """Return a copy of vLLM's SamplingParams for each row, with the row's length."""
    settings = []
    for length in lengths:
        copy = base.clone()
        copy.max_tokens = length
        settings.append(copy)
    return settings


class Rollout:
    """vLLM's rollout of a job. `logprobs` is vLLM's option: 0 is the log-probability of each sampled token."""

    def __init__(self, engine: object, job: jobs.Job, logprobs: int | None) -> None:
        from vllm import SamplingParams

        self._engine, self._job = engine, job
        self._base = SamplingParams(temperature=1.0, logprobs=logprobs, **SAMPLING)
        tokenizer = job.make_tokenizer()
        texts = [text for text in job.texts() for _ in range(job.group)]
        self._prompts = [{"prompt_token_ids": tokenizer(text)["input_ids"]} for text in texts]

    def run(self, lengths: Sequence[int]) -> dict[str, float]:
        """Sample rows of these lengths. The cache of prompts is emptied first."""
        assert self._engine.reset_prefix_cache()
        settings = settings_by_row(self._base, lengths)
        start = time.perf_counter()
        outputs = self._engine.generate(self._prompts, settings, use_tqdm=False)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rows = [output.outputs[0] for output in outputs]
        assert [len(row.token_ids) for row in rows] == list(lengths)
        assert self._base.logprobs is None or all(len(row.logprobs) == len(row.token_ids) for row in rows)
        return {"rollout": seconds, "tokens": float(sum(lengths))}


def differences(package: str) -> list[str]:
    """Return how the installation of a package differs from the requirements in its metadata: packages that are
    missing, and those of other versions."""
    found = []
    try:
        required = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return [f"{package} without metadata"]
    for line in required:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(f"without {requirement.name}")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement.name} {version} (required: {requirement.specifier})")
    return sorted(found)


def missing_parts() -> list[str]:
    """Return the compiled parts of vLLM's wheel that this installation lacks."""
    if not is_installed():
        return ["vLLM in another environment"]
    (root,) = find_spec("vllm").submodule_search_locations
    parts = {
        "FlashAttention 2": "vllm_flash_attn/_vllm_fa2_C*",
        "FlashAttention 3": "vllm_flash_attn/_vllm_fa3_C*",
        "kernels for mixtures of experts": "_moe_C*",
        "FlashMLA": "_flashmla*",
        "deep_gemm": "third_party/deep_gemm",
    }
    return [f"without {name}" for name, pattern in parts.items() if not list(Path(root).glob(pattern))]
