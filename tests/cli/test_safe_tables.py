"""Tables of what a model wrote: at any width all of it is there, as it was written, and nothing is obeyed."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from egpo.cli.tables import cell, printable, safe_table

MARKUP = [":heart:", "[red]x[/red]", "[/]", "\\[b]"]
HOSTILE = [*MARKUP, "ends in \\", "\x1b[31m\u202e\0\ud800", "a\nb", "日本語" * 40, "x" * 300]


def printed(what, width, **settings):
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False, **settings).print(what)
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_too_wide_goes_on_in_the_next_line_and_nothing_is_lost(text, width):
    _, _, _, *rows = printed(safe_table("", ("a",), [(text,)]), width)
    assert "".join("".join(rows).split()) == "".join(printable(text).split())
    for line in printed(safe_table(text, (text, text), [(text, "1")] * 2), width):
        assert line.isprintable()
        assert cell_len(line) <= width


@pytest.mark.parametrize("text", MARKUP)
def test_a_line_is_as_it_was_written(text):
    assert printed(f"[bold]{cell(text)}[/]", 80, emoji=False) == [text]
