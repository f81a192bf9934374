"""The folder as a disk may hold it after a crash, at every point of a recorded command.

A file is data plus one or more names, as on a disk. Data is durable once its file is synced; a name, a rename or a
removal once its directory is. At each point, what is not durable may be there or not.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

KEPT, LOST, HALF, ZEROS = "kept", "lost", "cut in half", "zeros"


@dataclass
class _File:
    data: bytes = b""
    durable: bytes = b""
    history: list = field(default_factory=list)
    """(number of the operation, data after it) since the last sync."""


@dataclass
class _Link:
    target: str


@dataclass
class _Folder:
    names: dict = field(default_factory=dict)
    durable: dict = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """A content of the folder: path to bytes, None for a folder, or the target of a symbolic link as str."""

    entries: dict
    point: int
    variant: str

    def digest(self):
        digest = hashlib.sha256()
        for path, content in sorted(self.entries.items()):
            kind = "folder" if content is None else "link" if isinstance(content, str) else "file"
            value = b"" if content is None else content.encode() if isinstance(content, str) else content
            digest.update(f"{kind} {path} {len(value)}\n".encode())
            digest.update(value)
        return digest.hexdigest()

    def write(self, root):
        """Make the folder `root` have exactly this content."""
        root = Path(root)
        for path in root.iterdir() if root.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        root.mkdir(parents=True, exist_ok=True)
        for path, content in sorted(self.entries.items()):
            if content is None:
                (root / path).mkdir(parents=True, exist_ok=True)
            elif isinstance(content, str):
                os.symlink(content, root / path)
            else:
                (root / path).write_bytes(content)


def read_state(root):
    """The folder as it is."""
    entries = {}
    for path in sorted(Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            entries[name] = os.readlink(path)
        else:
            entries[name] = None if path.is_dir() else path.read_bytes()
    return State(entries, 0, "")


class Disk:
    """A folder to which recorded operations are applied. It starts durable."""

    def __init__(self, state):
        self.root = _Folder()
        self._count = 0
        self._pending = []
        """Changes of names that are not durable: (folders, [(folder, name, node or None)])."""
        for path, content in sorted(state.entries.items()):
            folder, name = self._parent(path)
            if content is None:
                node = _Folder()
            else:
                node = _Link(content) if isinstance(content, str) else _File(content, content)
            folder.names[name] = folder.durable[name] = node

    def apply(self, operation):
        getattr(self, f"_{operation.kind.replace(' ', '_')}")(operation)
        self._count += 1

    def states(self, point):
        """Yield the states that a crash now may leave."""
        for names in (KEPT, LOST):
            for data in (KEPT, LOST, HALF, ZEROS):
                entries = dict(_entries(self.root, names == KEPT, _CONTENT[data]))
                yield State(entries, point, f"names {names}, data {data}")

    # Operations

    def _node(self, path):
        node = self.root
        for part in () if path == "." else path.split("/"):
            node = node.names[part]
        return node

    def _parent(self, path):
        head, _, name = path.rpartition("/")
        return self._node(head or "."), name

    def _named(self, *changes):
        for folder, name, node in changes:
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
        self._pending.append(changes)

    def _create(self, operation):
        folder, name = self._parent(operation.path)
        if name not in folder.names:
            self._named((folder, name, _File()))

    def _mkdir(self, operation):
        self._named((*self._parent(operation.path), _Folder()))

    def _symlink(self, operation):
        self._named((*self._parent(operation.path), _Link(operation.other)))

    def _unlink(self, operation):
        self._named((*self._parent(operation.path), None))

    _rmdir = _unlink

    def _link(self, operation):
        self._named((*self._parent(operation.other), self._node(operation.path)))

    def _rename(self, operation):
        node = self._node(operation.path)
        self._named((*self._parent(operation.path), None), (*self._parent(operation.other), node))

    def _exchange(self, operation):
        one, other = self._node(operation.path), self._node(operation.other)
        self._named((*self._parent(operation.path), other), (*self._parent(operation.other), one))

    def _changed(self, path, data):
        file = self._node(path)
        file.data = data
        file.history.append((self._count, data))

    def _write(self, operation):
        data = self._node(operation.path).data
        start = len(data) if operation.offset < 0 else operation.offset
        padded = data[:start] + b"\0" * (start - len(data))
        self._changed(operation.path, padded + operation.data + data[start + len(operation.data) :])

    def _copy(self, operation):
        source = operation.other
        whole = Path(source).read_bytes() if os.path.isabs(source) else self._node(source).data
        data = self._node(operation.path).data
        self._changed(operation.path, data[: operation.offset] + whole[operation.offset :][: int(operation.data)])

    def _truncate(self, operation):
        data = self._node(operation.path).data
        self._changed(operation.path, data[: operation.offset] + b"\0" * (operation.offset - len(data)))

    def _extend(self, operation):
        data = self._node(operation.path).data
        self._changed(operation.path, data + b"\0" * (operation.offset - len(data)))

    def _sync(self, operation):
        self._make_durable(self._node(operation.path), operation.began)

    def _sync_all(self, operation):
        for node in list(_nodes(self.root)):
            self._make_durable(node, operation.began)

    def _make_durable(self, node, began):
        if isinstance(node, _File):
            before = [data for number, data in node.history if number < began]
            node.durable = before[-1] if before else node.durable
            node.history = [(number, data) for number, data in node.history if number >= began]
        elif isinstance(node, _Folder):
            self._commit(node)

    def _commit(self, folder):
        """Make the names in a folder durable, and earlier changes of the other folder of a rename with them."""
        wanted, chosen = {id(folder)}, set()
        for index in range(len(self._pending) - 1, -1, -1):
            touched = {id(one) for one, _, _ in self._pending[index]}
            if touched & wanted:
                wanted |= touched
                chosen.add(index)
        for index in sorted(chosen):
            for place, name, node in self._pending[index]:
                if node is None:
                    place.durable.pop(name, None)
                else:
                    place.durable[name] = node
        self._pending = [changes for index, changes in enumerate(self._pending) if index not in chosen]


def _common(one, other):
    """The length of what two contents begin with alike."""
    if other.startswith(one):
        return len(one)
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other))


def _zeros(file):
    same = _common(file.durable, file.data)
    return file.data[:same] + b"\0" * (len(file.data) - same)


def _half(file):
    same = _common(file.durable, file.data)
    return file.data[: same + (len(file.data) - same) // 2]


_CONTENT = {
    KEPT: lambda file: file.data,
    LOST: lambda file: file.durable,
    HALF: lambda file: _half(file) if file.history else file.data,
    ZEROS: lambda file: _zeros(file) if file.history else file.data,
}


def _entries(folder, current, content, prefix=""):
    for name, node in (folder.names if current else folder.durable).items():
        path = prefix + name
        if isinstance(node, _Folder):
            yield path, None
            yield from _entries(node, current, content, path + "/")
        else:
            yield path, node.target if isinstance(node, _Link) else content(node)


def _nodes(folder):
    yield folder
    for node in folder.names.values():
        if isinstance(node, _Folder):
            yield from _nodes(node)
        else:
            yield node


def replayed(start, operations):
    """The folder after all operations."""
    disk = Disk(start)
    for operation in operations:
        disk.apply(operation)
    return next(disk.states(len(operations)))


def crash_states(start, operations):
    """Return the distinct states that a crash may leave, the first point of each, in order."""
    disk, found = Disk(start), {}
    for point in range(len(operations) + 1):
        for state in disk.states(point):
            found.setdefault(state.digest(), state)
        if point < len(operations):
            disk.apply(operations[point])
    return list(found.values())
