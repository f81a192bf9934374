"""One folder with every kind of file that egpo reads back, each written by what writes it, and its readers."""

import os
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

import egpo
from egpo.audits.replay import audit_rewards
from egpo.boards.board_file import load_board
from egpo.boards.cells import load_cells
from egpo.boards.stored_board import read_stored_board
from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.results_table import read_results
from egpo.config import config_to_yaml, load_config
from egpo.config.schema import Model
from egpo.errors import InputError
from egpo.evals.server_requests import Answer, AnswerCache
from egpo.evals.targets import local_targets
from egpo.experiments.stage_record import StageJob, StageRecord
from egpo.local.models import verdicts
from egpo.local.models.loading import load_policy
from egpo.local.models.policy import prompt_text
from egpo.local.train import train
from egpo.local.training.session import run_checkpoints
from egpo.merges.merge import merge
from egpo.merges.places import NOTE
from egpo.model_sources.conversion import converted_folder
from egpo.native import library
from egpo.pushes.pushed_model import find_pushed_model, verify
from egpo.reports.report import render_report
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import require_rewindable
from egpo.runs.metrics import MetricStream
from egpo.runs.provenance import Provenance, describe_launch, read_provenance, record_resumption, write_provenance
from egpo.runs.removed import Removed, read_removed, write_removed
from egpo.tasks import load_task
from egpo.tasks.countdown import Countdown
from egpo.tasks.preparation import prepare
from tests.comparisons.folders import write_run_evaluation
from tests.faults.flips import Reading, digest
from tests.local.conftest import build_model, build_tokenizer
from tests.model_sources.gguf_files import write_model

RECIPE = """
name: {name}
steps: 4
runs: {runs}
model: {{path: {model}, device: cpu}}
task: {{name: countdown, settings: {{source: {data}, mode: binary}}}}
rollout: {{prompts: 2, n: 2, max_response_tokens: 6}}
update: {{lr: 1.0e-3}}
algorithm: {{estimator: {estimator}}}
checkpoints: {{every: 2, keep_last: 2, keep_best: 1}}
validation: {{every: 2, problems: 2}}
watch: {{rollouts_every: 2}}
"""
BOARD = """
name: small
folder: small
tasks:
  one: {recipe: countdown_tiny, set: {steps: 2, eval.n: 2}}
methods: [grpo, egpo]
seeds: [0, 1]
baselines: [grpo]
"""


NOT_DETECTED = {
    # A file that is cut looks like one that is still being written: its last line is ignored.
    "timings.jsonl: report",
    "health.jsonl: report",
    "health.jsonl: resume",
    "step_4.jsonl: report",
    "metrics.jsonl: board",  # of a run whose checkpoints were removed: no checkpoint says how far it must reach
    # A user may edit the settings of a run. Resuming compares those that decide the training by their digest.
    *(f"config.yaml: {verb}" for verb in ("resume", "report", "compare", "results", "board")),
    # A folder from elsewhere has no digest.
    *(f"stranger's {name}: train" for name in ("config.json", "generation_config.json", "tokenizer_config.json")),
    *(f"stranger's {name}: train" for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors")),
    "board.yaml: board",
    "holes.yaml: board",
}
"""Files of which some damage gives another result without a word, and why. docs/reliability.md lists them."""


class Scene:
    """The folder and what was written to it. Cache folders are below `place`, too."""

    def __init__(self, place: Path) -> None:
        self.place = place
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        self.model, self.data = place / "model", place / "data"
        build_model("qwen3").save_pretrained(self.model)
        build_tokenizer().save_pretrained(self.model)
        prepare(Countdown(), self.data, source=None, train=12, test=4, seed=0)
        self.configs = {}
        for name, estimator in (("a", "grpo"), ("b", "egpo")):
            recipe = place / f"{name}.yaml"
            recipe.write_text(
                RECIPE.format(name=name, estimator=estimator, runs=place / "runs", model=self.model, data=self.data)
            )
            self.configs[name] = load_config(recipe)
            train(self.configs[name], quiet=True)
            egpo.evaluate(str(place / "runs" / name), problems=3, n=2, device="cpu")
        self.run = RunFolder(place / "runs" / "a")
        self.stranger = Path(shutil.copytree(self.model, place / "stranger"))
        self.step = self.run.checkpoint_of(4) / "actor"


def page(*paths: Path) -> str:
    """The report without the time at which it was written."""
    return digest(re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC", b"", render_report(paths)))


def comparison(scene: Scene) -> str:
    options = ComparisonOptions(allow=True)
    return digest(asdict(compare_runs([scene.place / "runs" / "a", scene.place / "runs" / "b"], options)))


def of_checkpoints(scene: Scene) -> Iterator[Reading]:
    config, model = scene.configs["a"], scene.step / "huggingface"

    def resume() -> str:
        found = run_checkpoints(config).read(4)
        tensors = {name: digest(value.numpy().tobytes()) for name, value in found.tensors.items()}
        return digest([found.step, found.state, found.score, tensors])

    def evaluate() -> str:
        with local_targets([str(scene.run.path)], "4", device="cpu")[0].opened() as loaded:
            return model_of(loaded.policy)

    def best() -> str:
        return str(local_targets([str(scene.run.path)], "best", device="cpu")[0].place)

    def removed() -> str:
        """A checkpoint with a damaged manifest is never removed."""
        checkpoints = run_checkpoints(config)
        return str(sorted(set(checkpoints._scores()) - checkpoints._kept()))

    def merged() -> str:
        out = scene.place / "merged"
        shutil.rmtree(out, ignore_errors=True)
        return merge(scene.run.path, out, step=4).weights_sha256

    for name in ("resume.safetensors", "state.json", "manifest.json", "huggingface/model.safetensors"):
        yield Reading(scene.step / name, "resume", resume)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        yield Reading(model / name, "resume", resume)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        yield Reading(model / name, "eval", evaluate, slow=True, kind=f"checkpoint {name}")
        yield Reading(model / name, "merge", merged, slow=True, kind=f"checkpoint {name}")
    yield Reading(scene.step / "manifest.json", "eval", evaluate, slow=True)
    yield Reading(scene.step / "manifest.json", "eval --checkpoint best", best)
    yield Reading(scene.step / "manifest.json", "retention", removed)
    yield Reading(scene.run.latest, "eval", evaluate, slow=True)
    yield Reading(scene.run.latest, "merge", merged, slow=True)
    merged()
    note = scene.place / "merged" / NOTE
    yield Reading(note, "push", lambda: _pushed(note.parent))


def _pushed(folder: Path) -> str:
    found = find_pushed_model(folder)
    verify(found)
    return digest([found.step, found.run and str(found.run.folder.path)])


def model_of(policy: object) -> str:
    """The weights, the tokens and the prompt of a loaded model, and what ends its responses."""
    task = load_task("countdown")
    text = prompt_text(policy, task, next(iter(task.problems("test"))))
    ids, config = policy.tokenizer.encode(text), policy.model.config.to_dict()
    return digest([verdicts.weights_digest(policy.model), text, ids, sorted(policy.stop_ids), policy.context, config])


def of_runs(scene: Scene) -> Iterator[Reading]:
    run, config = scene.run, scene.configs["a"]

    def resume_files() -> str:
        """What a resumption decides before it changes anything, and the history that its health rules read."""
        from egpo.runs.health import read_notes
        from egpo.runs.metrics import read_metrics

        run_checkpoints(config).read(4)
        require_rewindable(run, 4)
        return digest([read_metrics(run.metrics), read_notes(run.health)])

    def resume_config() -> str:
        read = load_config(run.config)
        changed = read.model_dump(mode="json", exclude_defaults=True)
        text = run.config.read_bytes()
        try:
            with RunFolder.resume(run.path, config_to_yaml(read), changed):
                run_checkpoints(read).read(4)
        finally:
            run.config.write_bytes(text)
        return digest(trained(read))

    def results() -> str:
        rows = read_results(scene.place / "runs")
        for row in rows:  # the table says so in the row of the run
            assert not re.match(r"unreadable: \w+: ", row.status), row.status  # an exception of another kind
            if row.status.startswith("unreadable: "):
                raise InputError(row.status)
        return digest(rows)

    def report() -> str:
        return page(run.path)

    for path in (run.metrics, run.health):
        yield Reading(path, "resume", resume_files)
    rollouts = run.rollouts_of(4)
    for path in (run.metrics, run.timings, run.health, run.provenance, run.config, rollouts):
        yield Reading(path, "report", report, slow=True)
    for path in (run.metrics, run.provenance, run.config):
        yield Reading(path, "compare", lambda: comparison(scene), slow=True)
        yield Reading(path, "results", results, slow=True)
    yield Reading(run.config, "resume", resume_config, slow=True)
    launch, known = describe_launch(after_step=4, threads=1), read_provenance(run.provenance)
    yield Reading(run.provenance, "resume", lambda: _resumed(run, launch, known), remakes=True)
    yield Reading(rollouts, "audit", lambda: digest(asdict(audit_rewards(rollouts, workers=1))), slow=True)
    write_removed(run.removed, Removed("weights", ("checkpoints/x",), 12345, "a" * 64, "b" * 64))
    yield Reading(run.removed, "run", lambda: digest(read_removed(run.removed)))
    run.removed.unlink()
    job = StageJob("train", {"data": "c" * 64}, lambda: [run.metrics], lambda: "")
    StageRecord(run.stages).done(job)
    yield Reading(run.stages, "run", lambda: digest(_jobs(run.stages)))


def trained(config: object) -> object:
    """What of a config decides what a resumed run computes."""
    from egpo.local.checkpoints.resume import config_identity

    return config_identity(config)


def _jobs(path: Path) -> object:
    record = StageRecord(path)
    return sorted((name, sorted(job.inputs.items()), sorted(job.outputs.items())) for name, job in record._jobs.items())


def _resumed(run: RunFolder, launch: object, known: Provenance) -> str:
    before = run.provenance.read_bytes()
    try:
        found = record_resumption(run.provenance, launch, known.data)
        return digest([found.seed, found.data, found.start, found.benchmark_cases])
    finally:
        run.provenance.write_bytes(before)


def of_evaluations(scene: Scene) -> Iterator[Reading]:
    figures = next(path for path in scene.run.evals.glob("*.json"))
    for path in (figures, figures.with_suffix(".jsonl")):
        yield Reading(path, "compare", lambda: comparison(scene), slow=True, kind=f"evals/*{path.suffix}")
        yield Reading(path, "report", lambda: page(scene.run.path), slow=True, kind=f"evals/*{path.suffix}")
    path = figures.with_suffix(".jsonl")
    yield Reading(
        path, "audit", lambda: digest(asdict(audit_rewards(path, workers=1))), slow=True, kind="evals/*.jsonl"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        egpo.probe(
            model=str(scene.model), task="countdown", problems=4, n=2, max_tokens=4, device="cpu", out=scene.run.evals
        )
    yield Reading(scene.run.probe, "report", lambda: page(scene.run.path), slow=True)
    scene.run.probe.unlink()
    egpo.compare(scene.place / "runs" / "a", scene.place / "runs" / "b", allow=True, out=scene.place)
    written = scene.place / "compare.json"
    yield Reading(written, "report", lambda: page(scene.run.path, written), slow=True)


def of_data(scene: Scene) -> Iterator[Reading]:
    def problems() -> str:
        task = load_task("countdown", source=str(scene.data))
        return digest([list(task.problems(split)) for split in ("train", "test")])

    for name in ("train.parquet", "manifest.json"):
        yield Reading(scene.data / name, "train", problems, kind=f"data {name}")


def of_caches(scene: Scene) -> Iterator[Reading]:
    path = scene.place / "server_answers.jsonl"
    with AnswerCache.open(path) as cache:
        for number in range(3):
            cache.keep(f"{number}" * 64, Answer(f"the answer is {number}", 5 + number, True))

    def answers() -> str:
        """The answers of an evaluation: those that the cache lacks are asked again, of a server that says the same."""
        with AnswerCache.open(path) as cache:
            asked = {f"{n}" * 64: Answer(f"the answer is {n}", 5 + n, True) for n in range(3)}
            return digest([cache.find(key) or answer for key, answer in asked.items()])

    yield Reading(path, "eval", answers, remakes=True)
    rows = [{"name": "prefill", "difference": 1.25e-6, "ok": True}]
    seconds = verdicts.WORTH_KEEPING_S + 1
    verdicts.record_verdict("d" * 32, rows, seconds)
    kept = verdicts._folder() / f"{'d' * 32}.json"
    yield Reading(
        kept, "train", lambda: digest(verdicts.recorded_verdict("d" * 32) or rows), remakes=True, kind="self-check"
    )
    yield from _of_kernels()
    yield from _of_gguf(scene)


def _of_kernels() -> Iterator[Reading]:
    """A damaged library is compiled again; here the compiler is replaced by a copy of the whole one."""
    path = library.library_file()
    whole = path.read_bytes()

    def compiled(compiler: str, target: Path) -> None:
        target.write_bytes(whole)

    def load() -> str:
        real, library._compile = library._compile, compiled
        try:
            return digest(library.library_file().read_bytes())
        finally:
            library._compile = real

    yield Reading(path, "train", load, remakes=True, kind="compiled kernels")


def _of_gguf(scene: Scene) -> Iterator[Reading]:
    gguf = write_model(scene.place / "m.gguf")
    folder = converted_folder(gguf)

    def convert() -> str:
        made = converted_folder(gguf)
        return digest([(path.name, path.read_bytes()) for path in sorted(made.iterdir())])

    for name in ("model.safetensors", "config.json", "tokenizer.json", "egpo_source.json"):
        yield Reading(folder / name, "train", convert, remakes=True, slow=True, kind=f"converted {name}")
    memory = next((scene.place / "cache" / "egpo" / "digests").iterdir())
    yield Reading(memory, "train", convert, remakes=True, slow=True, kind="remembered digest")


def of_boards(scene: Scene) -> Iterator[Reading]:
    folder = scene.place / "board"
    folder.mkdir()
    (folder / "board.yaml").write_text(BOARD)
    before = Path.cwd()
    os.chdir(folder)
    try:
        cells = load_cells(load_board(folder / "board.yaml"))
        launch = describe_launch(threads=1)
        for cell in cells:
            with RunFolder.create(cell.experiment.run.path, config_to_yaml(cell.experiment.config)) as run:
                write_provenance(run.provenance, Provenance(cell.seed, {"train": "a" * 64}, launch))
                for step in (1, 2):
                    MetricStream(run.metrics).append(step, {"actor/entropy": 1 / step, "critic/acc/mean": step / 10})
            right_PN = np.random.default_rng(cell.seed).random((4, 2)) < 0.5
            write_run_evaluation(run.path, right_PN, name="countdown-n2-t1-step2", step=2)
        source = folder / "small"
        shutil.copy(folder / "board.yaml", source / "board.yaml")
        (source / "holes.yaml").write_text("not_started: no time\nmissing: {one-egpo-s1: the machine was lent}\n")
    finally:
        os.chdir(before)

    def judged() -> str:
        found = read_stored_board(source).judge()
        for hole in found.holes:  # the page of the board says so where the result is missing
            if str(source) in hole.reason:
                raise InputError(hole.reason)
        return digest(asdict(found))

    run = next(path for path in sorted(source.rglob("config.yaml"))).parent
    figures = next((run / "evals").glob("*.json"))
    files = {"config.yaml": run / "config.yaml", "metrics.jsonl": run / "metrics.jsonl", "evals/*.json": figures}
    files |= {"evals/*.jsonl": figures.with_suffix(".jsonl"), "board.yaml": source / "board.yaml"}
    for kind, path in {**files, "holes.yaml": source / "holes.yaml"}.items():
        yield Reading(path, "board", judged, slow=True, kind=kind)


def of_models(scene: Scene) -> Iterator[Reading]:
    def load() -> str:
        return model_of(load_policy(Model(path=str(scene.stranger), device="cpu")))

    names = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")
    for name in (*names, "model.safetensors"):
        yield Reading(scene.stranger / name, "train", load, slow=True, kind=f"stranger's {name}")


groups = (of_checkpoints, of_runs, of_evaluations, of_data, of_caches, of_boards, of_models)
"""Functions that yield the files of one kind with each verb that reads them."""
