"""A plan says what was measured, counts as the engine counts, and moves the right way."""

from dataclasses import asdict, replace

import pytest

from egpo.config import Config
from egpo.errors import InputError
from egpo.local.updates.micro_batches import bytes_per_token
from egpo.plans.shapes import CARDS, ModelShape, StepJob, read_shape
from egpo.plans.step_plan import longest_that_fits, plan_job, plan_recipe
from tests.local.conftest import CONFIGS, build_model

H200 = CARDS["h200"]
SMALL = ModelShape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True)  # 0.6B
LARGER = ModelShape(2048, 6144, 28, 16, 8, 128, 151_936, tied=True)  # 1.7B
LARGE = ModelShape(2560, 9728, 36, 32, 8, 128, 151_936, tied=True)  # 4B
JOB = StepJob(prompts=16, group=16, prompt_tokens=128, response_tokens=512, longest=512, at_once=256)


def job(prompts, group, length):
    return StepJob(prompts, group, 128, length, length, prompts * group)


# By benchmarks/one_gpu.py and benchmarks/scaling.py on an H200: GiB that torch allocated, less what TRL held beside it
# (six bytes a weight), and seconds of sample and update.
MEASURED = [
    (SMALL, job(16, 16, 512), 71.7 - 3.3, 1.94, 1.37),
    (LARGER, job(16, 16, 512), 90.2 - 9.6, 2.38, 2.88),
    (SMALL, job(8, 8, 256), 34.3, 0.50, 0.24),
    (SMALL, job(8, 64, 256), 69.0, 1.28, 1.41),
    (SMALL, job(8, 8, 1024), 61.2, 2.61, 0.75),
]
# By benchmarks/plan.py, on the same card: none of these was used to fit the plan.
UNSEEN = [
    (LARGE, job(8, 8, 384), 93.88, 3.35),
    (SMALL, replace(job(16, 16, 565), longest=1024), 90.33, 4.96),
    (SMALL, job(4, 16, 2048), 67.48, 8.65),
    (LARGER, replace(job(8, 16, 512), lora=True), 63.00, 3.18),
    (LARGER, replace(job(16, 8, 768), gradient_checkpointing=True), 54.00, 5.45),
    (SMALL, replace(job(32, 8, 256), reference=True), 69.18, 1.84),
    (LARGER, replace(job(16, 16, 256), at_once=64), 78.02, 3.90),
]


@pytest.mark.parametrize(
    ("shape", "job", "gib", "step_s"),
    [*((shape, job, gib, sample_s + update_s) for shape, job, gib, sample_s, update_s in MEASURED), *UNSEEN],
)
def test_it_says_what_was_measured(shape, job, gib, step_s):
    plan = plan_job(shape, job, H200)
    allocated = plan.memory.parts.total - plan.memory.parts.context
    assert allocated / 2**30 == pytest.approx(gib, rel=0.15)
    assert plan.time.step_s == pytest.approx(step_s, rel=0.30)


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_it_counts_as_the_engine_does(model_folder, shape):
    found, model = read_shape(str(model_folder(shape))), build_model(shape)
    vectors = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim < 2)
    assert found.weights == sum(parameter.numel() for parameter in model.parameters()) - vectors
    assert int(4 * found.kept_numbers()) == bytes_per_token(model)
    model.gradient_checkpointing_enable()
    assert int(4 * found.kept_numbers(gradient_checkpointing=True)) == bytes_per_token(model)


def test_more_of_anything_takes_no_less():
    base = plan_job(SMALL, JOB, H200)
    for more in (replace(JOB, longest=1024, response_tokens=1024), replace(JOB, group=32, at_once=512)):
        plan = plan_job(SMALL, more, H200)
        assert plan.memory.parts.total >= base.memory.parts.total
        assert plan.time.step_s > base.time.step_s
    assert plan_job(LARGER, JOB, H200).time.step_s > base.time.step_s


def test_adapters_checkpointing_and_waiting_rows_take_less():
    large = ModelShape(4096, 12288, 36, 32, 8, 128, 151_936, tied=False)  # 8B
    whole = plan_job(large, JOB, H200)
    adapters = plan_job(large, replace(JOB, lora=True), H200)
    assert (whole.fits, adapters.fits) == (False, True)
    assert adapters.memory.parts.optimizer == 0
    again = plan_job(LARGER, replace(JOB, gradient_checkpointing=True), CARDS["a100"])
    assert again.memory.parts.activations < plan_job(LARGER, JOB, CARDS["a100"]).memory.parts.activations
    long = plan_job(SMALL, replace(JOB, longest=16_384, response_tokens=16_384), CARDS["rtx4090"])
    assert long.memory.at_once < JOB.at_once


def test_the_longest_response_grows_with_the_card_and_shrinks_with_the_group():
    lengths = [longest_that_fits(SMALL, JOB, CARDS[card]) for card in ("rtx4090", "a100", "h200")]
    assert lengths == sorted(lengths)
    assert longest_that_fits(SMALL, replace(JOB, group=4, at_once=64), H200) >= lengths[-1]
    assert longest_that_fits(ModelShape(8192, 28_672, 80, 64, 8, 128, 151_936, tied=False), JOB, H200) == 0


def test_a_recipe_is_read_with_its_own_numbers(model_folder):
    config = Config.model_validate(
        {
            "model": {"path": str(model_folder("qwen3"))},
            "task": {"name": "countdown"},
            "rollout": {"prompts": 3, "n": 5, "max_response_tokens": 40},
        }
    )
    plan = plan_recipe(config, "a100", response_tokens=20)
    assert (plan.job.rows, plan.job.response_tokens, plan.job.longest) == (15, 20, 40)
    assert plan.shape.vocabulary == CONFIGS["qwen3"].vocab_size
    assert asdict(plan)["card"]["name"].startswith("A100")
    with pytest.raises(InputError, match="unknown GPU `tpu`"):
        plan_recipe(config, "tpu")


def test_a_model_whose_cost_is_not_known_is_refused(model_folder, tmp_path):
    with pytest.raises(InputError, match="cannot estimate the cost of `gpt2`"):
        read_shape(str(model_folder("gpt2")))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(InputError, match="has no `num_attention_heads`"):
        read_shape(str(tmp_path))
    with pytest.raises(InputError, match=r"config\.json is missing"):
        read_shape("no/such/model")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "is not a JSON object"),
        ("{", "cannot be read"),
        (
            '{"model_type": "qwen3", "num_attention_heads": "4"}',
            "`num_attention_heads` in the model's config.json is '4'",
        ),
        ('{"model_type": "qwen3", "num_attention_heads": 0}', "`num_attention_heads` in the model's config.json is 0"),
    ],
)
def test_a_config_that_is_none_is_named(tmp_path, text, fault):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError) as caught:
        read_shape(str(tmp_path))
    assert fault in str(caught.value)


def test_a_plan_is_of_a_gpu():
    config = Config.model_validate({"model": {"path": "egpo-tiny", "device": "cpu"}, "task": {"name": "countdown"}})
    with pytest.raises(InputError, match="the recipe trains on a CPU"):
        plan_recipe(config, "h200")
