"""Right programs, sloppy but legal, with their tests; each must score 1."""

from __future__ import annotations

from typing import Any

__all__ = ["RIGHT"]

RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "debug_output": (
        """
print('x')
def f(n):
 print(n)
 return n
""",
        {"tests": ["assert f(2)==2"]},
    ),
    "class": (
        """
class Stack:
 def __init__(s): s.x=[]
 def push(s,v): s.x.append(v)
 def pop(s): return s.x.pop()
 def __len__(s): return len(s.x)
""",
        {
            "tests": [
                """
s=Stack()
s.push(1)
s.push(2)
assert len(s)==2 and s.pop()==2 and s.x==[1]
"""
            ]
        },
    ),
    "changes_its_argument": (
        "def f(x): x.sort()",
        {
            "tests": [
                """
x=[3,1]
f(x)
assert x==[1,3]
"""
            ]
        },
    ),
    "returns_its_argument": (
        """
def f(x):
 x.sort()
 return x
""",
        {
            "tests": [
                """
x=[3,1]
assert f(x) is x
"""
            ]
        },
    ),
    "calls_functions_of_the_test": (
        "def f(g,x): return [g(i) for i in x]",
        {
            "tests": [
                "assert f(lambda v:v*2,[1,2])==[2,4]",
                "assert f(str,[1,2])==['1','2']",
                "assert f(len,['a','bc'])==[1,2]",
            ]
        },
    ),
    "raises_and_own_exceptions": (
        """
class E(Exception): pass
def f(n):
 if n<0: raise ValueError('neg')
 raise E('x')
""",
        {
            "tests": [
                """
try:
 f(-1)
 assert False
except ValueError as e:
 assert 'neg' in str(e)
""",
                """
try:
 f(1)
 assert False
except E:
 pass
""",
            ]
        },
    ),
    "closure": (
        "def adder(n): return lambda m: n+m",
        {"tests": ["assert adder(3)(4)==7"]},
    ),
    "generators": (
        """
def g(n):
 for i in range(n): yield i
""",
        {"tests": ["assert list(g(3))==[0,1,2]", "assert next(g(1))==0", "assert sum(g(4))==6"]},
    ),
    "every_builtin_type": (
        """
from collections import Counter,deque,OrderedDict,namedtuple
P=namedtuple('P','x y')
def f(k):
 return {'c':Counter('aab'),'d':dict(a=1),'t':(1,),'s':{1},'z':frozenset([1]),'p':P(1,2),
 'i':1<<5000,'q':deque([1]),'b':b'x','n':None,'c2':1+2j,'r':range(3),'u':'\\u00e9\\ud800'}[k]
""",
        {
            "tests": [
                "assert f('c')=={'a':2,'b':1}",
                "assert f('d')=={'a':1}",
                "assert f('t')==(1,)",
                "assert f('s')=={1}",
                "assert f('z')==frozenset([1])",
                "assert f('p')==(1,2)",
                "assert f('i')==1<<5000",
                "assert list(f('q'))==[1]",
                "assert f('b')==b'x'",
                "assert f('n') is None",
                "assert f('c2')==1+2j",
                "assert f('r')==range(3)",
                "assert f('u')=='\\u00e9\\ud800'",
            ]
        },
    ),
    "numpy": (
        """
import numpy as np
def f(n): return np.arange(n)
def g(): return np.float32(1.5)
def h(a): return a.sum()
""",
        {
            "tests": [
                "assert np.allclose(f(3),[0,1,2])",
                "assert (f(3)==np.array([0,1,2])).all()",
                "assert f(3).tolist()==[0,1,2]",
                "assert g()==1.5",
                "assert h(np.ones(3))==3.0",
                "assert f(2).shape==(2,)",
            ]
        },
    ),
    "check_function_and_math": (
        "def add(a,b): return a+b",
        {
            "tests": [
                """
def check(candidate):
    assert candidate(1,2)==3
    assert candidate(0,0)==0
check(add)
""",
                """
import math
assert math.isclose(add(.1,.2),.3)
""",
                "assert math.isclose(add(.1,.2),.3)",
                "assert isclose(add(.1,.2),.3)",
                "assert abs(add(.1,.2)-.3)<1e-9",
                "assert add(*[1],b=2)==3",
            ]
        },
    ),
    "declared_builtin_name": (
        "def sum(a,b): return a+b",
        {"tests": ["assert sum(1,2)==3"], "program_names": ["sum"]},
    ),
    "dataclass": (
        """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
 x: int
 def norm(self): return abs(self.x)
def f(): return P(-3)
""",
        {"tests": ["assert f().norm()==3", "assert P(2).x==2", "assert isinstance(f(),P)"]},
    ),
    "tree": (
        """
class N:
 def __init__(s,v,l=None,r=None): s.v,s.l,s.r=v,l,r
def depth(n): return 0 if n is None else 1+max(depth(n.l),depth(n.r))
""",
        {"tests": ["assert depth(N(1,N(2),None))==2", "assert N(1,N(5)).l.v==5", "assert N(1).l is None"]},
    ),
    "decimal": (
        """
from decimal import Decimal
from fractions import Fraction
def f(): return Decimal('1.5')
def g(): return Fraction(1,3)
""",
        {"tests": ["assert f()==Decimal('1.5')", "assert g()==Fraction(1,3)"]},
    ),
    "recursion": (
        """
import sys
sys.setrecursionlimit(20000)
def f(n): return 0 if n==0 else 1+f(n-1)
""",
        {"tests": ["assert f(10000)==10000"]},
    ),
    "threads": (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
def f(x):
 with ThreadPoolExecutor(4) as p: return list(p.map(lambda v:v+1,x))
""",
        {"tests": ["assert f([1,2])==[2,3]"]},
    ),
    "asyncio": (
        """
import asyncio
async def g(): await asyncio.sleep(0.01); return 5
def f(): return asyncio.run(g())
""",
        {"tests": ["assert f()==5"]},
    ),
    "objects_with_operators": (
        """
class V:
 def __init__(s,x): s.x=x
 def __add__(s,o): return V(s.x+o.x)
 def __str__(s): return f'V({s.x})'
 def __repr__(s): return str(s)
""",
        {"tests": ["assert (V(1)+V(2)).x==3", "assert str(V(1))=='V(1)'", "assert f'{V(2)}'=='V(2)'"]},
    ),
    "writes_scratch_files": (
        """
def f(n):
 open('t.txt','w').write(str(n))
 return int(open('t.txt').read())
""",
        {"tests": ["assert f(3)==3", "assert f(4)==4"]},
    ),
    "enum": (
        """
from enum import Enum,IntEnum
class C(Enum):
 A=1
class I(IntEnum):
 B=2
""",
        {"tests": ["assert C.A.value==1", "assert I.B==2"]},
    ),
    "strings": (
        "def f(s): return s.title()",
        {
            "tests": [
                "assert f('ab').startswith('Ab')",
                "assert f('x') in ('X','Y')",
                "assert f('ab')[0]=='A'",
            ]
        },
    ),
    "script": (
        """
a,b=map(int,input().split())
print(a+b)
""",
        {"cases": [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "4 4", "stdout": "8"}]},
    ),
    "main_and_sys_exit": (
        """
import sys
def main():
 print(int(sys.stdin.readline())*2)
 sys.exit(0)
if __name__=='__main__': main()
""",
        {"cases": [{"stdin": "2", "stdout": "4"}]},
    ),
    "exit_builtin": (
        """
print(1)
exit()
""",
        {"cases": [{"stdin": "", "stdout": "1"}]},
    ),
    "reads_descriptor": (
        "print(sum(map(int,open(0).read().split())))",
        {"cases": [{"stdin": "1 2 3", "stdout": "6"}]},
    ),
    "binary_streams": (
        """
import sys
sys.stdout.write(sys.stdin.buffer.read().decode()[::-1])
""",
        {"cases": [{"stdin": "abc", "stdout": "cba"}]},
    ),
    "unicode": (
        "print(input()+'é')",
        {"cases": [{"stdin": "ü", "stdout": "üé"}]},
    ),
    "atexit": (
        """
import atexit
atexit.register(lambda: print('end'))
print('x')
""",
        {"cases": [{"stdin": "", "stdout": "x\nend"}]},
    ),
    "script_with_thread": (
        """
import threading,time
threading.Thread(target=lambda:(time.sleep(.05),print('late'))).start()
""",
        {"cases": [{"stdin": "", "stdout": "late"}]},
    ),
    "deep_recursion_in_a_thread": (
        """
import sys,threading
sys.setrecursionlimit(10**6)
threading.stack_size(64<<20)
def f(n): return 0 if n==0 else 1+f(n-1)
def main(): print(f(50000))
t=threading.Thread(target=main)
t.start()
t.join()
""",
        {"cases": [{"stdin": "", "stdout": "50000"}]},
    ),
    "large_input": (
        """
import sys
d=sys.stdin.read()
print(len(d))
""",
        {"cases": [{"stdin": "x" * 5_000_000, "stdout": "5000000"}]},
    ),
    "script_with_process": (
        """
from multiprocessing import Process
def f(): print('child',flush=True)
if __name__=='__main__':
 p=Process(target=f);p.start();p.join()
""",
        {"cases": [{"stdin": "", "stdout": "child"}]},
    ),
}
