"""Programs as benchmarks have them, right ones, with tests that use what they define: each must pass."""

import pytest

from egpo.rewards.sandbox import Limits, Sandbox, SandboxJob
from egpo.rewards.sandbox.ground_truth import read_tests

# name: (program, test)
CASES = {
    "own exc": (
        "class MyError(Exception): pass\ndef f(x):\n  if x<0: raise MyError('neg')\n  return x",
        "try:\n    f(-1)\n    assert False\nexcept MyError as e:\n    assert str(e)=='neg'",
    ),
    "own exc sub": (
        "class A(ValueError): pass\n"
        "class B(A):\n"
        "  def __init__(self,c): self.code=c; super().__init__(f'code {c}')\n"
        "def f(x): raise B(3)",
        "try:\n"
        "    f(1)\n"
        "except A as e:\n"
        "    assert e.code==3 and str(e)=='code 3' and isinstance(e,ValueError) and isinstance(e,B)\n"
        "else: assert False",
    ),
    "suppress": (
        "class E(Exception): pass\ndef f(x): raise E",
        "import contextlib\nok=False\nwith contextlib.suppress(E):\n    f(1)\n    ok=True\nassert not ok",
    ),
    "unittest": (
        "class E(Exception): pass\ndef f(x): raise E('a')",
        "import unittest\n"
        "class T(unittest.TestCase):\n"
        "    def test(self):\n"
        "        with self.assertRaises(E): f(1)\n"
        "        with self.assertRaisesRegex(E,'a'): f(1)\n"
        "r=unittest.TestResult()\n"
        "T('test').run(r)\n"
        "assert r.wasSuccessful(), r",
    ),
    "exc type name": (
        "class E(Exception): pass\ndef f(x): raise E('a')",
        "try: f(1)\nexcept Exception as e: assert type(e).__name__=='E' and e.args==('a',)\nelse: assert 0",
    ),
    "exc raise by class attr": (
        "class B:\n  class E(Exception): pass\n  def w(self): raise self.E('x')",
        "b=B()\ntry: b.w()\nexcept B.E as e: assert 'x' in str(e)\nelse: assert 0",
    ),
    "keyerror str": (
        "def f(d): return d['x']",
        "try: f({})\nexcept KeyError as e: assert e.args==('x',) and str(e)==\"'x'\"",
    ),
    "asyncio.run": (
        "import asyncio\nasync def f(x):\n  await asyncio.sleep(0.001)\n  return x+1",
        "import asyncio\nassert asyncio.run(f(1))==2",
    ),
    "asyncio.run prog": (
        "import asyncio\n"
        "async def g(x):\n"
        "  await asyncio.sleep(0.001)\n"
        "  return x+1\n"
        "def f(x): return asyncio.run(g(x))",
        "assert f(1)==2",
    ),
    "asyncio gather": (
        "import asyncio\nasync def f(x):\n  await asyncio.sleep(0.001)\n  return x+1",
        "async def main():\n"
        "    return await asyncio.gather(f(1),f(2))\n"
        "import asyncio\n"
        "assert asyncio.run(main())==[2,3]",
    ),
    "asyncio loop": (
        "import asyncio\nasync def f(x): return x+1",
        "import asyncio\nassert asyncio.get_event_loop().run_until_complete(f(1))==2",
    ),
    "async raise": (
        "import asyncio\nasync def f(x): raise ValueError('n')",
        "import asyncio\ntry: asyncio.run(f(1))\nexcept ValueError: pass\nelse: assert 0",
    ),
    "async method": (
        "import asyncio\nclass A:\n  async def f(self,x): return x",
        "import asyncio\nassert asyncio.run(A().f(2))==2",
    ),
    "async gen": (
        "import asyncio\nasync def f(n):\n  for i in range(n):\n    yield i",
        "import asyncio\nasync def main(): return [x async for x in f(3)]\nassert asyncio.run(main())==[0,1,2]",
    ),
    "async ctx": (
        "class A:\n  async def __aenter__(self): return 5\n  async def __aexit__(self,*a): pass",
        "import asyncio\nasync def main():\n    async with A() as x: return x\nassert asyncio.run(main())==5",
    ),
    "__file__": (
        "import os\nHERE=os.path.dirname(os.path.abspath(__file__))\ndef f(): return open(__file__).readline()",
        "assert f()=='import os\\n'",
    ),
    "getsource": (
        "import inspect\ndef f(x): return x\ndef g(): return inspect.getsource(f)",
        "assert g()=='def f(x): return x\\n'",
    ),
    "getsource in test": (
        "def f(x): return x*2",
        "import inspect\nassert 'x*2' in inspect.getsource(f)",
    ),
    "datetime": (
        "from datetime import datetime, timedelta, timezone\n"
        "def f(): return datetime(2024,1,2,3,4,5,6,tzinfo=timezone.utc)",
        "import datetime\nassert f()==datetime.datetime(2024,1,2,3,4,5,6,tzinfo=datetime.timezone.utc)",
    ),
    "datetime arg": (
        "from datetime import datetime, timedelta\ndef f(x): return x+timedelta(days=1)",
        "from datetime import datetime\n"
        "assert f(datetime(2024,1,1))==datetime(2024,1,2)\n"
        "assert (f(datetime(2024,1,1))-datetime(2024,1,1)).days==1",
    ),
    "datetime free": (
        "from datetime import datetime\ndef f(x): return x",
        "assert f(datetime(2024,1,1))==datetime(2024,1,1)",
    ),
    "datetime free attr": (
        "from datetime import datetime\ndef f(x): return datetime.strptime(x,'%Y')",
        "assert f('2024')==datetime.strptime('2024','%Y')",
    ),
    "datetime time": (
        "from datetime import time,timezone,timedelta\ndef f(): return [time(1,2),timezone(timedelta(hours=1))]",
        "import datetime\nassert f()==[datetime.time(1,2),datetime.timezone(datetime.timedelta(hours=1))]",
    ),
    "uuid": (
        "import uuid\ndef f(): return uuid.UUID(int=5)",
        "import uuid\nassert f()==uuid.UUID(int=5)",
    ),
    "path": (
        "import pathlib\ndef f(): return pathlib.PurePosixPath('/a/b'), pathlib.Path('a')",
        "import pathlib\nassert f()==(pathlib.PurePosixPath('/a/b'),pathlib.Path('a'))",
    ),
    "namedtuple": (
        "from collections import namedtuple\nP=namedtuple('P','x y')\ndef f(): return P(1,2)",
        "assert f().x==1 and f()==(1,2) and f()==P(1,2)\n"
        "assert f()._asdict()=={'x':1,'y':2}\n"
        "assert repr(f())=='P(x=1, y=2)'\n"
        "assert isinstance(f(),P) and isinstance(f(),tuple)",
    ),
    "NamedTuple": (
        "from typing import NamedTuple\n"
        "class P(NamedTuple):\n"
        "  x:int\n"
        "  y:int=2\n"
        "  def s(self): return self.x+self.y\n"
        "def f(p): return p.s()",
        "assert f(P(1))==3 and P(1).s()==3 and P(3,4).y==4",
    ),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n  x:int\n  y:int=2\ndef f(p): return P(p.x+1)",
        "assert f(P(1))==P(2) and f(P(1)).x==2 and repr(P(1))=='P(x=1, y=2)' and isinstance(f(P(1)),P)",
    ),
    "dc frozen": (
        "from dataclasses import dataclass\n@dataclass(frozen=True,order=True)\nclass P:\n  x:int",
        "assert P(1)<P(2) and hash(P(1))==hash(P(1)) and len({P(1),P(1)})==1 and sorted([P(2),P(1)])==[P(1),P(2)]",
    ),
    "dc frozen err": (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n  x:int",
        "import dataclasses\ntry: P(1).x=3\nexcept dataclasses.FrozenInstanceError: pass\nelse: assert 0",
    ),
    "enum": (
        "from enum import Enum\nclass C(Enum):\n  R=1\n  G=2\ndef f(x): return C(x)",
        "assert f(1)==C.R and f(1) is C.R and f(2).name=='G' and f(2).value==2"
        " and C['R'] is C.R and [c.name for c in C]==['R','G'] and len(C)==2 and f(1) in C",
    ),
    "intenum": (
        "from enum import IntEnum\nclass C(IntEnum):\n  R=1\ndef f(x): return C(x)",
        "assert f(1)==C.R==1 and f(1).name=='R'",
    ),
    "strenum": (
        "from enum import Enum\nclass C(str,Enum):\n  R='r'\ndef f(x): return C(x)",
        "assert f('r')==C.R=='r' and f('r').name=='R' and f('r').value=='r'",
    ),
    "counter": (
        "from collections import Counter\ndef f(s): return Counter(s)",
        "from collections import Counter\n"
        "assert f('aab')==Counter('aab') and f('aab').most_common(1)==[('a',2)] and f('a')['z']==0",
    ),
    "defaultdict": (
        "from collections import defaultdict\ndef f():\n  d=defaultdict(list); d[1].append(2); return d",
        "assert f()=={1:[2]} and f()[5]==[]",
    ),
    "ordereddict": (
        "from collections import OrderedDict\ndef f(): return OrderedDict(a=1,b=2)",
        "from collections import OrderedDict\n"
        "assert f()==OrderedDict(a=1,b=2) and f()!=OrderedDict(b=2,a=1)\n"
        "d=f()\n"
        "d.move_to_end('a')\n"
        "assert list(d)==['b','a']",
    ),
    "LRU": (
        "from collections import OrderedDict\n"
        "class LRUCache(OrderedDict):\n"
        "  def __init__(self,n): super().__init__(); self.n=n\n"
        "  def get(self,k):\n"
        "    if k not in self: return -1\n"
        "    self.move_to_end(k); return self[k]\n"
        "  def put(self,k,v):\n"
        "    self[k]=v; self.move_to_end(k)\n"
        "    if len(self)>self.n: self.popitem(last=False)",
        "c=LRUCache(2)\nc.put(1,1)\nc.put(2,2)\nassert c.get(1)==1\nc.put(3,3)\nassert c.get(2)==-1\nassert len(c)==2",
    ),
    "dict subclass": (
        "class D(dict):\n  def __getattr__(self,k): return self[k]\ndef f(): return D(a=1)",
        "assert f().a==1 and f()=={'a':1}",
    ),
    "int subclass": (
        "class M(int):\n  def double(self): return M(self*2)\ndef f(x): return M(x)",
        "assert f(2).double()==4 and f(2)==2",
    ),
    "complex/frozenset": (
        "def f(): return [1j, frozenset({1}), {1,2}, b'x', bytearray(b'y'), range(3)]",
        "assert f()==[1j, frozenset({1}), {1,2}, b'x', bytearray(b'y'), range(3)]",
    ),
    "operators": (
        "class V:\n"
        "  def __init__(s,x): s.x=x\n"
        "  def __add__(s,o): return V(s.x+o.x)\n"
        "  def __eq__(s,o): return s.x==o.x\n"
        "  def __neg__(s): return V(-s.x)\n"
        "  def __lt__(s,o): return s.x<o.x",
        "assert V(1)+V(2)==V(3) and -V(1)==V(-1) and V(1)<V(2) and sorted([V(2),V(1)])[0]==V(1)",
    ),
    "ctx manager": (
        "class T:\n  def __enter__(self): self.o=True; return self\n  def __exit__(self,*a): self.o=False",
        "with T() as t:\n    assert t.o\nassert not t.o",
    ),
    "contextmanager": (
        "from contextlib import contextmanager\nL=[]\n@contextmanager\ndef f():\n  yield 3",
        "with f() as x:\n    assert x==3",
    ),
    "classattr": (
        "class A:\n"
        "  N=3\n"
        "  @staticmethod\n"
        "  def s(x): return x\n"
        "  @classmethod\n"
        "  def c(cls): return cls.N\n"
        "  @property\n"
        "  def p(self): return 9",
        "assert A.N==3 and A.s(1)==1 and A.c()==3 and A().p==9 and A().__class__.__name__=='A'"
        " and type(A()).__name__=='A'",
    ),
    "isinstance abc": (
        "from abc import ABC, abstractmethod\n"
        "class S(ABC):\n"
        "  @abstractmethod\n"
        "  def a(self): ...\n"
        "class Q(S):\n"
        "  def a(self): return 1",
        "q=Q()\n"
        "assert isinstance(q,S) and isinstance(q,Q) and issubclass(Q,S)\n"
        "try: S()\n"
        "except TypeError: pass\n"
        "else: assert 0",
    ),
    "type is": (
        "class A: pass\ndef f(): return A()",
        "assert type(f()) is A and type(f()) == A",
    ),
    "doc/name": (
        "def f(x):\n  'Doc.'\n  return x",
        "assert f.__doc__=='Doc.' and f.__name__=='f' and callable(f)",
    ),
    "decorator": (
        "def deco(g):\n  def w(*a): return g(*a)+1\n  return w",
        "@deco\ndef h(x): return x\nassert h(1)==2",
    ),
    "partial/lru": (
        "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n if n<2 else f(n-1)+f(n-2)",
        "assert f(30)==832040 and f.cache_info().hits>0",
    ),
    "ListNode": (
        "class ListNode:\n"
        "  def __init__(self,val=0,next=None): self.val=val; self.next=next\n"
        "class Solution:\n"
        "  def rev(self,h):\n"
        "    p=None\n"
        "    while h: h.next,p,h=p,h,h.next\n"
        "    return p",
        "h=ListNode(1,ListNode(2))\nr=Solution().rev(h)\nassert r.val==2 and r.next.val==1 and r.next.next is None",
    ),
    "format": (
        "class A:\n  def __format__(s,x): return 'F'+x\n  def __int__(s): return 4\n  def __float__(s): return 4.5",
        "assert f'{A():z}'=='Fz' and int(A())==4",
    ),
    "nan dec": (
        "from decimal import Decimal\ndef f(): return Decimal('NaN')",
        "assert f().is_nan()",
    ),
    "iterators": (
        "def f(): return map(str,[1,2]), zip([1],[2]), enumerate('a'), reversed([1,2]), {1:2}.keys(), {1:2}.items()",
        "m,z,e,r,k,i=f()\n"
        "assert list(m)==['1','2'] and list(z)==[(1,2)] and list(e)==[(0,'a')]"
        " and list(r)==[2,1] and list(k)==[1] and list(i)==[(1,2)]",
    ),
    "array": (
        "from array import array\nimport heapq\ndef f(): return array('i',[1,2])",
        "from array import array\nassert f()==array('i',[1,2])",
    ),
    "regex": (
        "import re\ndef f(s): return re.match('a(b)',s)",
        "assert f('ab').group(1)=='b' and f('x') is None",
    ),
    "io": (
        "import io\ndef f(): return io.StringIO('abc')",
        "assert f().read()=='abc'",
    ),
    "struct time": (
        "import time\ndef f(): return time.gmtime(0)",
        "assert f().tm_year==1970 and f()[0]==1970",
    ),
    "ipaddress": (
        "import ipaddress\ndef f(): return ipaddress.ip_address('1.2.3.4')",
        "import ipaddress\nassert f()==ipaddress.ip_address('1.2.3.4')",
    ),
    "zoneinfo/date": (
        "import datetime\ndef f(d): return d.isoformat()",
        "import datetime\n"
        "assert f(datetime.date(2020,1,1))=='2020-01-01' and f(datetime.datetime(2020,1,1))=='2020-01-01T00:00:00'",
    ),
    "exc group": (
        "def f(): raise ExceptionGroup('g',[ValueError(1)])",
        "try: f()\nexcept Exception as e: assert 'g' in str(e)",
    ),
    "custom exc builtin kw": (
        "class E(Exception):\n  def __str__(self): return 'S'\ndef f(): raise E",
        "try: f()\nexcept E as e: assert str(e)=='S' and f'{e}'=='S'",
    ),
    "exc raised by test": (
        "class E(Exception):\n"
        "  def __init__(s,m,c): super().__init__(m); s.c=c\n"
        "def f(g):\n"
        "  try: g()\n"
        "  except E as e: return e.c",
        "def g(): raise E('m',7)\nassert f(g)==7",
    ),
    "builtin exc cb": (
        "def f(g):\n  try: g()\n  except ValueError as e: return str(e)",
        "def g(): raise ValueError('m')\nassert f(g)=='m'",
    ),
    "exc instance": (
        "class E(Exception): pass",
        "e=E('m')\nassert isinstance(e,Exception) and str(e)=='m' and issubclass(E,Exception)",
    ),
    "exc return": (
        "class E(Exception): pass\ndef f(): return E('m')",
        "e=f()\nassert isinstance(e,E) and str(e)=='m'",
    ),
    "typing self": (
        "from __future__ import annotations\nfrom typing import *\ndef f(x: List[int]) -> Optional[int]: return x[0]",
        "assert f([1])==1",
    ),
    "typevar generic": (
        "from typing import Generic, TypeVar\nT=TypeVar('T')\nclass Box(Generic[T]):\n  def __init__(s,v:T): s.v=v",
        "assert Box[int](3).v==3",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_right_program_passes(sandbox: Sandbox, name: str) -> None:
    program, snippet = CASES[name]
    report = sandbox.run(SandboxJob(program, read_tests({"assert": [snippet]}).work, Limits(wall_s=30.0)))
    assert not report.failure
    assert [(outcome.status, outcome.error) for outcome in report.outcomes] == [("ok", "")]
