"""The tests of a program, read from the ground truth of a row, and the names that they take from the program.

docs/rewards/code.md lists the forms of a ground truth.
"""

import ast
import builtins
import json
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError
from egpo.rewards.sandbox.jobs import Checks, Scripts

_IN_DATETIME = {"MAXYEAR", "MINYEAR", "UTC", "date", "datetime", "time", "timedelta", "timezone", "tzinfo"}


@dataclass(frozen=True)
class Names:
    """The names that tests use and do not define.

    `program`: names that are looked up in the program. `modules`: standard modules that the tests use without importing
    them; `module.name` is the attribute `name` of such a module.
    """

    program: tuple[str, ...]
    modules: tuple[str, ...]


def names_in(snippets: Iterable[str], entry_points: Iterable[str] = ()) -> Names:
    """Return the names that the snippets use and do not define: names of the program, and standard modules.

    - A name such as `abs` or `all` is Python's builtin, even if the program defines a function of this name. But if the
      snippets use no name that only the program can define, as in `assert sum(10, 15) == 6`, and there are no
      `entry_points`, the builtins that they call are taken from the program.
    - `entry_points` are always taken from the program.
    - `math.isclose(...)` without an import uses the standard module `math`; `datetime.now()` uses the class `datetime`
      of the module `datetime`.
    """
    snippets = list(snippets)
    free, bound = set[str](), set[str]()
    for snippet in snippets:
        table = symtable.symtable(snippet, "test", "exec")
        free |= set(_globals(table))
        bound |= {symbol.get_name() for symbol in table.get_symbols() if _is_bound(symbol)}
    free -= bound
    modules = {name for name in free & sys.stdlib_module_names if _is_base_of_attribute(name, snippets)}
    program = {name for name in free - modules if not hasattr(builtins, name)}
    program |= set(entry_points) or (set() if program else _called_builtins(snippets) - bound)
    if "datetime" in modules and not _attributes("datetime", snippets) <= _IN_DATETIME:
        modules = modules - {"datetime"} | {"datetime.datetime"}
    return Names(tuple(sorted(program)), tuple(sorted(modules)))


def takes_no_part(snippet: str, names: Names) -> bool:
    """Return whether a snippet uses nothing of the program or of other snippets, and defines nothing for them."""
    table = symtable.symtable(snippet, "test", "exec")
    used = {name for name in _globals(table) if name in names.program or not hasattr(builtins, name)}
    return not used - {module.partition(".")[0] for module in names.modules} and not any(
        map(_is_bound, table.get_symbols())
    )


def ignores_the_program(test: str, entry_point: str) -> bool:
    """Return whether `test` defines check(candidate) and uses neither its argument nor the program by name."""
    tree = ast.parse(test)
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    given = {argument.arg for node in checks for argument in node.args.args[:1]}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return bool(checks) and used.isdisjoint({entry_point, *given})


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _is_base_of_attribute(name: str, snippets: list[str]) -> bool:
    return bool(_attributes(name, snippets))


def _attributes(name: str, snippets: list[str]) -> set[str]:
    """Return the attributes of `name` that the snippets use."""
    nodes = (node for snippet in snippets for node in ast.walk(ast.parse(snippet)))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == name}


def _called_builtins(snippets: list[str]) -> set[str]:
    nodes = (node for snippet in snippets for node in ast.walk(ast.parse(snippet)))
    calls = (node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return {name for name in calls if hasattr(builtins, name)}


_WHERE = "code ground truth"
_FORMS = "give `inputs` and `outputs`, `assert`, `test` with `entry_point`, or `calls`"


@dataclass(frozen=True)
class Tests:
    """The tests of a program: what to run and, for whole programs, the expected output of each run."""

    work: Scripts | Checks
    outputs: tuple[str, ...] = ()

    # pytest would collect this class as tests, because of its name.
    __test__ = False


def read_tests(ground_truth: str | Mapping[str, Any] | Sequence[Any]) -> Tests:
    """Return the tests in `ground_truth`, a JSON string or its value. InputError if its form is unknown."""
    if isinstance(ground_truth, str):
        return _read_text(ground_truth)
    return _read(ground_truth)


@lru_cache(maxsize=4096)
def _read_text(text: str) -> Tests:
    """Read the tests in a JSON text. Cached: all samples of a problem have the same text."""
    try:
        return _read(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"the text is not JSON: {error}", where=_WHERE, fix=_FORMS) from None


def _read(value: Any) -> Tests:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = _from_cases(value)
    if not isinstance(value, Mapping):
        raise InputError(f"a {type(value).__name__} cannot contain tests", where=_WHERE, fix=_FORMS)
    for key, read in _READERS.items():
        if _filled(value.get(key)):
            return read(value)
    raise InputError(f"there are no tests under the keys {sorted(map(str, value))}", where=_WHERE, fix=_FORMS)


def _filled(value: object) -> bool:
    return isinstance(value, (str, Sequence)) and len(value) > 0


def _from_cases(cases: Sequence[Any]) -> dict[str, Any]:
    """Split a list of {"input": ..., "output": ...} into inputs and outputs."""
    if not cases or not all(isinstance(case, Mapping) and {"input", "output"} <= set(case) for case in cases):
        raise InputError("the list is empty or has an item without `input` or `output`", where=_WHERE, fix=_FORMS)
    return {"inputs": [case["input"] for case in cases], "outputs": [case["output"] for case in cases]}


def _from_pairs(value: Mapping[str, Any]) -> Tests:
    inputs, outputs = value["inputs"], value.get("outputs")
    if not isinstance(outputs, Sequence) or isinstance(outputs, str) or len(inputs) != len(outputs):
        raise InputError("`inputs` and `outputs` are not lists of the same length", where=_WHERE)
    if name := value.get("fn_name"):
        pairs = zip(inputs, outputs, strict=True)
        return _from_calls({"calls": [{"fn_name": name, **_parsed_pair(*pair)} for pair in pairs]})
    texts = tuple(map(_text, outputs))
    stdins = tuple(_text(item).encode("utf-8", "surrogatepass") for item in inputs)
    return Tests(Scripts(stdins, max(len(text.encode("utf-8", "replace")) for text in texts)), texts)


def _text(value: Any) -> str:
    """Return standard input or output as text. A list is joined as lines."""
    if isinstance(value, str):
        return value
    return "\n".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _parsed_pair(arguments: Any, expected: Any) -> dict[str, Any]:
    """Return the arguments and the expected value of a call.

    Arguments are given as a list, or as text with one JSON value per line. If the expected value is a list of
    one element, the element alone is accepted too, as in the dataset APPS.
    """
    if isinstance(arguments, str):
        arguments = [_json_or_text(line) for line in arguments.split("\n") if line.strip()]
    if isinstance(expected, str):
        expected = _json_or_text(expected)
    elif isinstance(expected, list) and len(expected) == 1:
        return {"args": arguments, "expected": expected[0], "or_expected": expected}
    return {"args": arguments, "expected": expected}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text


def _from_calls(value: Mapping[str, Any]) -> Tests:
    checks = []
    for position, call in enumerate(value["calls"]):
        if not isinstance(call, Mapping) or not isinstance(call.get("fn_name"), str) or "expected" not in call:
            raise InputError("the call has no `fn_name` or no `expected`", where=f"{_WHERE} [calls][{position}]")
        args, kwargs = call.get("args", []), call.get("kwargs", {})
        if not isinstance(args, Sequence) or isinstance(args, str) or not isinstance(kwargs, Mapping):
            what = "`args` is not a list, or `kwargs` is not an object"
            raise InputError(what, where=f"{_WHERE} [calls][{position}]")
        expected = [call["expected"], *([call["or_expected"]] if "or_expected" in call else [])]
        checks.append({"fn_name": call["fn_name"], "args": list(args), "kwargs": dict(kwargs), "expected": expected})
    return Tests(Checks(tuple(checks)))


def _from_asserts(value: Mapping[str, Any]) -> Tests:
    snippets = value.get("assert") or value["assert_case"]
    snippets = [snippets] if isinstance(snippets, str) else list(snippets)
    return _snippets(snippets, value)


def _from_check_function(value: Mapping[str, Any]) -> Tests:
    """Read HumanEval's form: `test` defines check(candidate), and `entry_point` names the candidate."""
    entry_point = value.get("entry_point")
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise InputError("`test` needs the name of the function under `entry_point`", where=_WHERE)
    test = str(value["test"])
    tests = _snippets([f"{test}\ncheck({entry_point})"], value)
    if ignores_the_program(test, entry_point):
        raise _tests_nothing(test)
    return tests


def _snippets(snippets: list[Any], value: Mapping[str, Any]) -> Tests:
    setup = value.get("setup") or ""
    entry_point = value.get("entry_point")
    try:
        names = names_in([setup, *snippets], [entry_point] if entry_point else [])
        idle = [snippet for snippet in snippets if not names.program or takes_no_part(snippet, names)]
    except (SyntaxError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the test code is not valid Python: {error}", where=_WHERE) from None
    if idle:
        raise _tests_nothing(idle[0])
    return Tests(Checks(tuple(snippets), names.program, names.modules, setup))


def _tests_nothing(snippet: str) -> InputError:
    fix = "give test code that calls the program, such as `assert f(2) == 4`"
    return InputError(f"`{snippet:.200}` tests nothing: any program would pass it", where=_WHERE, fix=fix)


_READERS: dict[str, Callable[[Mapping[str, Any]], Tests]] = {
    "assert": _from_asserts,
    "assert_case": _from_asserts,
    "test": _from_check_function,
    "calls": _from_calls,
    "inputs": _from_pairs,
}
