"""Which processes worked on a run, and on which data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from egpo.native.library import describe_kernels
from egpo.runs.folder import RunFolder
from egpo.runs.provenance import Provenance, describe_launch, record_resumption, write_provenance


def record_launch(
    folder: RunFolder,
    *,
    seed: int,
    after_step: int,
    device: torch.device,
    data: Mapping[str, str],
    files: Mapping[str, Path] | None = None,
    sandbox: str | None = None,
) -> None:
    """This process begins the run, or goes on with it. InputError where the data is not what it began with. `files`
    are those that `data` has digests of."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    launch = describe_launch(after_step=after_step, threads=torch.get_num_threads(), gpu=gpu, sandbox=sandbox)
    if device.type == "cpu":  # compiled or not, the last bits differ
        launch = replace(launch, versions={**launch.versions, "kernels": describe_kernels()})
    if folder.provenance.exists():
        record_resumption(folder.provenance, launch, data, files)
    else:
        write_provenance(folder.provenance, Provenance(seed, data, launch))
