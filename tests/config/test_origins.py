"""Where each setting of a recipe comes from."""

from egpo.config.load import settings_with_origins


def test_every_setting_has_the_place_that_set_it(tmp_path):
    base = "model: {path: m}\ntask:\n  name: countdown\n  settings: {mode: binary}\nseed: 1\n"
    (tmp_path / "base.yaml").write_text(base)
    path = tmp_path / "mine.yaml"
    path.write_text("include: base.yaml\nupdate:\n  lr: 1e-6\nseed: 2\n")
    found = {one.key: one for one in settings_with_origins(path, ["rollout={n: 4}", "update.clip=0.1"])}
    origins = {key: one.origin.replace(f"{tmp_path}/", "") for key, one in found.items()}
    assert origins["model.path"] == "base.yaml:1"
    assert origins["task.settings.mode"] == "base.yaml:4"
    assert origins["seed"] == "mine.yaml:4"
    assert origins["update.lr"] == "mine.yaml:3"
    assert origins["rollout.n"] == "override `rollout={n: 4}`"
    assert origins["update.clip"] == "override `update.clip=0.1`"
    assert origins["update.kl"] == "default"
    assert found["update.lr"].value == 1e-6
    assert str(found["seed"]).startswith("seed=2 ")
