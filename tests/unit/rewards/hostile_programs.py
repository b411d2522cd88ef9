"""Programs that try to score without the right values, or to do damage; each must score 0.

The task is `solve(n) = n * n`, or the same on standard input. A program that tries to read something reads
the exponent 2 where the test put it, so it would score 1 if it could. EXPONENT_FILE, FOLDER, PORT and PARENT
are filled in.
"""

from __future__ import annotations

__all__ = ["FUNCTIONS", "LIARS", "SCRIPTS"]

FUNCTIONS: dict[str, str] = {
    "object_equal_to_all": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
solve = lambda n: Any()
""",
    "class_equal_to_all": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
class Meta(type):
    def __eq__(self, other): return True
    __hash__ = None
class Result(metaclass=Meta): pass
solve = lambda n: Result
""",
    "int_subclass": """
class I(int):
    def __eq__(s, o): return True
    def __ne__(s, o): return False
    __hash__ = int.__hash__
solve = lambda n: I(7)
""",
    "int_subclass_with_methods": """
class I(int):
    def __eq__(s, o): return True
    def public(s): return 1
solve = lambda n: I(7)
""",
    "str_subclass": """
class S(str):
    def __eq__(s, o): return True
solve = lambda n: S('x')
""",
    "float_subclass": """
class F(float):
    def __eq__(s, o): return True
    def __sub__(s, o): return 0.0
    __rsub__ = __sub__
solve = lambda n: F(7)
""",
    "list_subclass": """
class L(list):
    def __eq__(s, o): return True
solve = lambda n: L()
""",
    "int_property_lies": """
class I(int):
    def __index__(s): return 4
    def __int__(s): return 4
    def __hash__(s): return hash(4)
solve = lambda n: I(7)
""",
    "function_as_result": "solve = lambda n: solve",
    "arithmetic_object": """
class A:
    def __sub__(s, *a): return 0.0
    def __rsub__(s, *a): return 0.0
    def __abs__(s, *a): return 0.0
    def __float__(s, *a): return 0.0
    def __lt__(s, o): return True
    def __eq__(s, o): return True
solve = lambda n: A()
""",
    "raises_import_error": "def solve(n): raise ImportError('titanrl')",
    "raises_assertion_error": "def solve(n): raise AssertionError",
    "dies_where_an_error_is_expected": "import os\ndef solve(n): os._exit(1)\ndef fail(n): os._exit(1)",
    "nan": "solve = lambda n: float('nan')",
    "infinity": "solve = lambda n: float('inf')",
    "not_implemented": "solve = lambda n: NotImplemented",
    "generator_of_everything": """
import itertools
solve = lambda n: itertools.count()
""",
    "recursive_list": """
def solve(n):
    x = []
    x.append(x)
    return x
""",
    "recursive_dict": """
def solve(n):
    x = {}
    x['x'] = x
    return x
""",
    "shared_nesting": """
def solve(n):
    x = [0]
    for i in range(40): x = [x, x]
    return x
""",
    "deep_nesting": """
def solve(n):
    x = []
    for i in range(100000): x = [x]
    return x
""",
    "huge_int": "solve = lambda n: 1 << (1 << 30)",
    "huge_string": "solve = lambda n: 'x' * (100 << 20)",
    "colliding_keys": "solve = lambda n: {i * (2**61 - 1): 0 for i in range(1, 200000)}",
    "patched_builtins": """
import builtins
for name in ('exec', 'compile', 'eval', 'print', 'len', 'abs', 'isinstance'):
    setattr(builtins, name, lambda *a, **k: True)

def solve(n):
    return -1
""",
    "patched_import": """
import builtins
builtins.__import__ = lambda *a, **k: None

def solve(n):
    return -1
""",
    "patched_stdout": """
import sys
sys.stdout = sys.stderr = None
sys.modules.clear()

def solve(n):
    return -1
""",
    "patched_modules": """
import sys, types
for name in ('json', 'operator', 'os', 'marshal'):
    sys.modules[name] = types.ModuleType(name)

def solve(n):
    return -1
""",
    "patched_json": """
import json
json.loads = lambda *a: {'ok': True}
json.dumps = lambda *a: 'true'

def solve(n):
    return -1
""",
    "patched_driver": """
import sys
frame = sys._getframe()
while frame:
    for name in ('_answer', 'write_frame', 'OPERATIONS'):
        frame.f_globals[name] = lambda *a, **k: (b'V', b't3;T i-1;m0;')
    frame = frame.f_back

def solve(n):
    return -1
""",
    "frames": """
import sys
def solve(n):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, str) and 'assert solve' in value:
                return int(value.split('==')[1])
        frame = frame.f_back
""",
    "garbage_collector": """
import gc
def solve(n):
    for value in gc.get_objects():
        if isinstance(value, (list, tuple)):
            for each in value:
                if isinstance(each, str) and 'assert ' + 'solve' in each: return int(each.split('==')[1])
""",
    "own_memory": """
import re
def solve(n):
    maps = open('/proc/self/maps').read()
    memory = open('/proc/self/mem', 'rb')
    for line in maps.splitlines():
        first, last = (int(x, 16) for x in line.split()[0].split('-'))
        memory.seek(first)
        match = re.search(rb'assert so' + rb'lve.%d. == (\\d+)' % n, memory.read(last - first))
        if match: return int(match[1])
""",
    "trace_function": """
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)

def solve(n):
    return -1
""",
    "raises_system_exit": """
import sys
def solve(n): sys.exit(0)
""",
    "exits_at_once": """
import os
os._exit(0)
""",
    "exits_in_call": """
import os
def solve(n): os._exit(0)
""",
    "exits_like_the_driver": """
import os
def solve(n): os._exit(42)
""",
    "raises_base_exception": """
class E(BaseException): pass
def solve(n): raise E()
""",
    "prints_verdicts": """
def solve(n):
    print('passed')
    print('1')
    print(n * n)
""",
    "atexit": """
import atexit
atexit.register(print, 'passed')

def solve(n):
    return -1
""",
    "forged_result": """
import os
def frame(kind, content=b""):
    data = kind + len(content).to_bytes(4, "big") + content
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
def solve(n):
    frame(b'T', b'1')
    frame(b'D')
    return -1
""",
    "forged_end": """
import os
def frame(kind, content=b""):
    data = kind + len(content).to_bytes(4, "big") + content
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
frame(b'T', b'1')
frame(b'T', b'1')
frame(b'D')
os._exit(0)
""",
    "forged_lengths": """
import os
def frame(kind, content=b""):
    data = kind + len(content).to_bytes(4, "big") + content
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
def solve(n):
    for fd in range(3, 64):
        try: os.write(fd, b'V' + b'\\xff' * 4)
        except OSError: pass
    os._exit(0)
""",
    "forged_types": """
import os
def frame(kind, content=b""):
    data = kind + len(content).to_bytes(4, "big") + content
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
def solve(n):
    frame(b'V', b't3;yobject;i-1;m0;')
    frame(b'X', b't3;s8;Exceptioi0;i-1;')
""",
    "forged_callback": """
import os
def frame(kind, content=b""):
    data = kind + len(content).to_bytes(4, "big") + content
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
def solve(n):
    frame(b'F', b't3;i0;t0;m0;')
    return -1
""",
    "environment": """
import os
def exponent(): return int(os.environ['EXPONENT'])

def solve(n):
    return n ** exponent()
""",
    "parent_environment": """
import os
def exponent():
    for pid in os.listdir('/proc'):
        try: text = open(f'/proc/{pid}/environ').read()
        except OSError: continue
        if 'EXPONENT=' in text: return int(text.split('EXPONENT=')[1][0])
def solve(n):
    return n ** exponent()
""",
    "parent_descriptors": """
import os
def exponent():
    for pid in (os.getppid(), 1, PARENT):
        for fd in range(64):
            try: text = open(f'/proc/{pid}/fd/{fd}').read()
            except (OSError, ValueError): continue
            if 'EXPONENT=' in text: return int(text.split('EXPONENT=')[1][0])

def solve(n):
    return n ** exponent()
""",
    "inherited_descriptors": """
import os
def exponent():
    for fd in range(3, 256):
        try: text = os.pread(fd, 100, 0)
        except OSError: continue
        if b'EXPONENT=' in text: return int(text.split(b'EXPONENT=')[1][:1])

def solve(n):
    return n ** exponent()
""",
    "sees_processes": """
import os
def exponent():
    return 2 if any(os.path.exists(f'/proc/{pid}/status') for pid in [PARENT]) else 0

def solve(n):
    return n ** exponent()
""",
    "kills_parent": """
import os, signal
for pid in (os.getppid(), 1, PARENT):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass

def solve(n):
    return -1
""",
    "kills_all": """
import os
os.kill(-1, 9)

def solve(n):
    return -1
""",
    "kills_group": """
import os
os.killpg(0, 9)

def solve(n):
    return -1
""",
    "stops_parent": """
import os, signal
os.kill(os.getppid(), signal.SIGSTOP)

def solve(n):
    return -1
""",
    "ptrace": """
import ctypes, os
c = ctypes.CDLL(None)
def exponent():
    return 2 if any(c.ptrace(16, pid, 0, 0) == 0 for pid in (os.getppid(), 1, PARENT)) else 0

def solve(n):
    return n ** exponent()
""",
    "reads_process_memory": """
import ctypes
c = ctypes.CDLL(None)
def exponent():
    b = (ctypes.c_char * 8)()
    v = (ctypes.c_size_t * 2)(ctypes.addressof(b), 8)
    return 2 if c.process_vm_readv(1, v, 1, v, 1, 0) >= 0 else 0

def solve(n):
    return n ** exponent()
""",
    "new_user_namespace": """
import ctypes
def exponent(): return 2 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0

def solve(n):
    return n ** exponent()
""",
    "mounts": """
import ctypes
def exponent():
    return 2 if ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, 0) == 0 else 0

def solve(n):
    return n ** exponent()
""",
    "becomes_root": """
import os
def exponent():
    os.setuid(0)
    return 2

def solve(n):
    return n ** exponent()
""",
    "daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)

def solve(n):
    return -1
""",
    "reads_file": """
def exponent(): return int(open('EXPONENT_FILE').read())

def solve(n):
    return n ** exponent()
""",
    "reads_through_root_link": """
def exponent():
    for pid in ('self', 1, PARENT):
        try: return int(open(f'/proc/{pid}/root/EXPONENT_FILE').read())
        except OSError: pass

def solve(n):
    return n ** exponent()
""",
    "writes_outside": """
import os
for folder in ('FOLDER', '/root', '/home', '/work', '/var/tmp', '/etc', '/usr/lib', '/dev', '/packages', '/'):
    try:
        open(os.path.join(folder, 'titanrl-escape'), 'w').write('x')
    except OSError: pass

def solve(n):
    return -1
""",
    "shared_memory": """
def exponent():
    open('/dev/shm/titanrl-escape', 'w').write('x')
    return 2

def solve(n):
    return n ** exponent()
""",
    "physical_memory": """
def exponent():
    open('/dev/mem', 'rb').read(1)
    return 2

def solve(n):
    return n ** exponent()
""",
    "loopback": """
import socket
def exponent(): return int(socket.create_connection(('127.0.0.1', PORT), 1).recv(1))

def solve(n):
    return n ** exponent()
""",
    "outside_network": """
import socket
def exponent():
    socket.create_connection(('192.0.2.1', 80), 1)
    return 2

def solve(n):
    return n ** exponent()
""",
    "datagrams": """
import socket
def exponent():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))
    return 2

def solve(n):
    return n ** exponent()
""",
    "fills_disk": """
data = b'x' * (1 << 20)
for i in range(1000):
    with open(f'{i}', 'wb') as f:
        for j in range(15): f.write(data)

def solve(n):
    return -1
""",
    "fills_inodes": """
import os
for i in range(10**6):
    os.mkdir(f'{i}')

def solve(n):
    return -1
""",
    "endless_loop": "while True: pass",
    "endless_loop_in_call": """
def solve(n):
    while True: pass
""",
    "sleep": """
import time
time.sleep(600)
""",
    "ignores_signals": """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1)
""",
    "alarm": """
import signal
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)

def solve(n):
    return -1
""",
    "regular_expression": """
import re
re.match('(a+)+$', 'a' * 60 + 'b')

def solve(n):
    return -1
""",
    "fork_bomb": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "threads": """
import threading
def run():
    while True: pass
for i in range(1000): threading.Thread(target=run).start()
""",
    "memory": """
x = bytearray(4 << 30)

def solve(n):
    return -1
""",
    "memory_in_steps": """
x = []
while True: x.append(b'x' * (1 << 20))
""",
    "memory_of_many": """
import os, time
for i in range(20):
    if os.fork() == 0:
        x = b'x' * (200 << 20)
        time.sleep(600)
time.sleep(600)
""",
    "anonymous_file": """
import os
fds = [os.memfd_create('x') for i in range(50)]
def solve(n):
    for fd in fds: os.write(fd, b'x' * (10 << 20))
    return n * n
""",
    "deep_recursion": """
import sys
sys.setrecursionlimit(1 << 30)
f = lambda: f()
def solve(n): return f()
""",
    "crash": """
import ctypes
def solve(n): ctypes.string_at(0)
""",
    "compiler": "def solve(n): return eval('(' * 100000)",
    "nul_in_source": """
\0
def solve(n):
    return -1
""",
    "surrogates": "solve = lambda n: '\\ud800' * 10",
}

SCRIPTS: dict[str, str] = {
    "crash_after_output": """
n = int(input())
print(n * n, flush=True)
raise ValueError
""",
    "segfault_after_output": """
import ctypes
n = int(input())
print(n * n, flush=True)
ctypes.string_at(0)
""",
    "exit_after_output": """
import os
n = int(input())
print(n * n, flush=True)
os._exit(0)
""",
    "failure_status_after_output": """
import sys
n = int(input())
print(n * n, flush=True)
sys.exit(1)
""",
    "message_status_after_output": """
import sys
n = int(input())
print(n * n, flush=True)
sys.exit('no')
""",
    "kill_after_output": """
import os
n = int(input())
print(n * n, flush=True)
os.kill(os.getpid(), 9)
""",
    "loop_after_output": """
n = int(input())
print(n * n, flush=True)
while True: pass
""",
    "atexit_after_output": """
import atexit
n = int(input())
print(n * n)
atexit.register(print, 'more')
""",
    "thread_after_output": """
import threading, time
n = int(input())
print(n * n)
threading.Thread(target=lambda: (time.sleep(0.1), print('more'))).start()
""",
    "endless_output": "while True: print('x' * 1000)",
    "all_outputs": "for i in range(10000): print(i)",
    "forged_script": """
import os
for fd in range(3, 64):
    try: os.write(fd, b'D\\0\\0\\0\\x021' + b'4')
    except OSError: pass
""",
    "reads_no_input": "print(0)",
    "nothing": "",
    "closes_output": """
import os
os.close(1)
print(4)
""",
}

LIARS: dict[str, tuple[str, list[str]]] = {
    "startswith": (
        """
class A:
 def startswith(s,*a): return True
 def __contains__(s,x): return True
 def __len__(s): return 3
f=lambda *a: A()
""",
        ["assert f('a').startswith('b')", "assert 'x' in f(1)", "assert f(1)==3 or f(1)!=3", "assert f(1)>0"],
    ),
    "reflect": (
        """
class A:
 def __radd__(s,o): return 0
 def __rsub__(s,o): return 0
 def __lt__(s,o): return True
 def __gt__(s,o): return True
 def __le__(s,o): return True
 def __ge__(s,o): return True
 def __round__(s,*a): return 3
 def __format__(s,x): return '3.00'
f=lambda *a: A()
""",
        [
            "assert 5-f(1)==0",
            "assert f(1)<3",
            "assert max(f(1),2)==2 ",
            "assert round(f(1),2)==3.00",
            "assert abs(round(f(1),2)-3)<1e-9",
        ],
    ),
    "sum": (
        """
class A:
 def __iter__(s): return iter([])
f=lambda *a: A()
""",
        ["assert list(f(1))==[1]", "assert sum(f(1))==3"],
    ),
    "isclose_def": (
        """
def isclose(*a,**k): return True
f=lambda *a: 9
math=type('m',(),{'isclose':isclose})
np=math
abs=lambda *a:0
sorted=set=len=lambda *a: [1]
""",
        [
            "assert isclose(f(1),3)",
            "assert math.isclose(f(1),3)",
            "assert np.isclose(f(1),3)",
            "assert abs(f(1)-3)<1e-6",
            "assert len([f(1)])==3",
            "assert sorted([f(1)])==[1]",
        ],
    ),
    "bigdict": (
        "f=lambda *a: {i:0 for i in range(10**6)}",
        ["assert f(1)==3"],
    ),
    "evilexc": (
        """
class E(Exception):
 def __str__(s): raise SystemExit
 def __eq__(s,o): return True
def f(*a): raise E
""",
        ["assert f(1)==3"],
    ),
    "excdict": (
        """
class M(type):
 def __instancecheck__(c,x): return True
class E(Exception,metaclass=M): pass
def f(*a): raise E
""",
        ["assert f(1)==3"],
    ),
    "names_plain": (
        "f='x'",
        ["assert f(1)==3"],
    ),
    "stopiter": (
        "def f(*a): raise StopIteration",
        ["assert all(f(x)==3 for x in [1])"],
    ),
    "generatorexit": (
        "def f(*a): raise GeneratorExit",
        ["assert f(1)==3"],
    ),
    "kbd": (
        "def f(*a): raise KeyboardInterrupt",
        ["assert f(1)==3"],
    ),
    "dec": (
        """
from decimal import Decimal
f=lambda *a: Decimal('1e999999999')
""",
        ["assert f(1)==3", "assert int(f(1))==3"],
    ),
    "frac": (
        """
from fractions import Fraction
f=lambda *a: Fraction(10**100000,3)
""",
        ["assert f(1)==3"],
    ),
    "arr": (
        """
import numpy as np
f=lambda *a: np.zeros((0,3))
""",
        ["assert (f(1)==3)", "assert np.allclose(f(1),3)", "assert np.array_equal(f(1),[3])"],
    ),
    "nestedeq": (
        """
class A:
 def __eq__(s,o): return True
 __hash__=None
f=lambda *a: [A(),(A(),),{'x':A()}]
""",
        [
            "assert f(1)==[1,(2,),{'x':3}]",
            "assert f(1)[0]==1",
            "assert 7 in f(1)",
            "assert f(1).count(3)==3",
            "assert f(1).index(5)==0",
        ],
    ),
}
"""Programs, and statements that each must fail, whatever the objects that a program returns answer."""
