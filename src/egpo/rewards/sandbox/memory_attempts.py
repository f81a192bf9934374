"""Programs that try to hold more memory than allowed, each in a different way.

LIMIT is `memory_mb` in bytes. Every program stops at twice LIMIT, prints how much memory it holds, and keeps that
memory for a moment so that it can be measured from outside.
"""

from egpo.rewards.sandbox.escapes import Attempt

_START = """\
import ctypes, mmap, os, signal, socket, sys, time
LIMIT = BAIT['memory_mb'] << 20
MB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
kept, children = [], []

def fill(target, step=MB):
    for at in range(0, len(target), step): target[at:at + step] = b'x' * min(step, len(target) - at)

def in_children(count, work):
    # `work` returns the bytes that it holds; all children hold at once.
    reader, writer = os.pipe()
    try:
        for index in range(count):
            pid = os.fork()
            if pid == 0:
                held = 0
                try: held = work(index)
                finally:
                    os.write(writer, b'%d\\n' % held)
                    time.sleep(30)
                    os._exit(0)
            children.append(pid)
    except OSError as error: print('refused:', error)
    os.close(writer)
    data, end = b'', time.time() + 4
    while data.count(b'\\n') < len(children) and time.time() < end:
        os.set_blocking(reader, False)
        try: data += os.read(reader, 4096)
        except BlockingIOError: time.sleep(0.01)
    return sum(map(int, data.split()))

def held(num_bytes):
    time.sleep(0.3)
    print('GOT THROUGH' if num_bytes > LIMIT else 'held:', num_bytes >> 20, 'MB')

"""
_END = "\nfor pid in children: os.kill(pid, signal.SIGKILL)\n"


def _holds(name: str, steps: str, wall_s: float = 10.0) -> Attempt:
    body = "\n".join("    " + line for line in steps.strip().splitlines())
    refused = "except Exception as error:\n    print('refused:', type(error).__name__, error)"
    return Attempt(name, f"{_START}\ntry:\n{body}\n{refused}{_END}", wall_s=wall_s)


HOLDS_MEMORY = (
    _holds("shared pages dropped from the page tables", """
def work(index):
    shared = mmap.mmap(-1, LIMIT * 3 // 4 // MB * MB)
    for at in range(0, len(shared), MB):
        shared[at:at + MB] = b'x' * MB
        shared.madvise(mmap.MADV_DONTNEED, at, MB)
    kept.append(shared)
    return len(shared)
held(in_children(2, work))
"""),
    _holds("shared pages of a process and of its children", """
own = mmap.mmap(-1, LIMIT * 7 // 10 // MB * MB)
for at in range(0, len(own), MB):
    own[at:at + MB] = b'x' * MB
    own.madvise(mmap.MADV_DONTNEED, at, MB)
def work(index):
    os.close(0)
    own.close()
    other = bytearray(LIMIT * 7 // 10)
    fill(other)
    kept.append(other)
    return len(other)
held(len(own) + in_children(1, work))
"""),
    _holds("copies made by forking", """
own = bytearray(LIMIT * 2 // 5)
fill(own)
def work(index):
    fill(own)
    return len(own)
held(len(own) + in_children(4, work))
"""),
    _holds("many processes", """
def work(index):
    own = bytearray(LIMIT // 3)
    fill(own)
    kept.append(own)
    return len(own)
held(in_children(6, work))
"""),
    _holds("connections that nobody accepts", """
server = socket.socket(socket.AF_UNIX)
server.bind('hoard')
server.listen(4096)
total = 0
while total < 2 * LIMIT:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    client.connect('hoard')
    try:
        while True: total += client.send(b'x' * 65536)
    except BlockingIOError: pass
    client.close()
held(total)
"""),
    _holds("sockets sent through sockets", """
def work(index):
    total, carrier = 0, socket.socketpair()
    try:
        while total < LIMIT // 2:
            left, right = socket.socketpair()
            left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
            left.setblocking(False)
            try:
                while True: total += left.send(b'x' * 65536)
            except BlockingIOError: pass
            socket.send_fds(carrier[0], [b'x'], [left.fileno(), right.fileno()])
    except OSError: pass
    kept.append(carrier)
    return total
held(work(0) + in_children(6, work))
"""),
    _holds("socket buffers", """
def work(index):
    total = 0
    try:
        while total < LIMIT:
            pair = socket.socketpair()
            kept.append(pair)
            for one in pair:
                try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
                except OSError: pass
                one.setblocking(False)
                try:
                    while True: total += one.send(b'x' * 65536)
                except BlockingIOError: pass
    except OSError: pass
    return total
held(work(0) + in_children(6, work))
"""),
    _holds("pipes", """
import fcntl
def work(index):
    total = 0
    try:
        while total < LIMIT:
            reader, writer = os.pipe()
            try: fcntl.fcntl(writer, 1031, MB)
            except OSError: pass
            os.set_blocking(writer, False)
            try:
                while True: total += os.write(writer, b'x' * 65536)
            except BlockingIOError: pass
    except OSError: pass
    return total
held(work(0) + in_children(6, work))
"""),
    _holds("large pages held by pipes", """
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
start = libc.mmap(None, 4 * MB, 3, 0x22, -1, 0)
page = (start + 2 * MB - 1) // (2 * MB) * (2 * MB)
libc.madvise(page, 2 * MB, 14)
class Piece(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
total = 0
while total < 2 * LIMIT:
    writer = os.pipe()[1]
    for slot in range(15):
        ctypes.memset(page, 120, 2 * MB)
        if libc.vmsplice(writer, ctypes.byref(Piece(page, 4096)), 1, 0) != 4096: raise OSError('vmsplice')
        libc.madvise(page, 2 * MB, 4)
        total += 2 * MB
held(total)
"""),
    _holds("files in memory, mapped and not, beside a full address space", """
total = 0
try:
    for name in range(200):
        with open(f'file-{name}', 'wb+') as file:
            for part in range(4): total += file.write(b'x' * (MB // 4))
            file.flush()
            kept.append(mmap.mmap(file.fileno(), 0))
            kept.pop().close()
except OSError as error: print('refused:', error)
size = LIMIT
while size > MB:
    try:
        own = bytearray(size)
        fill(own)
        kept.append(own)
        total += size
    except MemoryError: size //= 2
held(total)
"""),
    _holds("anonymous files", """
total = 0
while total < 2 * LIMIT:
    fd = os.memfd_create('hoard')
    for part in range(8): total += os.write(fd, b'x' * MB)
held(total)
"""),
    _holds("System V shared memory", """
total, names = 0, []
libc.shmat.restype = ctypes.c_void_p
while total < 2 * LIMIT:
    name = libc.shmget(0, 16 * MB, 0o1600)
    if name < 0: raise OSError('shmget')
    place = libc.shmat(name, None, 0)
    libc.shmctl(name, 0, None)
    if place in (None, ctypes.c_void_p(-1).value): raise OSError('shmat')
    ctypes.memset(place, 120, 16 * MB)
    total += 16 * MB
held(total)
"""),
    _holds("page tables", """
total, at = 0, 1 << 40
while total < 2 * LIMIT:
    # One page of its own for the content, one for each of the two lower tables.
    place = libc.mmap(at, 4096, 3, 0x100022, -1, 0)
    if place != at: raise OSError('mmap')
    ctypes.memset(place, 120, 1)
    total, at = total + 3 * 4096, at + (1 << 30)
held(total)
"""),
    _holds("attributes of files", """
total = 0
for name in range(900):
    open(f'file-{name}', 'x').close()
    for attribute in range(40):
        os.setxattr(f'file-{name}', f'user.{attribute}', b'x' * 60000)
        total += 60000
        if total > 2 * LIMIT: break
held(total)
"""),
    _holds("watches on files", """
total = 0
for name in range(900): open(f'file-{name}', 'x').close()
for instance in range(60):
    fd = libc.inotify_init()
    if fd < 0: raise OSError('inotify_init')
    for name in range(900): total += 200 * (libc.inotify_add_watch(fd, b'file-%d' % name, 2) >= 0)
held(total)
"""),
    _holds("timers", """
total = 0
while total < 2 * LIMIT:
    timer = ctypes.c_void_p()
    if libc.timer_create(1, None, ctypes.byref(timer)) != 0: raise OSError('timer_create', total)
    total += 400
held(total)
"""),
    _holds("stacks of threads", """
import threading
threading.stack_size(32 * MB)
sys.setrecursionlimit(10 ** 6)
def deep(left): return sorted([left], key=lambda x: deep(x - 1)) if left else time.sleep(2)
threads = []
try:
    for index in range(7):
        threads.append(threading.Thread(target=deep, args=(15000,), daemon=True))
        threads[-1].start()
except RuntimeError as error: print('refused:', error)
time.sleep(3)
held(0)
"""),
    _holds("values that grow up to the limit", """
import re
for grow in (
    lambda: [0] * 10 ** 10,
    lambda: 'x' * (LIMIT + 1),
    lambda: 1 << (8 * LIMIT),
    lambda: re.compile('(?:' * 90 + 'a{5}' + '){9}' * 90),
    lambda: compile('+'.join('1' * 10 ** 6), 'x', 'eval'),
    lambda: [kept.append(bytes(MB)) for _ in range(3000)],
):
    try: kept.append(grow())
    except (MemoryError, OverflowError, RecursionError, re.error) as error: print(type(error).__name__)
held(0)
""", wall_s=15.0),
    Attempt("a value that takes more memory when it is decoded", """\
import os
def f(x):
    count = 3 * 10 ** 6
    value = b'l' + count.to_bytes(4, 'big') + b'S\\0\\0\\0\\0' * count
    content = b't\\0\\0\\0\\3s\\0\\0\\0\\5value' + value + b'N'
    data = memoryview(b'%016x' % len(content) + content)
    while data: data = data[os.write(4, data):]
    return 1
""", forges=True),
)  # fmt: skip
