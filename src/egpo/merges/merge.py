"""`egpo merge`: turn a checkpoint into a model folder and verify it.

    read      join the shards of all ranks, merge adapters into the weights      -> a model in memory
    write     save it with its tokenizer to a temporary folder beside `out`
    verify    load it again and compare every tensor and the logits of one pass  -> `out`

Only one model at a time is in memory, in the dtype that is written.
"""

import gc
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from egpo.benchmark_cases import Cases, joined_cases, read_cases, write_cases
from egpo.fingerprints import sealed
from egpo.local.progress_bars import without_progress_bars
from egpo.merges.models import Dtype, Lora, load_model, require_vocabulary
from egpo.merges.output import Watch, difference, fingerprint, replaced, require_disk_space, require_free
from egpo.merges.places import NOTE, find_checkpoint
from egpo.merges.shards import WEIGHT_ENDINGS, WeightSource, read_trained
from egpo.runs.checkpoint_manifest import FileEntry, describe_files, files_below
from egpo.runs.stored import StoredCheckpoint, StoredRun
from egpo.version import __version__

_FILE_SIZE = "4GB"


@dataclass(frozen=True)
class Merged:
    """The result of a merge. `world_size` is 0 if the checkpoint held a whole model; `lora` is None without adapters.

    `logits_difference` is the largest difference between the written and the trained model: 0 unless kernels round
    differently.
    """

    out: str
    checkpoint: str
    step: int | None
    world_size: int
    lora: Lora | None
    dtype: str
    num_tensors: int
    num_parameters: int
    weights_sha256: str
    logits_difference: float


def _unwatched(stage: str, done: int, total: int) -> None:
    pass


def merge(
    source: Path,
    out: Path,
    *,
    step: int | None = None,
    dtype: Dtype = "auto",
    base: str | None = None,
    force: bool = False,
    watch: Watch = _unwatched,
) -> Merged:
    """Merge the checkpoint that `source` and `step` name (see `find_checkpoint`) into the model folder `out`.

    `base` is the base model of a checkpoint with only LoRA adapters; for a run it is read from the config. `out` must
    be new or an earlier merge of the same checkpoint; `force` replaces any other model.
    """
    place = find_checkpoint(source, step)
    require_free(out, place.actor, force=force)
    trained = read_trained(place, dtype, base, watch)
    require_vocabulary(place.model, trained.model)
    require_disk_space(out, trained.model.get_memory_footprint())
    before = fingerprint(trained.model, "weights trained", watch)
    origin = trained.origin
    num_parameters = trained.model.num_parameters()
    with replaced(out) as new:
        watch("writing", 0, 1)
        _write(trained.model, place.model, new)
        write_cases(new, _trained_cases(place))
        del trained  # free memory for the model that was written
        gc.collect()
        written = load_model(new, "auto")
        merged = Merged(
            out=str(out),
            checkpoint=str(place.actor),
            step=place.step,
            world_size=origin.world_size,
            lora=origin.lora,
            dtype=str(written.dtype).removeprefix("torch."),
            num_tensors=len(before.digests),
            num_parameters=num_parameters,
            weights_sha256=before.weights_sha256,
            logits_difference=difference(fingerprint(written, "weights written", watch), before, str(out)),
        )
        (new / NOTE).write_text(_note(merged, place, origin, new, watch), encoding="utf-8")
    return merged


def _write(model: PreTrainedModel, described: Path, folder: Path) -> None:
    """Write the model to `folder`.

    Tokenizer, chat template and generation config are copied unchanged from `described`, the checkpoint's model folder.
    """
    # In memory, a mixture of experts has other tensor names than in published files, which vLLM reads. With None,
    # transformers restores the published names when it saves.
    model._weight_conversions = None
    with without_progress_bars():
        model.save_pretrained(folder, max_shard_size=_FILE_SIZE)
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)  # safetensors writes files that only their owner can read
    for path in described.iterdir():
        if path.is_file() and path.name not in ("config.json", NOTE) and not path.name.endswith(WEIGHT_ENDINGS):
            shutil.copyfile(path, folder / path.name)


def _trained_cases(place: StoredCheckpoint) -> Cases:
    """Return the benchmark cases that the model was trained on. Checkpoints of verl do not name them: the run does."""
    provenance = StoredRun.at(place.run.path).provenance if place.run else None
    return joined_cases(read_cases(place.model), provenance.benchmark_cases if provenance else {})


def _note(merged: Merged, place: StoredCheckpoint, origin: WeightSource, folder: Path, watch: Watch) -> str:
    facts = asdict(merged)
    source = {key: facts.pop(key) for key in ("checkpoint", "step", "world_size", "lora")}
    del facts["out"]  # the folder may be moved
    value = {
        "format": 1,
        "source": {**source, "files": _described(origin.files, place.actor, watch)},
        "merged": {**facts, "files": _described(files_below(folder), folder, watch)},
        "versions": {"egpo": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }
    return json.dumps(sealed(value), indent=1) + "\n"


def _described(files: Iterable[Path], root: Path, watch: Watch) -> dict[str, Any]:
    """Return size and digest of each file by its path relative to the root."""
    paths = list(files)
    described: dict[str, FileEntry] = {}
    for done, path in enumerate(paths):
        watch("digests", done, len(paths))
        described |= describe_files([path], root)
    return {name: asdict(entry) for name, entry in described.items()}
