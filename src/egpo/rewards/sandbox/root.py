"""What a sandboxed interpreter can see of the file system: itself, its standard library, and the C libraries."""

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path


@cache
def interpreter() -> str:
    """The real executable behind this interpreter, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def root_options(packages: tuple[str, ...] = ()) -> tuple[str, ...]:
    """bubblewrap's options for a minimal read-only root, with the directories of `packages` in it."""
    options: list[str] = []
    paths = _needed(packages)
    # bubblewrap would close these as the host has them (/root), and the program's user has to pass through.
    for parent in sorted({str(parent) for path in paths for parent in Path(path).parents} - {"/"}):
        options += ["--perms", "0755", "--dir", parent]
    for path in paths:
        options += ["--ro-bind", path, path]
    for hidden in set(_hidden()) - {os.path.realpath(package) for package in packages}:
        options += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    for link in ("/lib", "/lib64", "/lib32"):
        # On most systems these are links into /usr; elsewhere they are directories like any other.
        if os.path.islink(link):
            options += ["--symlink", os.readlink(link), link]
    return tuple(options)


def _needed(packages: tuple[str, ...]) -> list[str]:
    """Paths to bind, none inside another."""
    wanted = [interpreter(), *_libraries(), *_c_libraries(), *packages]
    paths = sorted({path for path in map(os.path.realpath, wanted) if os.path.exists(path)})
    return [path for path in paths if not any(path.startswith(other + "/") for other in paths)]


def _libraries() -> list[str]:
    """The standard library. An interpreter with a prefix of its own (pyenv, conda, uv) keeps libraries beside it."""
    standard = [sysconfig.get_path("stdlib"), *(path for path in sys.path if path.endswith("lib-dynload"))]
    private = Path(sys.base_prefix) / "lib"
    return standard if sys.base_prefix in ("/", "/usr") else [*standard, str(private)]


def _c_libraries() -> list[str]:
    """The directories of the C library and of the program loader, as this process has them mapped."""
    found = {"/usr/lib64"}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            name = path.rpartition("/")[2]
            if name.startswith(("libc.so", "libc-", "ld-linux", "ld-musl")):
                found.add("/" + path.rpartition("/")[0])
    return sorted(found) + [path for path in ("/lib64",) if not os.path.islink(path)]


def _hidden() -> list[str]:
    """Packages installed beside the interpreter: none of a program's business."""
    library = Path(sysconfig.get_path("stdlib"))
    return [str(path) for path in (library / "site-packages", library / "dist-packages") if path.is_dir()]
