"""The part of docs/reliability.md that is made from the source: the table of everything that is waited for."""

from pathlib import Path

from egpo.waits import NOTICE_S, WAITS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- waits: written by website/reliability_page.py -->\n", "<!-- end of waits -->\n"


def reliability_page() -> str:
    """Return the page with the table between its two marks as the source gives it now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{waits_table()}\n{END}{rest.partition(END)[2]}"


def waits_table() -> str:
    rows = ["| what is waited for | time limit | then | named on the screen |", "|---|---|---|---|"]
    for wait in WAITS.values():
        limit = wait.limit or f"none: {wait.unlimited}"
        named = wait.named_by or f"a line after {NOTICE_S:.0f} s"
        rows.append(f"| {wait.what} | {limit} | {wait.then or '-'} | {named} |")
    return "\n".join(rows) + "\n"
