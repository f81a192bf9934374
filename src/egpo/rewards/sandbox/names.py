"""Which names a piece of test code takes from the program under test."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_IN_DATETIME = {"MAXYEAR", "MINYEAR", "UTC", "date", "datetime", "time", "timedelta", "timezone", "tzinfo"}


@dataclass(frozen=True)
class Names:
    """`program`: looked up in the program. `modules`: standard modules that the tests use without importing them.

    `module.name` is what the module holds under that name.
    """

    program: tuple[str, ...]
    modules: tuple[str, ...]


def names_in(snippets: Iterable[str], entry_points: Iterable[str] = ()) -> Names:
    """The free names of all snippets together, sorted by where they come from.

    - A builtin stays the builtin, whatever the program calls its functions: a program that defines `abs` or `all`
      must not lend them to its judge. Where the tests use no other name of the program (`assert sum(10, 15) == 6`),
      the builtins that they call are what is tested, and come from the program. `entry_points` always do.
    - `math.isclose(...)` without an import means the standard module; `datetime.now()` the class of that name.
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
    """Whether a snippet uses nothing of the program or of other snippets, and makes nothing that they could use."""
    table = symtable.symtable(snippet, "test", "exec")
    used = {name for name in _globals(table) if name in names.program or not hasattr(builtins, name)}
    return not used - {module.partition(".")[0] for module in names.modules} and not any(
        map(_is_bound, table.get_symbols())
    )


def ignores_the_program(test: str, entry_point: str) -> bool:
    """Whether `test` defines check(candidate) and never uses what it is given, nor the program by its name."""
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
    """The attributes of `name` that the snippets use."""
    nodes = (node for snippet in snippets for node in ast.walk(ast.parse(snippet)))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == name}


def _called_builtins(snippets: list[str]) -> set[str]:
    nodes = (node for snippet in snippets for node in ast.walk(ast.parse(snippet)))
    calls = (node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return {name for name in calls if hasattr(builtins, name)}
