"""Our reader of Python lists against Python's own: where ours accepts a text, Python gives the same values."""

import ast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egpo.tool_calls.calls import CallsError
from egpo.tool_calls.python_list import listed_calls

PIECES = [
    "f", "g.h", "(", ")", "[", "]", "{", "}", ",", "=", ":", " ", "\n", "'", '"', "'''", '"""', "\\", "-", "+", ".",
    "0", "1", "17", "1e3", "0x1f", ".5", "a", "b=", "'x'", '"y z"', "True", "None", "r'", "u'", "\\n", "\\x41", "\\101",
    "\\N{BULLET}", "\\d", "é", "a=1", "'k': ", "f(", "),", "#", "*", "_",
]  # fmt: skip

texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


def _by_python(text: str) -> list[tuple[str, dict]]:
    """The calls as `ast` sees them. Raises where Python has no such literal."""
    tree = ast.parse(text.strip(), mode="eval").body
    assert isinstance(tree, ast.List)
    return [_call(node) for node in tree.elts]


def _call(node: ast.expr) -> tuple[str, dict]:
    assert isinstance(node, ast.Call)
    positional = {f"arg_{at}": ast.literal_eval(argument) for at, argument in enumerate(node.args)}
    return ast.unparse(node.func), positional | {one.arg: ast.literal_eval(one.value) for one in node.keywords}


def _lists(value):
    """Tuples as lists, all the way down."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def _agree(text: str) -> bool:
    try:
        ours = [(call.name, dict(call.arguments)) for call in listed_calls(text)]
    except CallsError:
        return False
    theirs = [(name, _lists(arguments)) for name, arguments in _by_python(text)]
    assert repr([(name, _lists(arguments)) for name, arguments in ours]) == repr(theirs)
    return True


@pytest.mark.filterwarnings("ignore:invalid escape sequence", "ignore::SyntaxWarning")
@settings(max_examples=3000)
@given(texts)
@example("1, b='\\\n'")
@example("'''a\\''''b'")
@example('"""a"" """')
@example("-.5, b=- 1, c=+0x1F")
def test_what_we_accept_python_reads_alike(inside):
    _agree(f"[f({inside})]")
    _agree(f"[f(a={inside})]")
    _agree(inside)


@given(st.lists(literals, min_size=1, max_size=3))
def test_whatever_python_writes_we_read(values):
    assert _agree("[f(" + ", ".join(f"a{at}={value!r}" for at, value in enumerate(values)) + ")]")


@given(st.text())
def test_every_string_survives_in_every_quote(text):
    escaped = text.encode("unicode_escape", "surrogatepass").decode("ascii")
    for quote in ("'", '"', "'''", '"""'):
        literal = quote + escaped.replace("'", "\\'").replace('"', '\\"') + quote
        assert listed_calls(f"[f(a={literal})]")[0].arguments == {"a": text}
