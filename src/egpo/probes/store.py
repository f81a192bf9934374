"""`evals/probe.json`, and beside it `probe.svg`, the picture, and `probe.jsonl`, the responses."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError
from egpo.evals.samples import write_samples
from egpo.evals.store import Origin
from egpo.evals.store import as_json_value as evaluation_as_json
from egpo.files import write_atomically
from egpo.probes.picture import picture
from egpo.probes.probe import Probe
from egpo.reports.probe import PROBE

FORMAT = 1


def as_json_value(probe: Probe, origin: Origin) -> dict[str, Any]:
    """`evaluation` is what `egpo eval` would have written."""
    return {
        "format": FORMAT,
        "kind": "probe",
        "label": probe.evaluation.label,
        "pass_rates": probe.pass_rates,
        "reward_variance": None if probe.reward_variance is None else asdict(probe.reward_variance),
        "forecasts": [asdict(one) for one in probe.forecasts],
        "recommendation": asdict(probe.recommendation),
        "findings": [asdict(one) for one in probe.findings],
        "evaluation": evaluation_as_json(probe.evaluation, origin),
    }


def write_probe(folder: Path, probe: Probe, origin: Origin) -> Path:
    """The responses first: figures without them would be hearsay. The path of the figures."""
    path = folder / PROBE
    text = json.dumps(as_json_value(probe, origin), indent=2, ensure_ascii=False, default=str, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_samples(path.with_suffix(".jsonl"), probe.evaluation.samples)
        write_atomically(path.with_suffix(".svg"), picture(probe))
        write_atomically(path, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError as error:
        fix = "free some space or mend the permissions, or choose another --out"
        raise EgpoError(f"cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error
    return path
