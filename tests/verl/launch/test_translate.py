"""Our recipe in verl's words. The schema that it is held against is verl's own."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.advantages import ESTIMATORS
from egpo.config.sections.algorithm import Algorithm
from egpo.errors import ConfigError
from egpo.runs.folder import RunFolder
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import planned_files
from egpo.verl.launch.refusals import OURS_ALONE, refuse_what_verl_lacks
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.translation import LOSS_MODE, tensor_parallel, translate
from egpo.verl.settings import read_settings
from tests.verl.launch.recipes import small

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def translated(*overrides, start=0):
    config = small(*overrides)
    places = VerlPlaces(RunFolder(Path(config.runs) / config.name))
    settings = translate(config, places, planned_files(config, places), start)
    return {setting.key: setting.value for setting in settings}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_every_key_that_is_set_is_one_that_verl_reads(device, estimator, kl_in):
    keys = translated(
        f"verl.device={device}",
        f"algorithm.estimator={estimator}",
        f"update.kl_in={kl_in}",
        "update.kl=0.1",
        "model.lora.rank=4",
        "model.dtype=float32",
        "update.aggregation=fixed_length",
        "algorithm.constant_groups=replace",
        "rollout.rows_at_once=8",
        start=2,
    )
    assert [key for key in keys if not schema().knows(key) and not key.startswith("hydra.")] == []


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_plug_in_reads_the_estimator_settings_that_the_recipe_made(estimator):
    """Through the plug-in's own reader: the two sides agree on names and on values."""
    chosen = [f"algorithm.estimator={estimator}", "algorithm.normalize=false", 'segments.tags=["<a>", "</a>"]']
    if estimator == "egpo":
        chosen += ["algorithm.egpo.lam=0.7", "algorithm.egpo.entropy_mode=response"]
    keys = translated(*chosen)
    section: dict = {"egpo": {}}
    for key, value in keys.items():
        if key.startswith("algorithm.egpo."):
            section["egpo"][key.removeprefix("algorithm.egpo.")] = value
        elif key.startswith("algorithm.") and key.count(".") == 1:
            section[key.removeprefix("algorithm.")] = value
    read = read_settings(section)
    algorithm: Algorithm = small(*chosen).algorithm
    assert (read.estimator, read.arguments) == (estimator, algorithm.settings)
    assert (read.segment, read.tags) == (algorithm.segment, ("<a>", "</a>"))


def test_what_ours_means_is_what_theirs_does():
    keys = translated(
        "update.clip=0.1",
        "update.clip_high=0.28",
        "update.aggregation=sequence_mean",
        "update.epochs=2",
        "update.mini_batch=2",
        "rollout.top_k=0",
        "checkpoints.every=0",
        "validation.every=0",
        "seed=7",
    )
    assert (keys[f"{ACTOR}.clip_ratio_low"], keys[f"{ACTOR}.clip_ratio_high"]) == (0.1, 0.28)
    assert keys[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-mean"
    assert (keys[f"{ACTOR}.ppo_epochs"], keys[f"{ACTOR}.ppo_mini_batch_size"]) == (2, 2)
    assert keys[f"{ROLLOUT}.top_k"] == -1, "verl's word for all tokens"
    assert keys["trainer.save_freq"] == 3, "never but at the end, which verl does not know"
    assert (keys["trainer.test_freq"], keys["trainer.val_before_train"]) == (-1, False)
    assert keys["data.val_files"] == keys["data.train_files"], "verl wants a file even where it validates nothing"
    assert {keys["data.seed"], keys[f"{ROLLOUT}.seed"], keys[f"{ACTOR}.data_loader_seed"]} == {7}


def test_a_dual_clip_that_is_not_asked_for_never_binds():
    """verl's default of 3 would change the loss in silence."""
    assert translated()[f"{ACTOR}.clip_ratio_c"] > 4.9e8
    assert translated("update.dual_clip=5.0")[f"{ACTOR}.clip_ratio_c"] == 5.0


@pytest.mark.parametrize(
    ("kl_in", "ours"), [("loss", f"{ACTOR}.use_kl_loss"), ("reward", "algorithm.use_kl_in_reward")]
)
def test_kl_goes_where_the_recipe_says(kl_in, ours):
    keys = translated("update.kl=0.05", f"update.kl_in={kl_in}", "update.kl_estimator=k1")
    switches = {key: keys[key] for key in (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")}
    assert [key for key, on in switches.items() if on] == [ours]
    assert not any(translated()[key] for key in switches)


def with_values(config, **sections):
    """The recipe with these values, whether or not its sections have such keys yet."""
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


def translated_with(config, episodes=False):
    places = VerlPlaces(RunFolder(Path(config.runs) / config.name))
    files = replace(planned_files(config, places), episodes=episodes)
    return {setting.key: setting.value for setting in translate(config, places, files)}


@pytest.mark.parametrize(("loss", "mode"), [("clipped", "vanilla"), ("gspo", "gspo"), ("cispo", "cispo")])
def test_a_loss_form_that_verl_has_is_selected_by_verls_name(loss, mode):
    assert translated(f"update.loss={loss}")[LOSS_MODE] == mode


def test_settings_of_a_loss_form_go_to_verls_keys():
    keys = translated("update.loss=clip_cov", "update.clip_cov.ratio=0.01", "update.clip_cov.upper=9.0")
    held = [
        keys[f"{ACTOR}.policy_loss.{name}"] for name in ("loss_mode", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    ]
    assert held == ["clip_cov", 0.01, 1.0, 9.0]
    keys = translated("update.loss=kl_cov", "update.kl_cov.weight=0.5")
    held = [keys[f"{ACTOR}.policy_loss.{name}"] for name in ("loss_mode", "kl_cov_ratio", "ppo_kl_coef")]
    assert held == ["kl_cov", 0.002, 0.5]
    with pytest.raises(ConfigError, match="verl's `kl_cov` needs a ratio above 0"):
        refuse_what_verl_lacks(small("update.loss=kl_cov", "update.kl_cov.ratio=0.0"))


def test_a_loss_form_from_outside_goes_to_the_plug_in_unless_it_chooses_tokens():
    loss = "tests.verl.test_losses:weighted"
    mode = translated(f"update.loss={loss}", "update.loss_settings.weight=2.0")[LOSS_MODE]
    assert mode == loss + '?{"weight": 2.0}'
    refuse_what_verl_lacks(small(f"update.loss={loss}"))
    with pytest.raises(ConfigError, match=r"^update\.loss: .*chooses among the tokens of a mini-batch"):
        refuse_what_verl_lacks(small("update.loss=tests.verl.test_losses:choosing"))


def test_terms_beside_the_loss_are_verls_own():
    plain = translated_with(small())
    assert f"{ACTOR}.entropy_coeff" not in plain
    assert "algorithm.rollout_correction.rollout_is" not in plain
    keys = translated_with(with_values(small(), update={"entropy_weight": 0.01, "importance_cap": 2.0}))
    assert keys[f"{ACTOR}.entropy_coeff"] == 0.01
    assert keys["algorithm.rollout_correction.rollout_is"] == "token"
    assert keys["algorithm.rollout_correction.rollout_is_threshold"] == 2.0
    assert all(schema().knows(key) for key in keys if not key.startswith("hydra."))


def test_an_overlong_penalty_is_verls_for_responses_and_the_agent_loops_for_episodes():
    overlong = SimpleNamespace(tokens=16, penalty=0.5)
    config = with_values(small(), algorithm={"overlong": overlong})
    keys = translated_with(config)
    buffer = "reward.reward_kwargs.overlong_buffer_cfg"
    assert keys["reward.reward_manager.name"] == "dapo"
    assert [keys[f"{buffer}.{name}"] for name in ("enable", "len", "penalty_factor")] == [True, 16, 0.5]
    assert keys["reward.reward_kwargs.max_resp_len"] == 64
    assert all(schema().knows(key) for key in keys if not key.startswith("hydra."))
    keys = translated_with(config, episodes=True)
    assert "reward.reward_manager.name" not in keys
    read = read_settings({"adv_estimator": "grpo", "egpo": {"overlong": {"tokens": 16, "penalty": 0.5}}}).overlong
    assert (keys["algorithm.egpo.overlong.tokens"], keys["algorithm.egpo.overlong.penalty"]) == (16, 0.5)
    assert [read.of(length, 64) for length in (10, 48, 56, 64, 70)] == [0.0, 0.0, 0.25, 0.5, 0.5]


def test_random_rewards_are_drawn_by_the_plug_in_and_filters_are_metrics_of_verls():
    keys = translated_with(with_values(small(), algorithm={"random_rewards": 0.5}))
    assert keys["algorithm.egpo.random_rewards"] == 0.5
    replaced = small("algorithm.constant_groups=replace")
    assert translated_with(replaced)["algorithm.filter_groups.metric"] == "reward"
    keys = translated_with(with_values(replaced, algorithm={"filter": "all_or_none"}))
    assert keys["algorithm.filter_groups.metric"] == "acc"
    with pytest.raises(ConfigError, match=r"algorithm\.filter: verl filters groups by a metric, and cannot call `a:b`"):
        refuse_what_verl_lacks(with_values(replaced, algorithm={"filter": "a:b"}))
    with pytest.raises(ConfigError, match=r"algorithm\.random_rewards: verl replaces groups by their real rewards"):
        refuse_what_verl_lacks(with_values(replaced, algorithm={"random_rewards": 0.5}))


def test_a_controller_goes_to_the_plug_in():
    keys = translated("update.controller=adaptive_entropy", "update.adaptive_entropy.target=0.3")
    assert keys["algorithm.egpo.controller.name"] == "adaptive_entropy"
    assert keys["algorithm.egpo.controller.settings.target"] == 0.3
    refuse_what_verl_lacks(small("update.controller=adaptive_entropy"))


def test_what_the_recipe_says_in_verls_words_wins():
    keys = translated(f"verl.{ACTOR}.optim.lr=0.5", "update.lr=1e-6", "verl.trainer.val_before_train=false")
    assert (keys[f"{ACTOR}.optim.lr"], keys["trainer.val_before_train"]) == (0.5, False)


def test_a_resumed_run_goes_on_from_its_checkpoint_and_is_not_validated_again():
    keys = translated(start=2)
    assert keys["trainer.resume_mode"] == "resume_path"
    assert keys["trainer.resume_from_path"].endswith("/checkpoints/global_step_2")
    assert keys["trainer.val_before_train"] is False
    assert translated()["trainer.resume_mode"] == "disable"


def test_no_micro_batch_is_shorter_than_the_longest_sequence():
    keys = translated("update.micro_tokens=100", "rollout.max_prompt_tokens=200")
    assert keys[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 264


def test_a_cluster_that_is_joined_is_not_told_of_its_own_machines():
    """Ray refuses num_cpus and num_gpus when it connects."""
    joined = translated("verl.address=head:6379")
    assert joined["ray_kwargs.ray_init.address"] == "head:6379"
    assert [key for key in joined if key.startswith("ray_kwargs.ray_init.num_")] == []
    assert translated()["ray_kwargs.ray_init.address"] == "local", "or Ray joins whatever runs on this machine"


@pytest.mark.parametrize(
    ("model", "gpus", "parallel"),
    [("Qwen/Qwen3-4B", 8, 1), ("Qwen/Qwen3-32B", 8, 4), ("meta-llama/Llama-3.3-70B-Instruct", 8, 8),
     ("meta-llama/Llama-3.3-70B-Instruct", 2, 2), ("Qwen/Qwen2.5-14B", 6, 2), ("no-size", 8, 1)],
)  # fmt: skip
def test_the_split_of_the_model_follows_from_its_size(model, gpus, parallel):
    config = small(f"model.path={model}", f"verl.gpus={gpus}")
    assert tensor_parallel(config) == parallel
    assert tensor_parallel(small(f"model.path={model}", "verl.gpus=4", "verl.tensor_parallel=2")) == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.min_p=0.1", "rollout.min_p: verl's sampling has no min_p"),
        ('rollout.stop=["x"]', "rollout.stop: verl's sampling has no stop strings"),
        ("rollout.stop_tokens=[3]", "generation_config.json"),
        ("update.schedule=linear", "update.schedule: verl has only the schedules `constant` and `cosine`"),
        ("algorithm.constant_groups=drop", "algorithm.constant_groups: verl's loss averages over every group"),
        ("model.init=random", "model.init: verl trains pretrained weights only"),
        ("model.deterministic=true", "model.deterministic: verl is not deterministic"),
        ("update.mini_batch=3", "4 problems cannot be divided into mini-batches of 3; choose one of 1, 2, 4"),
        ("verl.gpus=5", "16 responses per update cannot be divided among 5 ranks"),
        (
            "verl.tensor_parallel=2",
            "2 GPUs are needed for one copy of vLLM (2 tensor-parallel ranks), and 1 can be used",
        ),
        (
            "verl.actor_rollout_ref.rollout.tensor_model_parallel_size=8",
            "verl.actor_rollout_ref.rollout.tensor_model_parallel_size: 8 GPUs are needed for one copy of vLLM",
        ),
        (
            "verl.actor_rollout_ref.rollout.data_parallel_size=2",
            "verl.actor_rollout_ref.rollout.data_parallel_size: 2 GPUs are needed for one copy of vLLM (1 "
            "tensor-parallel ranks x 2 (data_parallel_size)), and 1 can be used (verl.gpus x verl.nodes); lower "
            "the product of these sizes to at most 1",
        ),
        (
            "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.tensor_parallel_size=2",
            "the launcher sets `actor_rollout_ref.rollout.engine_kwargs.vllm.tensor_parallel_size` itself; set "
            "verl.tensor_parallel",
        ),
        (
            "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.data-parallel-size=2",
            "itself; set verl.actor_rollout_ref.rollout.data_parallel_size",
        ),
        (
            'verl.actor_rollout_ref.rollout.engine_kwargs.vllm.middleware=["x", "--trust-remote-code"]',
            "engine_kwargs.vllm.middleware: a value begins with dashes, and vLLM would read it as another option",
        ),
        ("verl.trainer.max_checkpoint_limit=3", "would ignore it; write `trainer.max_actor_ckpt_to_keep`"),
        ("verl.trainer.total_training_step=3", "did you mean `trainer.total_training_steps`?"),
        ("verl.trainer.n_gpus_per_node=8", "the launcher sets `trainer.n_gpus_per_node` itself; set verl.gpus"),
        ("verl.trainer.logger=[wandb]", "the launcher sets `trainer.logger` itself; set watch.trackers"),
        ("verl.actor_rollout_ref.actor.lr=3", "did you mean `actor_rollout_ref.actor.optim.lr`?"),
    ],
)
def test_what_verl_cannot_do_is_refused_by_name(override, said):
    with pytest.raises(ConfigError) as caught:
        refuse_what_verl_lacks(small(override))
    assert said in str(caught.value)


def test_a_copy_of_vllm_divides_the_gpus():
    with pytest.raises(ConfigError, match=r"4 GPUs cannot be divided into groups of 3, for one copy"):
        refuse_what_verl_lacks(small("verl.gpus=4", "verl.tensor_parallel=3"))
    refuse_what_verl_lacks(small("verl.gpus=4", "verl.tensor_parallel=2"))
    raw = "verl.actor_rollout_ref.rollout"
    refuse_what_verl_lacks(small("verl.gpus=4", f"{raw}.tensor_model_parallel_size=2", f"{raw}.data_parallel_size=2"))
    said = r"6 GPUs cannot be divided into groups of 4, for one copy of vLLM \(2 tensor-parallel ranks x 2 \(data_para"
    with pytest.raises(ConfigError, match=said):
        refuse_what_verl_lacks(small("verl.gpus=6", "verl.tensor_parallel=2", f"{raw}.data_parallel_size=2"))


@pytest.mark.parametrize("key", ["tensor_model_parallel_size", "data_parallel_size"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_a_fault_and_no_division_by_zero(key, size):
    with pytest.raises(ConfigError, match=f"{key}: {size} is not a number of GPUs; give 1 or more"):
        refuse_what_verl_lacks(small("verl.gpus=4", f"verl.actor_rollout_ref.rollout.{key}={size}"))


@pytest.mark.parametrize("part", ["actor", "ref"])
def test_an_fsdp_size_that_verl_would_fail_at_or_ignore_is_refused(part):
    """verl divides by a size of 0, leaves ranks outside of its mesh, and takes a size above all GPUs as all."""
    key = f"verl.actor_rollout_ref.{part}.fsdp_config.fsdp_size"
    for size, fault in (
        ("3", "8 GPUs cannot be divided into groups of 3 that share the weights"),
        ("16", "16 GPUs cannot share the weights: there are 8"),
        ("0", "0 is not a number of GPUs"),
        ("null", "None is not a number of GPUs"),
        ("true", "True is not a number of GPUs"),
    ):
        with pytest.raises(ConfigError) as caught:
            refuse_what_verl_lacks(small("verl.gpus=4", "verl.nodes=2", f"{key}={size}"))
        assert str(caught.value) == f"{key}: {fault}; choose one of 1, 2, 4, 8; -1 means all GPUs"
    for size in (-1, 1, 2, 8, "${trainer.n_gpus_per_node}"):
        refuse_what_verl_lacks(small("verl.gpus=4", "verl.nodes=2", f"{key}={size}"))


def test_every_refusal_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        refuse_what_verl_lacks(small("rollout.min_p=0.1", "update.schedule=linear", "verl.trainer.nothing=1"))
    assert len(caught.value.faults) == 3


def test_what_is_refused_because_the_launcher_sets_it_is_set_by_the_launcher():
    """Or nobody could set it."""
    assert set(OURS_ALONE) <= set(translated(start=2))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("verl.ray_init_kwargs.num_cpus=3", "verl would ignore it: write `ray_kwargs.ray_init`"),
        ("verl.gpu=3", "unknown key `gpu`; did you mean `gpus`?"),
        ("verl.trainer=3", "not a section"),
    ],
)
def test_a_wrong_section_is_a_fault_of_the_recipe(override, said):
    with pytest.raises(ConfigError) as caught:
        small(override)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "trainer.val_before_train",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs",
        "ray_kwargs.ray_init.num_gpus",
        "trainer.remove_previous_ckpt_in_save",
        "data.cache_dir",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
        "reward.custom_reward_function.reward_kwargs.mode",
    ],
)
def test_keys_that_verl_reads_are_let_through(key):
    refuse_what_verl_lacks(small(f"verl.{key}=1"))


@given(prompts=st.integers(1, 12), n=st.integers(1, 6), gpus=st.integers(1, 8), mini=st.integers(1, 12))
def test_a_batch_is_let_through_exactly_when_the_ranks_share_it_equally(prompts, n, gpus, mini):
    config = small(f"rollout.prompts={prompts}", f"rollout.n={n}", f"verl.gpus={gpus}", f"update.mini_batch={mini}")
    fits = prompts % mini == 0 and (mini * n) % gpus == 0
    try:
        refuse_what_verl_lacks(config)
    except ConfigError:
        assert not fits
    else:
        assert fits


def test_a_large_count_does_not_hang_the_launcher():
    """Divisors of the batch and of the GPUs are listed in messages: not by trying every number up to them."""
    with pytest.raises(ConfigError, match="cannot be divided into mini-batches of 3; choose one of 1, 2, 4"):
        refuse_what_verl_lacks(small("rollout.prompts=1048576", "rollout.n=1", "update.mini_batch=3"))
    with pytest.raises(ConfigError, match="it must be less than or equal to 1024"):
        small("verl.gpus=2000000000")


def test_checking_a_recipe_does_not_change_what_verl_is_known_to_read():
    before = dict(schema().defaults)
    refuse_what_verl_lacks(small("verl.actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs=8"))
    assert schema().defaults == before
    assert schema().defaults["actor_rollout_ref.rollout.engine_kwargs.vllm"] == {}
