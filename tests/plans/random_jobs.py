"""Shapes, jobs and recipes of the tests of plans for many GPUs."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st

from egpo.config import Config
from egpo.plans.shapes import CARDS, ModelShape, StepJob

H200 = CARDS["h200"]
SMALL = ModelShape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True)  # 0.6B
MIDDLE = ModelShape(4096, 12288, 36, 32, 8, 128, 151_936, tied=False)  # 8B
LARGE = ModelShape(5120, 25600, 64, 64, 8, 128, 151_936, tied=False)  # 32B
JOB = StepJob(prompts=64, group=16, prompt_tokens=512, response_tokens=1024, longest=2048, at_once=1024)
COUNTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]

shapes = st.sampled_from([SMALL, MIDDLE, LARGE])
jobs = st.builds(
    lambda prompts, group, prompt, response, more, checkpointing, reference, lora: StepJob(
        prompts,
        group,
        prompt,
        response,
        response + more,
        prompts * group,
        gradient_checkpointing=checkpointing,
        reference=reference,
        lora=lora,
    ),
    st.sampled_from([1, 8, 64, 256, 1024]),
    st.sampled_from([4, 8, 16, 64]),
    st.integers(1, 2048),
    st.integers(1, 4096),
    st.integers(0, 4096),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
cards = st.sampled_from(list(CARDS.values()))
micros = st.none() | st.sampled_from([8_192, 16_384])
loose = settings(max_examples=60, deadline=None)


def adapted(shape: ModelShape, job: StepJob, rank: int, *, merged: bool = False) -> StepJob:
    """Return the job with adapters of this rank beside every projection."""
    made = {"adapter_weights": shape.adapter_weights(rank), "adapter_tensors": shape.adapter_tensors()}
    return replace(job, lora=True, lora_merged=merged, **made)


def recipe(model_folder, lora=None, kl=0.0, **verl):
    return Config.model_validate(
        {
            "model": {"path": str(model_folder("qwen3")), "lora": lora},
            "task": {"name": "countdown"},
            "engine": "verl",
            "rollout": {"prompts": 16, "n": 8, "max_response_tokens": 40},
            "update": {"kl": kl},
            "verl": verl,
        }
    )
