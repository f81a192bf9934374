"""Programs that try to make their own verdict `failed` in the sandbox: the strategies, and the tests they run against.

Each strategy has several programs, and each program runs against a script's tests and against a function's tests. None
of them is right: the function is never defined, or returns nothing that the tests accept.
"""

# ruff: noqa: E501 - a program of a table is one line

from collections.abc import Iterator, Mapping
from typing import Any

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import Limits
from egpo.rewards.verdict import Verdict

LIMITS = Limits(wall_s=2.0, cpu_s=2, total_s=8.0)
SCRIPT: Mapping[str, Any] = {"inputs": ["1\n", "2\n"], "outputs": ["a right line\n", "another\n"]}
FUNCTION: Mapping[str, Any] = {"assert": ["assert solve(1) == 'a right value'", "assert solve(2) == 'another'"]}
_C = "import ctypes\nlibc = ctypes.CDLL(None)\n"

STRATEGIES: dict[str, tuple[str, ...]] = {
    "exit codes": (
        *(
            f"import os\nos._exit({code})"
            for code in (0, 1, 2, 3, 24, 42, 77, 99, 124, 125, 126, 127, 128, 137, 139, 143, 254, 255)
        ),
        "import sys\nsys.exit('text')",
        "import sys\nsys.exit(10**30)",
        "raise SystemExit(None)",
        "import sys\nsys.exit(-1)",
    ),
    "signals to itself": tuple(
        f"import os, signal\nos.kill(os.getpid(), {number})\nsignal.pause()"
        for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 23, 24, 25, 26, 27, 29, 31)
    ),
    "signals to its parents": tuple(
        f"import os\nos.kill({who}, {number})"
        for who in ("os.getppid()", "1", "0", "-1", "-os.getpgrp()")
        for number in (2, 9, 15, 19)
    ),
    "the result pipe": (
        "import os\nfor fd in range(0, 256):\n    try: os.write(fd, b'ready 0 0 0\\nok 0 0 0\\n')\n    except OSError: pass",
        "import os\nfor fd in range(0, 256):\n    try: os.close(fd)\n    except OSError: pass",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff' * 4096)\n    except OSError: pass",
        "import os\nos.closerange(0, 65536)",
        "import os\nfor fd in range(3, 64):\n    try:\n        while os.read(fd, 65536): pass\n    except OSError: pass",
        "import os\nfor fd in range(3, 64):\n    try: os.dup2(1, fd)\n    except OSError: pass\nprint('x')",
        "import sys\nsys.stdout.close()\nsys.stderr.close()",
        "import os\nos.dup2(1, 2)\nos.write(2, b'exit 0 1 0\\nx')",
    ),
    "forged records": (
        "print('ready 0 0 0')\nprint('exit 0 12 0')\nprint('a right line')",
        "print('exit 0 -1 -1')",
        "print('exit 99999999999999999999 0 0')",
        "import sys\nsys.stdout.buffer.write(b'\\x00' * 99)",
        "import sys\nsys.stdout.buffer.write(b'exit 0 999999999 0\\n')",
        "import sys\nprint('sandbox_died', file=sys.stderr)",
        "import sys\nsys.stderr.write('MemoryError')\nsys.exit(1)",
        "raise type('bad_test', (Exception,), {})",
        "raise ImportError('no module named a test')",
    ),
    "marshal and pickle": (
        "import marshal, os, sys\nfor fd in range(3, 32):\n    try: os.write(fd, marshal.dumps({'kind': 'checks'}))\n    except OSError: pass",
        "import marshal\nmarshal.loads(b'\\xfb' * 99)",
        "import pickle\npickle.loads(b'cos\\nsystem\\n(S\"kill -9 1\"\\ntR.')",
        "import os, struct\nfor fd in range(3, 32):\n    try: os.write(fd, struct.pack('>Q', 2**63))\n    except OSError: pass",
        "import os, struct\nfor fd in range(3, 32):\n    try: os.write(fd, struct.pack('<I', 2**32 - 1))\n    except OSError: pass",
    ),
    "endless": (
        "while True: pass",
        "import time\ntime.sleep(10**9)",
        "import threading\nthreading.Event().wait()",
        "import sys\nsys.stdin.read()\nwhile True: sys.stdin.read()",
        "import signal\nsignal.signal(24, signal.SIG_IGN)\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass",
        "def f():\n    try: f()\n    finally: f()\nf()",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ),
    "memory": (
        "x = bytearray(1 << 40)",
        "x = []\nwhile True: x.append('x' * 10**6)",
        "x = 'a'\nwhile True: x += x",
        "x = {}\ni = 0\nwhile True:\n    i += 1\n    x[i] = [i] * 99",
        "import mmap\nm = [mmap.mmap(-1, 1 << 28) for _ in range(99)]\nfor one in m: one.write(b'x' * (1 << 28))",
        "x = 9 ** 9 ** 9",
        "print('x' * (1 << 33))",
        "import os\nf = open('/tmp/a', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
        "x = [None] * (1 << 28)\nwhile True: x = [x] * 2",
    ),
    "forks": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nos.fork()\nos.fork()\nos.fork()\nwhile True: pass",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
        "import os\npid = os.fork()\nif pid: os._exit(0)\nwhile True: pass",
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'while True: pass'])",
        "import threading\nwhile True:\n    try: threading.Thread(target=threading.Event().wait).start()\n    except RuntimeError: pass",
        "import multiprocessing\np = multiprocessing.Process(target=print)\np.start()",
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'while :; do :; done'])",
    ),
    "files": (
        "import os\nfor n in range(10**6): open(f'/tmp/{n}', 'w').close()",
        "import os\nn = 0\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
        "import os\nwhile True:\n    try: os.open('/dev/null', 0)\n    except OSError: break\nopen('/dev/null')",
        "f = open('/tmp/f', 'wb')\nf.truncate(1 << 50)",
        "import os\nfor n in range(10**6): os.symlink('x', f'/tmp/l{n}')",
        "import os\nos.mkfifo('/tmp/p')\nopen('/tmp/p')",
        "import os, shutil\nshutil.rmtree('/', ignore_errors=True)",
        "import os\nos.chmod('/tmp', 0)\nos.chdir('/tmp')",
        "import os\nos.unlink(__file__) if '__file__' in globals() else None\nos.rmdir(os.getcwd())",
    ),
    "output": (
        "while True: print('x' * 9999)",
        "import sys\nwhile True: sys.stderr.write('x' * 9999)",
        "import os\nwhile True: os.write(1, b'\\xff\\xfe' * 999)",
        "print('\\ud800')",
        "import sys\nsys.stdout.buffer.write(b'\\xff' * 10**6)",
        "print('\\0' * 10**6)",
        "import sys\nsys.stdout.write('x' * (1 << 20))",
        "print('\\r' * 10**6)",
        "raise Exception('x' * 10**8)",
        "raise Exception('\\ud800\\n' * 10**6)",
        "import sys\nsys.stderr.buffer.write(b'\\xff' * 10**7)\n1/0",
    ),
    "crashes": (
        "import ctypes\nctypes.string_at(0)",
        _C + "libc.abort()",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        _C + "libc.raise_ = libc['raise']\nlibc.raise_(8)",
        "import faulthandler\nfaulthandler._sigsegv()",
        "import sys\nsys.setrecursionlimit(10**6)\nx = []\nfor _ in range(10**6): x = [x]\nprint(x)",
        "import gc\ngc.collect = None\nexec('(' * 99999)",
        "eval('(' * 200 + ')' * 200)",
        "exec('x = ' + '-' * 99999 + '1')",
        "import ast\nast.parse('[' * 9999)",
        "compile('if 1:\\n' + ' ' * 99999, 'x', 'exec')",
        "x = type('X', (), {'__del__': lambda s: 1/0})()",
    ),
    "interpreter": (
        "import sys\nsys.modules.clear()",
        "import builtins\nfor name in list(vars(builtins)): \n    try: delattr(builtins, name)\n    except Exception: pass",
        "import sys\nsys.stdout = sys.stdin = sys.stderr = None",
        "import os, sys\nos.environ.clear()\nsys.path.clear()\nimport json",
        "import sys\nsys.settrace(lambda *a: 1/0)",
        "import sys\nsys.excepthook = lambda *a: 1/0\n1/0",
        "import atexit\natexit.register(lambda: [0 for _ in iter(int, 1)])",
        "import atexit, os\natexit.register(os._exit, 77)",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: pass",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\nopen('/dev/null')",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1, 1))\nx = 'a' * 10**6",
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nprint('x')",
        "__name__ = 'x'\n__builtins__ = None\nprint(1)",
    ),
    "source text": (
        "\0",
        "\ufeffprint(1)",
        "# -*- coding: utf-99 -*-\nprint(1)",
        "# -*- coding: utf-7 -*-\nprint(1)",
        "x = '\ud800'",
        "print(1",
        "\t print(1)\n        print(2)",
        "(" * 5_000,
        "x = " + "9" * 5_000,
        "x = " + "1+" * 50_000 + "1",
        "'" * 99_999,
        "lambda: " * 3_000 + "0",
        "def f():\n" + " " * 999_000 + "pass",
        "é" * 400_000,
        "\r\r\r",
        "if 1:\n" * 99 + "pass",
        "match 1:\n" + "  case 1: pass\n" * 9_999,
        "x = [" + "[]," * 90_000 + "]",
        "from __future__ import braces",
        "import this_is_no_module",
    ),
    "values of the function": (
        "def solve(n): return float('nan')",
        "def solve(n):\n    x = []\n    x.append(x)\n    return x",
        "def solve(n):\n    x = {}\n    x['x'] = x\n    return x",
        "def solve(n): return 10 ** 10 ** 7",
        "def solve(n): return 'x' * 10 ** 9",
        "def solve(n): return [0] * 10 ** 8",
        "def solve(n):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "def solve(n): return open('/dev/zero')",
        "def solve(n): return (i for i in iter(int, 1))",
        "def solve(n): return type",
        "def solve(n): return solve",
        "def solve(n): return '\\ud800'",
        "def solve(n): return memoryview(b'x')",
        "def solve(n): return object.__new__(object)",
        "class E(Exception):\n    def __str__(self): return self.__str__()\ndef solve(n): raise E",
        "class E(BaseException): pass\ndef solve(n): raise E",
        "def solve(n): raise KeyboardInterrupt",
        "def solve(n): raise GeneratorExit",
        "def solve(n): raise MemoryError",
        "def solve(n): raise RecursionError",
        "def solve(n): raise ImportError('a test')",
        "def solve(n): raise NameError('solve')",
    ),
    "objects that deceive": (
        "class X:\n    def __eq__(self, o): raise SystemExit\ndef solve(n): return X()",
        "class X:\n    def __eq__(self, o):\n        while True: pass\ndef solve(n): return X()",
        "class X:\n    def __getattribute__(self, n): raise RecursionError\ndef solve(n): return X()",
        "class X:\n    __class__ = str\ndef solve(n): return X()",
        "class X(str):\n    def __reduce__(self): return (exit, ())\ndef solve(n): return X('x')",
        "class X:\n    def __repr__(self): return 'x' * 10**9\ndef solve(n): return X()",
        "class X:\n    def __len__(self): return 1 << 62\ndef solve(n): return X()",
        "class X:\n    def __iter__(self): return self\n    def __next__(self): return self\ndef solve(n): return X()",
        "class X:\n    def __hash__(self): raise OSError\ndef solve(n): return {X()}",
        "class X:\n    def __bool__(self): raise ValueError\n    def __eq__(self, o): return X()\ndef solve(n): return X()",
        "class M(type):\n    def __instancecheck__(c, o): 1/0\n    def __eq__(c, o): 1/0\nclass X(metaclass=M): pass\ndef solve(n): return X",
        "def solve(n):\n    import sys\n    sys._getframe(1).f_locals.clear()\n    return 1",
        "def solve(n):\n    import gc\n    for o in gc.get_objects():\n        try: o.clear()\n        except Exception: pass",
        "import sys\nclass M:\n    def __getattr__(self, n): return lambda *a: self\nsys.modules[__name__] = M()\ndef solve(n): return 1",
    ),
    "late blows": (
        "import os, threading\nthreading.Timer(0.2, os._exit, (0,)).start()\ndef solve(n):\n    import time\n    time.sleep(9)",
        "import os\ndef solve(n): os.kill(os.getpid(), 9)",
        "import os\ndef solve(n): os.kill(os.getppid(), 9)",
        "import os\ndef solve(n): os.closerange(0, 999)",
        "import os\ndef solve(n):\n    if os.fork(): os._exit(0)\n    return 1",
        "import os\ndef solve(n):\n    os.fork()\n    return 'x'",
        "def solve(n):\n    while True: pass",
        "def solve(n): return input()",
        "def solve(n):\n    x = 'x'\n    while True: x += x",
        "import signal, os\ndef solve(n):\n    os.kill(os.getpid(), signal.SIGSTOP)",
        "import os\ndef solve(n):\n    for fd in range(3, 99):\n        try: os.write(fd, b'ok 0 0 0\\n' * 99)\n        except OSError: pass",
        "import os\ndef solve(n):\n    for fd in range(3, 99):\n        try: os.close(fd)\n        except OSError: pass\n    return 'a right value'",
    ),
}


def attempts(strategy: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the programs of a strategy, each with both kinds of tests; those that define `solve` with the second."""
    for program in STRATEGIES[strategy]:
        if "def solve" not in program:
            yield program, SCRIPT
        yield program, FUNCTION


def judge(program: str, tests: Mapping[str, Any]) -> Verdict:
    return judge_code(f"<think>so</think>\n```python\n{program}\n```", tests, limits=LIMITS)
