"""Every knob of an experiment: the root that joins the sections. No torch here: `egpo config` and the editors' schema
answer at once."""

from typing import Literal

from egpo.config.sections.algorithm import Algorithm, Egpo, EgpoCalibrated, Segment
from egpo.config.sections.keep import Checkpoints, Trackers, Validation, Watch
from egpo.config.sections.model import Lora, Model
from egpo.config.sections.rollout import Rollout
from egpo.config.sections.section import Count, RunName, RunsFolder, Section, Seed
from egpo.config.sections.stages import Bfcl, Convert, Eval, Prepare, Probe
from egpo.config.sections.task import Segments, Task
from egpo.config.sections.update import Optimization, Update
from egpo.config.sections.verl import Verl

__all__ = [
    "Algorithm",
    "Bfcl",
    "Checkpoints",
    "Config",
    "Convert",
    "Egpo",
    "EgpoCalibrated",
    "Eval",
    "Lora",
    "Model",
    "Optimization",
    "Prepare",
    "Probe",
    "Rollout",
    "Section",
    "Segment",
    "Segments",
    "Task",
    "Trackers",
    "Update",
    "Validation",
    "Verl",
    "Watch",
]


class Config(Section):
    """One experiment."""

    name: RunName = "run"
    """Name of the run, and of its folder."""
    engine: Literal["local", "verl"] = "local"
    """`local`: this process. `verl`: Ray, FSDP and vLLM."""
    seed: Seed = 0
    """Decides sampling and data order."""
    steps: Count = 100
    """Batches of rollouts."""
    runs: RunsFolder = "runs"
    """Where run folders lie: this one's is `runs`/`name`."""
    model: Model
    """What is trained."""
    task: Task
    """What it is trained on."""
    rollout: Rollout = Rollout()
    """Sampling."""
    segments: Segments = Segments()
    """Thinking and answer."""
    algorithm: Algorithm = Algorithm()
    """The advantage."""
    update: Update = Update()
    """The policy update."""
    checkpoints: Checkpoints = Checkpoints()
    """What is kept of the model."""
    validation: Validation = Validation()
    """How it is watched on problems it does not train on."""
    watch: Watch = Watch()
    """Where to look."""
    prepare: Prepare = Prepare()
    """Its data, by `egpo run`."""
    probe: Probe = Probe()
    """The probe before it, by `egpo run`."""
    eval: Eval = Eval()
    """The evaluations after it, by `egpo run`."""
    verl: Verl = Verl()
    """The second engine, where `engine` names it."""
