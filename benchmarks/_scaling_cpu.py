"""The jobs of benchmarks/scaling.py for two CPU cores: the job of embedded_cpu.py with one property changed."""

from dataclasses import replace

import _trl_peer as trl
from _embedded_job import Job
from _scaling_cost import Cost
from embedded_cpu import CORES, JOB, measure, take_cores, timing

SWEEPS = {
    "samples": {str(group): replace(JOB, group=group) for group in (4, 8, 16, 32)},
    "length": {str(tokens): replace(JOB, new_tokens=tokens) for tokens in (48, 96, 192, 384)},
    "model": {f"hidden {hidden}": replace(JOB, hidden=hidden) for hidden in (96, 192, 384)},
    "vocabulary": {f"{words:,}": replace(JOB, vocabulary=words) for words in (512, 8_192, 65_536)},
}


def prepare() -> None:
    take_cores(CORES)


def cost(label: str, job: Job, num_rounds: int, with_trl: bool) -> Cost:
    measured = measure(job, num_rounds, trl.MICRO_ROWS if with_trl and trl.is_installed() else None, ("egpo",))
    seconds = measured.seconds
    ours = (timing(seconds["egpo"], stage) for stage in ("sample", "update", "step"))
    peer = timing(seconds["TRL"], "step") if "TRL" in seconds else None
    limit, memory = timing(seconds["limit"], "step"), measured.mebibytes["egpo"]
    return Cost(label, job.rows * job.new_tokens, *ours, limit, peer, memory["beyond"], memory["peak"])
