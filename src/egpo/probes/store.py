"""The files of a probe: `probe.json` with the results, `probe.jsonl` with the responses, `probe.svg` with a plot.

The plot shows how often prompts are solved, and the forecast share of informative groups by group size.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError
from egpo.evals.evaluate import Origin
from egpo.evals.evaluate import as_json_value as evaluation_as_json
from egpo.evals.responses import write_samples
from egpo.files import write_atomically
from egpo.fingerprints import sealed
from egpo.probes.findings import ENOUGH
from egpo.probes.forecast import Forecast
from egpo.probes.probe import Probe
from egpo.reports.pass_rates import Bar, histogram
from egpo.runs.folder import PROBE

_WIDTH, _HEIGHT = 840, 330
_TOP, _BOTTOM = 76, 268
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:14px;font-weight:600}.soft{fill:#777}"
    ".bar{fill:#3b6fb6}.edge{fill:#b9c4d3}.line{stroke:#ddd}.enough{stroke:#999;stroke-dasharray:4 4}"
    ".share{stroke:#3b6fb6;stroke-width:2;fill:none}.end{stroke:#3b6fb6}.dot{fill:#3b6fb6}"
    ".fit{fill:#fff;stroke:#3b6fb6;stroke-width:2}.chosen{fill:#d9622b;font-weight:600}.ring{fill:none;stroke:#d9622b;"
    "stroke-width:2}"
)


@dataclass(frozen=True)
class _Panel:
    """One of the two charts of the plot, from `left` to `right` in pixels. Heights are shares from 0 to 1."""

    left: float
    right: float

    def x(self, place: float, count: int) -> float:
        """Return the x coordinate of the middle of column number `place` (from 0) of `count` columns."""
        return self.left + (place + 0.5) * (self.right - self.left) / count

    def y(self, share: float) -> float:
        return _BOTTOM - share * (_BOTTOM - _TOP)


def picture(probe: Probe) -> str:
    """Return the plot of a probe as a self-contained SVG with a white background."""
    label = f"{probe.evaluation.label}: {probe.evaluation.exam.task}, {len(probe.pass_rates)} training prompts"
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_safe(label)}">',
        f'<style>{_STYLE}</style><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(24, 26, label, "title"),
        *_bars(_Panel(24, 400), histogram(list(probe.pass_rates.values()))),
        *_shares(_Panel(480, 816), probe.forecasts, probe.recommendation.group_size),
        "</svg>",
    ]
    return "\n".join(shapes) + "\n"


def _bars(panel: _Panel, bars: Sequence[Bar]) -> Iterator[str]:
    yield _text(panel.left, 54, "prompts by pass rate", "soft")
    for place, bar in enumerate(bars):
        x, y = panel.x(place, len(bars)), panel.y(bar.height / 100)
        # Prompts that are never or always solved have no gradient.
        kind = "edge" if place in (0, len(bars) - 1) else "bar"
        yield f'<rect class="{kind}" x="{x - 12:.1f}" y="{y:.1f}" width="24" height="{_BOTTOM - y:.1f}"/>'
        yield _text(x, y - 5, str(bar.count), middle=True)
        yield _text(x, _BOTTOM + 18, bar.label, middle=True)


def _shares(panel: _Panel, forecasts: Sequence[Forecast], chosen: int | None) -> Iterator[str]:
    yield _text(panel.left, 54, "groups whose rewards differ, by group size", "soft")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield _level(panel, share, "line")
        yield _text(panel.left - 40, panel.y(share) + 4, f"{share:.0%}", "soft")
    yield _level(panel, ENOUGH, "enough")
    places = [(panel.x(i, len(forecasts)), one) for i, one in enumerate(forecasts)]
    points = " ".join(f"{x:.1f},{panel.y(one.informative.value):.1f}" for x, one in places)
    yield f'<polyline class="share" points="{points}"/>'
    for x, one in places:
        yield from _share(panel, x, one, one.group_size == chosen)
    yield _text(
        panel.left, _BOTTOM + 44, "○ extrapolated · vertical line: 95 % interval · dashed: sufficient (70 %)", "soft"
    )


def _share(panel: _Panel, x: float, one: Forecast, is_chosen: bool) -> Iterator[str]:
    estimate, y = one.informative, panel.y(one.informative.value)
    if estimate.low is not None and estimate.high is not None:
        low, high = panel.y(estimate.low), panel.y(estimate.high)
        yield f'<line class="end" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    yield f'<circle class="{"fit" if one.extrapolated else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if is_chosen:
        yield f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
    yield _text(x, _BOTTOM + 18, f"G = {one.group_size}", "chosen" if is_chosen else "", middle=True)


def _level(panel: _Panel, share: float, kind: str) -> str:
    y = panel.y(share)
    return f'<line class="{kind}" x1="{panel.left}" x2="{panel.right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", *, middle: bool = False) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchor}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    """Escape a label for XML. Control characters, which XML forbids even if escaped, become question marks."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


FORMAT = 1


def as_json_value(probe: Probe, origin: Origin) -> dict[str, Any]:
    """Return the content of `probe.json`; `evaluation` has the format of `egpo eval`."""
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
    """Write the three files of a probe and return the path of `probe.json`, which is written last, so that it never
    exists without the responses."""
    path = folder / PROBE
    text = json.dumps(sealed(as_json_value(probe, origin)), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_samples(path.with_suffix(".jsonl"), probe.evaluation.samples)
        write_atomically(path.with_suffix(".svg"), picture(probe))
        write_atomically(path, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError as error:
        fix = "free some disk space or fix the permissions, or choose another --out"
        raise EgpoError(f"the probe cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error
    return path
