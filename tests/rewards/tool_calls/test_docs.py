"""The page lists what the code says."""

from pathlib import Path

from egpo.rewards.tool_calls import REASONS

PAGE = Path(__file__).resolve().parents[3] / "docs/rewards/tool_calls.md"


def test_every_reason_is_documented():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    documented = dict(line.strip("| ").split(" | ") for line in rows)
    modes = {"`strict_think`", "`plain`", "`shaped`"}
    assert {key: meaning for key, meaning in documented.items() if key not in modes} == {
        f"`{reason}`": meaning for reason, meaning in REASONS.items()
    }
