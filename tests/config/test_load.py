"""A recipe is read exactly, faults are reported all at once, and what is written reads back."""

import inspect
import json

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from egpo.advantages import ESTIMATORS, Signals, egpo, egpo_calibrated
from egpo.advantages.egpo import EgpoSettings
from egpo.advantages.egpo_calibrated import EgpoCalibratedSettings
from egpo.config import Config, config_schema, config_to_yaml, load_config
from egpo.config.yaml_text import dump_yaml, parse_scalar, parse_yaml
from egpo.errors import ConfigError
from egpo.files import path_fault

MINIMAL = "model: {path: some/model}\ntask: {name: countdown}\n"


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def faults(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [str(fault).replace(str(path), "recipe.yaml") for fault in caught.value.faults]


def test_a_minimal_recipe_takes_the_defaults(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    assert config.algorithm.estimator == "grpo"
    assert config.rollout.batch == config.rollout.prompts * config.rollout.n


def test_overrides_win_and_keep_their_types(tmp_path):
    overrides = ["update.lr=2e-6", "rollout.n=4", "algorithm.normalize=false", "segments.tags=[<a>, </a>]", "name=x"]
    config = load_config(write(tmp_path, MINIMAL + "update: {lr: 1e-6}\n"), overrides)
    assert (config.update.lr, config.rollout.n, config.algorithm.normalize) == (2e-6, 4, False)
    assert config.segments.tags == ("<a>", "</a>")


def test_settings_are_those_of_the_chosen_estimator(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert load_config(path).algorithm.settings == {"normalize": True}
    assert load_config(path).algorithm.segment is None
    egpo = load_config(path, ["algorithm.estimator=egpo", "algorithm.egpo.lam=0.3"]).algorithm
    assert egpo.settings == {"normalize": True, "lam": 0.3, "alpha": 2.0, "form": "clip_entropy"}
    assert egpo.segment == "thinking"
    calibrated = load_config(path, ["algorithm.estimator=egpo_calibrated"]).algorithm
    assert calibrated.segment == "answer"
    assert set(calibrated.settings) == {"normalize", "lambda_min", "lambda_max", "eps", "sides", "measure", "recover"}


def test_every_fault_comes_in_one_report(tmp_path):
    text = """\
modl: {path: x}
task: {name: countdown}
update:
  clp: 0.2
  lr: -1
  epochs: two
lr: 3
algorithm: {estimator: egop, egpo: {lam: 3, alpha: 0.5}}
rollout: 5
"""
    assert set(faults(write(tmp_path, text), "steps=1.5", "foo")) == {
        "`foo`: this is not an override; write section.key=value, as in update.lr=2e-6",
        "override `steps=1.5`: `steps` is 1.5; it must be a whole number",
        "recipe.yaml: `model.path` is missing; set it in the recipe, or as model.path=...",
        "recipe.yaml:1: unknown key `modl`; did you mean `model`?",
        "recipe.yaml:4 [update]: unknown key `clp`; did you mean `clip`?",
        "recipe.yaml:5 [update]: `lr` is -1; it must be greater than 0",
        "recipe.yaml:6 [update]: `epochs` is 'two'; it must be a whole number",
        "recipe.yaml:7: unknown key `lr`; did you mean `update.lr`?",
        "recipe.yaml:8 [algorithm]: `estimator` is `egop`; did you mean `egpo`?",
        "recipe.yaml:8 [algorithm.egpo]: `alpha` is 0.5; it must be greater than 1",
        "recipe.yaml:9: `rollout` is 5; it must be a section of keys and values",
    }


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("algorithm.egpo.alpha=1", "`alpha` is 1; it must be greater than 1"),
        ("algorithm.egpo.alpha=-2", "`alpha` is -2; it must be greater than 1"),
        ("algorithm.egpo.lam=0", "`lam` is 0; it must be greater than 0"),
        ("algorithm.egpo.lam=2", "`lam` 2 is not less than `alpha` 2"),
        ("algorithm.egpo.form=clip_entropi", "`form` is `clip_entropi`; did you mean `clip_entropy`?"),
        ("algorithm.egpo.entropy_mode=thought", "`entropy_mode` is `thought`"),
        ("algorithm.egpo_calibrated.lambda_min=1.2", "`lambda_min` is 1.2; it must be less than or equal to 1"),
        ("algorithm.egpo_calibrated.lambda_max=0.9", "`lambda_max` is 0.9; it must be greater than or equal to 1"),
        ("algorithm.egpo_calibrated.sides=all", "`sides` is `all`"),
        ("algorithm.estimator=ppo", "`estimator` is `ppo`"),
        ("algorithm.adv_estimator=egpo", "unknown key `adv_estimator`; did you mean `algorithm.estimator`?"),
        ("rollout.temperature=0", "`temperature` is 0; it must be greater than 0"),
        ("rollout.top_p=1.5", "`top_p` is 1.5; it must be less than or equal to 1"),
        ("rollout.n=0", "`n` is 0; it must be greater than or equal to 1"),
        ("rollout.n=true", "`n` is true; it must be a whole number"),
        ("rollout.n='8'", "`n` is '8'; it must be a whole number"),
        ("update.lr=.nan", "`lr` is nan; it must be a finite number"),
        ("update.lr=", "`lr` is empty; it must be a number"),
        ("segments.tags=[<a>]", "`tags` has too few values; give two values"),
        ("segments.tags=[]", "`tags` has too few values; give two values"),
        ("segments.tags=[a, b, c]", "`tags` has too many values; give two values"),
        ("segments.tags=['', b]", "neither tag may be empty"),
        ("model.path=", "`path` is empty; it must have at least 1 character"),
        ("seed=-1", "`seed` is -1; it must be greater than or equal to 0"),
        ("seed=4294967296", "`seed` is 4294967296; it must be less than 4294967296"),
        ("update.clip=1", "`clip` is 1; it must be less than 1"),
        ("update.clip_high=0", "`clip_high` is 0; it must be greater than 0"),
        ("update.kl=-0.1", "`kl` is -0.1; it must be greater than or equal to 0"),
        ("rollout.min_p=2", "`min_p` is 2; it must be less than or equal to 1"),
        ("rollout.top_k=-1", "`top_k` is -1; it must be greater than or equal to 0"),
        ("algorithm.egpo_calibrated.eps=0", "`eps` is 0; it must be greater than 0"),
        ("algorithm.egpo_calibrated.eps=.inf", "`eps` is inf; it must be a finite number"),
        ("algorithm.egpo_calibrated.measure=prob", "`measure` is `prob`"),
        ("update={lr: 1e-6, clip: 7}", "`clip` is 7; it must be less than 1"),
        ("segments.tags=[<a>, <a>]", "`tags` are `<a>` and `<a>`; neither tag may contain the other"),
        ("name=../x", "`name` is '../x'; it must match pattern"),
        ("engine=trl", "`engine` is `trl`"),
        ("seed.x=1", "`seed` is {'x': 1}; it must be a whole number"),
        ("update.lr=[1", "not YAML"),
        ("=3", "not an override"),
        ("update..lr=3", "not an override"),
    ],
)
def test_each_bad_value_is_named_with_its_fix(tmp_path, override, fault):
    (found,) = faults(write(tmp_path, MINIMAL), override)
    assert fault in found
    assert override in found


def test_faults_of_one_section_are_all_reported(tmp_path):
    overrides = ["algorithm.egpo.lam=x", "algorithm.egpo.alpha=0.5", "algorithm.egpo.form=zzz", "algorithm.egpo.lamm=1"]
    found = faults(write(tmp_path, MINIMAL), *overrides)
    assert len(found) == 4
    assert {override for override in overrides for fault in found if override in fault} == set(overrides)


def test_the_override_that_is_to_blame_is_named(tmp_path):
    path = write(tmp_path, MINIMAL)
    (found,) = faults(path, "update={lr: 1e-6}", "update.clip=7")
    assert found.startswith("override `update.clip=7`")
    (found,) = faults(path, "model.path=q", "model={}")
    assert found.startswith("override `model={}`: `model.path` is missing")


def test_odd_keys_and_values_are_refused_without_a_traceback(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert faults(path, "upd\udcffate.lr=3")
    assert "cannot be read" in faults("a\0b")[0]
    assert "..." in faults(path, "update.lr=" + "x" * 500)[0]
    assert "is not supported" in faults(write(tmp_path, "model: !!python/object:os.system {path: m}\n"))[0]
    assert "is not supported" in faults(write(tmp_path, "model: !mine {path: m}\n"))[0]


def test_a_single_override_may_be_given_as_text(tmp_path):
    assert load_config(write(tmp_path, MINIMAL), "seed=3").seed == 3


def test_a_config_does_not_change_after_loading(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    with pytest.raises(ValidationError):
        config.update.lr = 1.0


OUR_OWN = {"signals", "entropy_BT", "mask_BT", "metrics"}


def test_the_defaults_are_those_of_the_estimators(tmp_path):
    for name, estimate in ESTIMATORS.items():
        settings = load_config(write(tmp_path, MINIMAL), [f"algorithm.estimator={name}"]).algorithm.settings
        parameters = inspect.signature(estimate.function).parameters
        assert settings == {key: p.default for key, p in parameters.items() if key not in OUR_OWN}


NUMBERS = st.sampled_from([-1.0, 0.0, 1e-9, 0.4, 0.999, 1.0, 1.001, 2.0, 5.0, float("inf"), float("nan")])


@given(NUMBERS, NUMBERS, st.sampled_from(["clip_entropy", "clip_bonus", "clip"]))
def test_config_and_estimator_agree_on_egpo(lam, alpha, form):
    """Except for lam = 0: the function allows it as the limit that equals grpo, a recipe refuses it."""
    refused = _refuses(lambda: egpo(SIGNALS, lam=lam, alpha=alpha, form=form))
    in_recipe = _refuses(lambda: EgpoSettings(lam=lam, alpha=alpha, form=form))
    assert in_recipe == (refused or lam == 0)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["both", "x"]), st.sampled_from(["entropy", "x"]))
def test_config_and_estimator_agree_on_egpo_calibrated(low, high, eps, sides, measure):
    settings = {"lambda_min": low, "lambda_max": high, "eps": eps, "sides": sides, "measure": measure}
    assert _refuses(lambda: EgpoCalibratedSettings(**settings)) == _refuses(
        lambda: egpo_calibrated(SIGNALS, **settings)
    )


SIGNALS = Signals([1.0, 0.0], [0, 0], entropy_B=[0.5, 0.5])


def _refuses(call):
    try:
        call()
    except ValueError:
        return True
    return False


def test_an_override_cannot_reach_into_a_value(tmp_path):
    (found,) = faults(write(tmp_path, MINIMAL + "seed: 1\n"), "seed.x=1")
    assert found == "override `seed.x=1`: `seed` is not a section; set `seed` itself: it is a single value without keys"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the recipe is empty"),
        ("# only a comment\n", "the recipe is empty"),
        ("- a\n- b\n", "the recipe is a list"),
        ("just words", "the recipe is `just words`"),
        ("model: {path: x\n", "not YAML"),
        ("a: b: c\n", "recipe.yaml:1: the text is not YAML"),
        ("model:\n\tpath: x\n", "recipe.yaml:2: the text is not YAML"),
        ("seed: 1\nmodel: {path: x}\nseed: 2\n", "recipe.yaml:3: `seed` is given twice; remove one"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("x: " + "[" * 5000, "nested too deeply"),
        ("a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n", "more than 10000 values"),
        ("--- {}\n--- {}\n", "not YAML"),
        ("x: \x00", "not YAML"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused(tmp_path, text, fault):
    (found, *_) = faults(write(tmp_path, text))
    assert fault in found


def test_files_that_cannot_be_read(tmp_path):
    assert "no such file" in faults(tmp_path / "none.yaml")[0]
    assert "cannot be read" in faults(tmp_path)[0]
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "UTF-8" in faults(tmp_path / "latin.yaml")[0]


PATHS = st.text(min_size=1).filter(lambda text: path_fault(text) is None)
CONFIGS = st.builds(
    Config.model_validate,
    st.fixed_dictionaries(
        {
            "model": st.fixed_dictionaries({"path": PATHS}),
            "task": st.fixed_dictionaries({"name": st.text(min_size=1)}),
            "seed": st.integers(0, 2**32 - 1),
            "rollout": st.fixed_dictionaries({"temperature": st.floats(1e-300, 1e300), "n": st.integers(1, 10**6)}),
            "algorithm": st.fixed_dictionaries(
                {
                    "estimator": st.sampled_from(["grpo", "egpo", "egpo_calibrated"]),
                    "egpo": st.fixed_dictionaries({"lam": st.floats(1e-9, 1), "alpha": st.floats(1.01, 1e6)}),
                }
            ),
            "update": st.fixed_dictionaries(
                {"lr": st.floats(1e-30, 1), "clip_high": st.none() | st.floats(1e-3, 10)},
            ),
        }
    ),
)


@given(CONFIGS)
def test_the_resolved_config_reads_back_as_itself(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    text = config_to_yaml(config)
    path.write_text(text, encoding="utf-8")
    assert load_config(path) == config
    assert config_to_yaml(load_config(path)) == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False), lambda inner:
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)))  # fmt: skip
def test_any_plain_value_survives_yaml(value):
    assert parse_yaml(dump_yaml({"value": value}), "text").value == {"value": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E3", 1e3), ("no", "no"), ("on", "on"), ("yes", "yes"), ("True", True), ("null", None),
     ("~", None), ("0o17", 15), ("0x1F", 31), ("017", 17), ("1_000", "1_000"), ("12:30", "12:30"), ("+3", 3),
     (".5", 0.5), ("2024-01-01", "2024-01-01"), ("9" * 500, "9" * 500), ("-.inf", -float("inf")), ("1e", "1e"),
     ("٣", "٣")],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value):
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


def test_the_resolved_config_reads_the_same_in_any_yaml_reader(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    assert yaml.safe_load(config_to_yaml(config)) == json.loads(config.model_dump_json())


def test_the_schema_accepts_what_we_accept_and_describes_every_knob(tmp_path):
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(load_config(write(tmp_path, MINIMAL)).model_dump_json()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": {"path": "x"}, "task": {"name": "y"}, "updat": {}}, schema)
    for wrong in ({"lam": -1}, {"alpha": 0.5}, {"form": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"model": {"path": "x"}, "task": {"name": "y"}, "algorithm": {"egpo": wrong}}, schema)
    for section in [schema, *schema["$defs"].values()]:
        for name, knob in section["properties"].items():
            assert knob.get("description"), f"`{name}` has no docstring under it"


def test_an_override_with_signs_of_yaml_says_how_to_quote_it():
    with pytest.raises(
        ConfigError, match=r"not YAML: .*put a text with `:`, `,` or other signs of YAML between quotes"
    ):
        load_config(overrides=["model.path=m", "task.name=dataset", "task.settings.prompt=Count: {number}, then"])
    quoted = load_config(
        overrides=["model.path=m", "task.name=dataset", 'task.settings.prompt="Count: {number}, then"']
    )
    assert quoted.task.settings["prompt"] == "Count: {number}, then"
