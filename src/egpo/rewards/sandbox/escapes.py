"""Programs that try to get out of a sandbox, to use up the machine, or to pass a test that they fail.

Each program must do no harm even if root runs it without a sandbox: its effects are limited and undone, or there are
none. The variable BAIT has the targets that the audit prepares on the host.
"""

from dataclasses import dataclass

GOT_THROUGH = "GOT THROUGH"


@dataclass(frozen=True)
class Attempt:
    """A program that tries to escape. It prints GOT_THROUGH if it succeeds.

    `ends`: the outcomes that show that a limit works; with any other outcome the program succeeds. `forges`: the
    program is run against tests that it should fail, and succeeds if one passes. `wall_s`: its wall-clock limit in
    seconds, large except for programs that are meant to reach it.
    """

    name: str
    program: str
    ends: tuple[str, ...] = ()
    forges: bool = False
    wall_s: float = 10.0


def _tries(steps: str) -> str:
    """Return a program that runs `steps`; an exception in them means that the attempt failed."""
    body = "\n".join("    " + line for line in steps.strip().splitlines())
    return f"try:\n{body}\nexcept BaseException as error:\n    print('refused:', type(error).__name__, error)\n"


_C = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"

REACHES_OUT = (
    Attempt("read a host file", _tries("print('GOT THROUGH', open(BAIT['file']).read())")),
    Attempt("read the host's accounts", _tries("print('GOT THROUGH', open('/etc/passwd').read()[:60])")),
    Attempt("list the host's home", _tries("import os\nprint('GOT THROUGH', os.listdir(BAIT['home'])) if "
            "set(os.listdir(BAIT['home'])) - set(BAIT['allowed']) else print('only the interpreter')")),
    Attempt("read the host's environment", _tries(
        "import os\nprint('GOT THROUGH' if BAIT['variable'] in os.environ else 'only', sorted(os.environ))")),
    Attempt("read another process' environment", _tries(
        "print('GOT THROUGH', open('/proc/%d/environ' % BAIT['pid']).read()[:60])")),
    Attempt("write a host file", _tries("open(BAIT['file'], 'a').write('x')\nprint('GOT THROUGH')")),
    Attempt("write beside the interpreter", _tries(
        "import os\npath = os.path.join(os.path.dirname(os.__file__), 'egpo-audit')\n"
        "open(path, 'w').close()\nos.unlink(path)\nprint('GOT THROUGH', path)")),
    Attempt("leave a file in the host's /tmp", _tries(
        "import os\nopen('/tmp/' + BAIT['marker'], 'w').close()\n"
        "print('the host\\'s' if os.path.exists(BAIT['folder']) else 'private')")),
    Attempt("connect to a host port", _tries(
        "import socket\nsocket.create_connection(('127.0.0.1', BAIT['port']), 1)\nprint('GOT THROUGH')")),
    Attempt("send a packet", _tries(
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))\n"
        "print('GOT THROUGH')")),
    Attempt("open a socket to the hypervisor", _tries("import socket\nsocket.socket(40, 1, 0)\nprint('GOT THROUGH')")),
    Attempt("connect to a host's Unix socket", _tries(
        "import socket\nsocket.socket(socket.AF_UNIX).connect(BAIT['socket'])\nprint('GOT THROUGH')")),
    Attempt("signal a host process", _tries("import os\nos.kill(BAIT['pid'], 0)\nprint('GOT THROUGH')")),
    Attempt("become root", _tries("import os\nos.setuid(0)\nprint('GOT THROUGH', os.getuid())")),
    Attempt("make a device", _tries(
        "import os\nos.mknod('disk', 0o60600, os.makedev(254, 0))\nos.unlink('disk')\nprint('GOT THROUGH')")),
    Attempt("new user namespace", _tries(_C + "print('GOT THROUGH' if libc.unshare(0x10000000) == 0 else 'refused')")),
    Attempt("mount something", _tries(
        # A file system that does not exist: with the right to mount the answer is ENODEV, without it EPERM.
        _C + "libc.mount(b'x', b'/tmp', b'no-such-fs', 0, None)\n"
        "print('refused' if ctypes.get_errno() == 1 else 'GOT THROUGH')")),
    Attempt("raise its own limits", _tries(
        "import resource\nbig = 1 << 40\nresource.setrlimit(resource.RLIMIT_AS, (big, big))\nprint('GOT THROUGH')")),
    Attempt("trace the supervisor", _tries(
        _C + "import os\nprint('GOT THROUGH' if libc.ptrace(0x4206, os.getppid(), 0, 0) == 0 else 'refused')")),
    Attempt("read the supervisor's memory", _tries(
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')\nprint('GOT THROUGH')")),
    Attempt("open the supervisor's descriptors", _tries(
        "import os\nprint('GOT THROUGH', os.listdir(f'/proc/{os.getppid()}/fd'))")),
    Attempt("take over a supervisor's descriptor", _tries(
        _C + "import os\nfd = libc.syscall(434, os.getppid(), 0)\n"
        "print('GOT THROUGH' if fd < 0 or libc.syscall(438, fd, 0, 0) >= 0 else 'refused')")),
)  # fmt: skip

USES_UP = (
    Attempt("endless loop", "while True: pass", ends=("timeout", "signal")),
    Attempt("endless sleep", "import time\ntime.sleep(1000)", ends=("timeout",), wall_s=2.0),
    Attempt("endless output", "while True: print('x' * 1000)", ends=("output", "timeout")),
    Attempt("memory bomb", "x = bytearray(1 << 30)\nprint('GOT THROUGH')", ends=("exit",)),
    Attempt("memory bomb of many processes", """\
import os, time
for _ in range(7):
    if os.fork() == 0:
        x = bytearray(150 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        time.sleep(8)
        os._exit(0)
time.sleep(8)
print('GOT THROUGH')
""", ends=("memory", "exit")),
    Attempt("fork bomb", """\
import os, time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(1)
            os._exit(0)
        made += 1
except OSError as error:
    print('refused:', error)
print('GOT THROUGH' if made >= 200 else 'processes:', made)
""", ends=("exit",)),
    Attempt("disk fill", """\
written = 0
try:
    for name in range(48):
        with open(f'fill-{name}', 'wb') as file: file.write(bytes(2 << 20))
        written += 2
except OSError as error:
    print('refused:', error)
print('GOT THROUGH' if written >= 96 else 'MB:', written)
"""),
    Attempt("too many empty files", """\
for name in range(40000): open(f'empty-{name}', 'x').close()
print('GOT THROUGH')
""", ends=("files",)),
    Attempt("too many links, with closed output", """\
import os
os.close(1), os.close(2)
for name in range(40000): os.symlink('x', f'link-{name}')
""", ends=("files",)),
    Attempt("huge file", _tries("open('huge', 'wb').write(bytes(60 << 20))\nprint('GOT THROUGH')")),
    Attempt("daemon that outlives the program", """\
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(30)', BAIT['marker']])
    os._exit(0)
print('started')
"""),
    Attempt("kill the supervisor", """\
import os, signal, time
supervisor = os.getppid()
for number in (9, 19, 15, 2, 14, 1):
    try:
        # If the first signal has worked, the parent is another process.
        if os.getppid() == supervisor: os.kill(supervisor, number)
    except OSError as error: print('refused:', error)
time.sleep(0.2)
print('sent')
""", ends=("exit",)),
)  # fmt: skip

FORGES = (
    Attempt("exit with code 0 during a test", "import os\ndef f(x): os._exit(0)", forges=True),
    Attempt("exit with code 0 while loading", "import os\nos._exit(0)", forges=True),
    Attempt("raise SystemExit while loading", "raise SystemExit(0)", forges=True),
    Attempt("a value that equals everything", """\
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
def f(x): return Yes()
""", forges=True),
    Attempt("a number that equals everything", """\
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Yes(1)
""", forges=True),
    Attempt("patched builtins", """\
import builtins
for name in ('abs', 'all', 'any', 'sorted', 'isinstance', 'len', 'round', 'AssertionError'):
    setattr(builtins, name, lambda *args, **kwargs: True)
    globals()[name] = lambda *args, **kwargs: True
def f(x): return 1
""", forges=True),
    Attempt("patched comparison", """\
import sys
for name, module in list(sys.modules.items()):
    for wanted in ('same', 'run_checks', '_run', '_attempt', '_timed'):
        if hasattr(module, wanted):
            setattr(module, wanted, lambda *args, **kwargs: ('ok', b''))
def f(x): return 1
""", forges=True),
    Attempt("print the verdict on every channel", """\
import os
def f(x):
    for fd in range(256):
        try: os.write(fd, b'ok 0 0 0\\n' * 3)
        except OSError: pass
    return 1
""", forges=True),
    Attempt("send an answer before it is asked for", """\
import os
def f(x):
    for fd in range(3, 256):
        for content in (b't\\0\\0\\0\\3s\\0\\0\\0\\5valueTN', b't\\0\\0\\0\\3s\\0\\0\\0\\5valueNN'):
            try: os.write(fd, b'%016x' % len(content) + content)
            except OSError: pass
    return 1
""", forges=True),
    Attempt("look for the expected value", """\
import ctypes, gc, os, re, sys
def parts():
    for value in gc.get_objects():
        if isinstance(value, (list, tuple, dict)):
            yield from value.values() if isinstance(value, dict) else value
    frame = sys._getframe()
    while frame:
        yield from frame.f_locals.values()
        frame = frame.f_back
    for fd in {*range(256)} - {0, 3}:
        try:
            os.set_blocking(fd, False)
            yield os.read(fd, 1 << 20)
        except OSError: pass
def f(x):
    for part in parts():
        if type(part) is int and part > 10 ** 11 and part % 1000003 == 17: return part
        if isinstance(part, (str, bytes)):
            for found in re.findall('[0-9]{12,}', str(part)):
                if int(found) % 1000003 == 17: return int(found)
    return 1
""", forges=True),
    Attempt("a number with operators of its own", """\
class Yes(int):
    def __sub__(self, other): return 0
    __rsub__ = __abs__ = __call__ = __sub__
    def __lt__(self, other): return True
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __enter__(self): return self
    def __exit__(self, *error): return True
def f(x): return Yes(1)
""", forges=True),
    Attempt("an object that pretends to be of another class", """\
class Yes:
    __class__ = property(lambda self: int)
    def __eq__(self, other): return True
    def __reduce__(self): return int, (1,)
    def __index__(self): return 1
    def __sub__(self, other): return 0
    __abs__ = __rsub__ = __sub__
    def __lt__(self, other): return True
Yes.__module__, Yes.__qualname__ = 'builtins', 'range'
Yes.start, Yes.stop, Yes.step = 1, 2, 1
def f(x): return Yes()
""", forges=True),
    Attempt("a context manager that suppresses exceptions", """\
class Yes:
    def __enter__(self): return 1
    def __exit__(self, *error): return True
    async def __aenter__(self): return 1
    async def __aexit__(self, *error): return True
def f(x): return Yes()
""", forges=True),
    Attempt("an object that contains everything", """\
class Yes(list):
    def __contains__(self, value): return True
    def __eq__(self, other): return True
    def __len__(self): return 1
    def __iter__(self): return iter([Yes()])
def f(x): return Yes()
""", forges=True),
    *(
        Attempt(f"the test's own exception under another name: {name}", f"{define}\ndef f(x): return 1", forges=True)
        for name, define in {
            "AssertionError": "E = AssertionError",
            "Exception": "E = Exception",
            "BaseException": "E = BaseException",
            "a tuple": "E = (AssertionError, Exception)",
            "a subclass": "class E(AssertionError): pass",
            "a class that accepts every instance": (
                "class Meta(type):\n    def __instancecheck__(c, x): return True\n"
                "    def __subclasscheck__(c, x): return True\nclass E(Exception, metaclass=Meta): pass"
            ),
            "a class that claims to be builtin": (
                "class E(Exception): pass\nE.__module__, E.__name__, E.__qualname__ = "
                "'builtins', 'AssertionError', 'AssertionError'"
            ),
        }.items()
    ),
    Attempt("an exception that a test runner treats specially", """\
import unittest
E = unittest.SkipTest
def f(x): raise unittest.SkipTest('not today')
""", forges=True),
    Attempt("an exception raised by a comparison", """\
class E(Exception): pass
class Yes(list):
    def __iter__(self): raise E
    def __eq__(self, other): raise E
    def __hash__(self): raise E
def f(x): return Yes()
""", forges=True),
    Attempt("a coroutine that equals everything", """\
class Yes:
    def __eq__(self, other): return True
async def f(x): return Yes()
""", forges=True),
    Attempt("a class whose bases never end", """\
import sys
class Meta(type):
    __bases__ = property(lambda cls: (type('Next', (cls,), {}),))
class Yes(metaclass=Meta): pass
def f(x): return Yes()
""", forges=True),
    Attempt("end the test's loop by StopIteration", "def f(x): raise StopIteration", forges=True),
    Attempt("raise the test's own exception", "def f(x): raise AssertionError", forges=True),
    Attempt("a deeply nested value", """\
def f(x):
    value = []
    for _ in range(100000): value = [value]
    return value
""", forges=True),
    Attempt("a value that contains itself", """\
def f(x):
    value = []
    value.append(value)
    return value
""", forges=True),
)  # fmt: skip

ESCAPES = (*REACHES_OUT, *USES_UP, *FORGES)
