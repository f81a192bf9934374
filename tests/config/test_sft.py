"""A recipe for `egpo sft` is told from one for `egpo train`, and checked as exactly."""

import json

import jsonschema
import pytest

from egpo.config import Config, SftConfig, config_schema, config_to_yaml, load_config, load_recipe
from egpo.errors import ConfigError

MINIMAL = ["model.path=some/model", "data.path=chats.jsonl"]


def faults(*overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides, SftConfig)
    return [str(fault) for fault in caught.value.faults]


def test_a_minimal_recipe_takes_the_defaults():
    config = load_config(None, MINIMAL, SftConfig)
    assert (config.epochs, config.data.eval_frac, config.update.schedule) == (1, 0.0, "constant")


def test_a_recipe_with_data_and_without_a_task_is_for_sft():
    assert isinstance(load_recipe(None, MINIMAL), SftConfig)
    assert isinstance(load_recipe(None, ["model.path=m", "task.name=countdown"]), Config)


def test_a_recipe_with_both_is_a_fault_of_the_one_for_training():
    with pytest.raises(ConfigError, match="unknown key `data`"):
        load_recipe(None, [*MINIMAL, "task.name=countdown"])


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("data.eval_frac=1", "`eval_frac` is 1; it must be less than 1"),
        ("data.max_tokens=0", "`max_tokens` is 0; it must be greater than or equal to 1"),
        ("epochs=0", "`epochs` is 0; it must be greater than or equal to 1"),
        ("update.clip=0.2", "unknown key `clip`"),
        ("update.batch_tokns=4", "did you mean `batch_tokens`?"),
        ("model.lora.rnk=4", "unknown key `rnk`; did you mean `rank`?"),
        ("rank=4", "did you mean `model.lora.rank`?"),
        ("model.init=fresh", "`init` is `fresh`"),
        ("watch.rollouts_every=1", "unknown key `rollouts_every`"),
    ],
)
def test_faults_are_said_as_those_of_training(override, fault):
    (found,) = faults(*MINIMAL, override)
    assert fault in found


def test_one_evaluation_set_is_enough():
    (found,) = faults(*MINIMAL, "data.eval_frac=0.1", "data.eval_path=x.jsonl")
    assert found == ("override `data.eval_frac=0.1`: `eval_frac` and `eval_path` are both set; leave one of them out")


def test_the_resolved_config_reads_back(tmp_path):
    config = load_config(None, [*MINIMAL, "update.betas=[0.9, 0.95]", "model.lora={}"], SftConfig)
    path = tmp_path / "config.yaml"
    path.write_text(config_to_yaml(config))
    assert load_config(path, (), SftConfig) == config
    assert load_recipe(path) == config


def test_the_schema_describes_every_knob():
    schema = config_schema(SftConfig)
    jsonschema.validate(json.loads(load_config(None, MINIMAL, SftConfig).model_dump_json()), schema)
    assert schema["title"] != config_schema()["title"]
    for section in [schema, *schema["$defs"].values()]:
        for name, knob in section["properties"].items():
            assert knob.get("description"), f"`{name}` has no docstring under it"


def test_the_shipped_recipe_loads():
    config = load_recipe("cold_start")
    assert isinstance(config, SftConfig)
