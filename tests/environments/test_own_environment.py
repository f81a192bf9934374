"""The example of docs/environments.md is the file in `examples`, of at most 40 lines. tests/test_docs.py runs it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_the_example_as_it_is():
    source = (ROOT / "examples" / "my_environment.py").read_text()
    assert source in (ROOT / "docs" / "environments.md").read_text()
    assert len(source.splitlines()) <= 40
