"""One message format, and errors that survive the way between processes."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from egpo.errors import ConfigError, EgpoError, Fault, InputError, how_it_ended, nearest

ERRORS = [
    EgpoError("the disk is full", where="runs/x", fix="make room"),
    InputError("no such file", where="a.yaml"),
    ConfigError([Fault("unknown key `clp`", "a.yaml [update]", "did you mean `clip`?"), Fault("`lr` is -1", "a.yaml")]),
]


def test_a_message_says_where_what_and_what_to_do():
    assert str(ERRORS[0]) == "runs/x: the disk is full; make room"
    assert str(ERRORS[2]) == "a.yaml [update]: unknown key `clp`; did you mean `clip`?\na.yaml: `lr` is -1"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_are_pickled_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.faults == error.faults
    assert again.exit_code == error.exit_code


def test_the_nearest_name_or_all_of_them():
    assert nearest("egop", ["grpo", "egpo"]) == "did you mean `egpo`?"
    assert nearest("xyz", ["b", "a"]) == "choose from `a`, `b`"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with code 0"),
        (1, "ended with code 1"),
        (-15, "was ended by SIGTERM"),
        (-9, "was ended by SIGKILL"),
        (137, "was ended by SIGKILL (code 137)"),
        (-64, "was ended by SIGRTMAX"),
        (-40, "was ended by signal 40"),
        (255, "ended with code 255"),
    ],
)
def test_an_exit_code_is_said_in_words(code, said):
    assert how_it_ended(code) == said


ADVISES_THE_INDEX = re.compile(r"install\b[^,;:\n]*(?<![\w./-])egpo(?![\w./-])")
ROOT = Path(__file__).parents[1]


def string_literals(path):
    """Every literal of a module; what an f-string computes stands as `{}`."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


@pytest.mark.parametrize(
    ("text", "advises"),
    [
        ("pip install 'egpo[verl]'", True),
        ("pip install --no-deps egpo", True),
        ("pip install verl TransferQueue egpo", True),
        ("pip install 'egpo[{}]', or leave it out", True),
        ("install egpo beside verl", True),
        ("pip install '.[verl]'", False),
        ("pip install peft, which egpo uses", False),
        ("pip install verl, then in a clone of egpo: pip install .", False),
    ],
)
def test_advice_to_install_egpo_by_its_name_is_recognised(text, advises):
    assert bool(ADVISES_THE_INDEX.search(text)) is advises


def test_no_message_advises_to_install_egpo_from_the_index():
    """The name is not on the package index: `pip install egpo` fails, or installs something else."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in string_literals(path)
        if ADVISES_THE_INDEX.search(text)
    ]
    assert found == []


def test_no_page_advises_to_install_egpo_from_the_index():
    shown = ("docs/**/*.md", "src/egpo/recipes/**/*.yaml", "examples/*.*")
    pages = [ROOT / "README.md", *(path for pattern in shown for path in ROOT.glob(pattern))]
    found = [
        f"{page.relative_to(ROOT)}: {command}"
        for page in pages
        if page.is_file()
        for command in re.findall(r"pip install[^`\n]*", page.read_text())
        if ADVISES_THE_INDEX.search(command.partition("#")[0])
    ]
    assert found == []
