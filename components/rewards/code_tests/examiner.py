"""Process that evaluates test statements, in a sandbox without the program. Standard library only.

Names of the program are proxies: a call sends its arguments, as plain data, to the program's sandbox, and its
result comes back as plain data. So `assert f(2) == 4` compares an exact int with 4 here. An object of the
program that is no plain data stays there; here, only what it says about itself is seen, and comparing it with
`==` is an error, because its answer would be the program's.
"""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from titanrl.components.rewards.code_tests.wire import (
    Closed,
    Decoder,
    Encoder,
    TooLarge,
    read_frame,
    write_frame,
)

__all__ = ["serve"]


PREDICATES = frozenset(
    name
    for cls in (str, bytes, float, set)
    for name in dir(cls)
    if name.startswith("is") or name in ("startswith", "endswith")
)
"""Methods of builtin types that judge; the object of a program must not stand in for a string, say."""


class ProgramEnded(BaseException):
    """The program's process has ended, or broke the protocol; no statement can pass after that."""


class NotPlain(BaseException):
    """A test passes something to the program that cannot travel: the fault is the test's."""


class Link(Encoder, Decoder):
    """The dialogue with one program.

    Args:
        fd: the descriptor.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._functions: list[Callable[..., Any]] = []
        self._exceptions: dict[int, type[Exception]] = {}
        self._proxies: dict[int, Proxy] = {}
        self.num_replies = 0
        """Replies in this test: until the first one, nothing that happens is the program's doing."""
        self.has_ended = False
        self.is_lost = False
        """Whether the program broke the protocol while its process runs on; no test can be evaluated then."""

    def opaque(self, value: Any) -> bytes:
        if type(value) is Proxy:
            return b"o%d,;" % object.__getattribute__(value, "_number")
        if isinstance(value, type) and issubclass(value, Exception):
            for number, cls in self._exceptions.items():
                if cls is value:
                    return b"o%d,;" % number
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type):
            self._functions.append(value)
            return b"f%d;" % (len(self._functions) - 1)
        raise NotPlain(
            f"a test passes a value of type {type(value).__name__} to the program; it is no plain data"
        )

    def reference(self, number: int, text: str) -> Any:
        if not text:
            if number not in self._proxies:
                self._proxies[number] = Proxy(self, number)
            return self._proxies[number]
        if number not in self._exceptions:
            self._exceptions[number] = type("ProgramError", (_exception(text),), {})
        return self._exceptions[number]

    def begin(self, names: list[str]) -> dict[str, Any]:
        """Start the program again; return the values of those names that it defines."""
        self.num_replies = 0
        self._functions.clear()
        self._exceptions.clear()
        self._proxies.clear()
        write_frame(self._fd, b"B", Encoder().encode(names))
        values = self._reply(b"R")
        if type(values) is not dict or not set(values) <= set(names):
            self.is_lost = True
            raise self._broken()
        return values

    def end(self) -> None:
        """Let the program's process end."""
        if not self.has_ended:
            write_frame(self._fd, b"E")
            while read_frame(self._fd)[0] != b"D":
                pass

    def request(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of an operation of the program; raise what it raises."""
        if self.has_ended:
            raise ProgramEnded
        try:
            content = self.encode((name, args, kwargs))
        except TooLarge as error:
            raise NotPlain(f"a test passes {error}") from None
        try:
            write_frame(self._fd, b"C", content)
        except Closed:
            raise self._broken() from None
        reply = self._reply(b"V")
        try:
            result, same, changed = reply
            for i, value in changed.items():
                _update(args[i], value)
            return result if same < 0 else args[same]
        except (TypeError, ValueError, AttributeError, LookupError):
            self.is_lost = True
            raise self._broken() from None

    def _reply(self, expected: bytes) -> Any:
        """Return the value of the next frame of a kind; call functions that it asks for meanwhile."""
        while True:
            kind = b""
            value: Any = None
            try:
                kind, content = read_frame(self._fd)
                if content:
                    value = self.decode(content)
                if kind == b"F":
                    number, args, kwargs = value
                    function = self._functions[number]
                elif kind == b"X":
                    name, text, number = value
                    error = self._error(name, str(text), number)
                elif kind != expected:
                    raise ValueError("unexpected frame")
            # Whatever the program sends, it can only end its own test.
            except (Closed, ValueError, TypeError, LookupError, RecursionError, ArithmeticError, ImportError):
                self.is_lost = kind != b"D"
                raise self._broken() from None
            if kind in (b"V", b"X"):
                self.num_replies += 1
            if kind == expected:
                return value
            if kind == b"X":
                raise error
            self._call_back(function, args, kwargs)

    def _error(self, name: str, text: str, number: int) -> Exception:
        cls = _exception(name)
        if type(number) is int and number >= 0:
            cls = self.reference(number, name)
        return cls(text)

    def _call_back(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            kind, content = b"V", self.encode(function(*args, **kwargs))
        except (Exception, NotPlain) as error:  # The program hears of it; it chose the arguments.
            name = type(error).__name__ if isinstance(error, Exception) else "TypeError"
            kind, content = b"X", self.encode((name, str(error)[:1000]))
        try:
            write_frame(self._fd, kind, content)
        except Closed:
            raise self._broken() from None

    def _broken(self) -> ProgramEnded:
        self.has_ended = True
        return ProgramEnded()


def _exception(name: str) -> type[Exception]:
    cls = getattr(builtins, name, None)
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else RuntimeError


def _update(argument: Any, value: Any) -> None:
    """Give a mutable argument the value that it has after a call."""
    if type(argument) is not type(value):
        raise ValueError("an argument changed its type")
    if type(argument) in (list, bytearray):
        argument[:] = value
    else:
        argument.clear()
        argument.update(value)


class Proxy:
    """An object of the program that is no plain data, such as a function, a class or an instance."""

    __slots__ = ("_link", "_number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            raise TypeError(f"an object of the program is no plain data, so {name} would be its own word")
        return _ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __eq__(self, other: object) -> bool:
        raise TypeError("an object of the program is no plain data, so it cannot be compared")

    __ne__ = __eq__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_link").request("call", self, *args, **kwargs)

    def __bool__(self) -> bool:
        return bool(_exactly(bool, _ask(self, "bool")))

    def __str__(self) -> str:
        return str(_exactly(str, _ask(self, "str")))

    def __repr__(self) -> str:
        return str(_exactly(str, _ask(self, "repr")))

    def __len__(self) -> int:
        return int(_exactly(int, _ask(self, "len")))

    def __iter__(self) -> Iterator[Any]:
        iterator = _ask(self, "iter")
        while True:
            try:
                value = _ask(iterator, "next")
            except StopIteration:
                return
            yield value

    def __next__(self) -> Any:
        return _ask(self, "next")

    def __int__(self) -> int:
        return int(_exactly(int, _ask(self, "int")))

    def __index__(self) -> int:
        return int(_exactly(int, _ask(self, "index")))

    def __float__(self) -> float:
        return float(_exactly(float, _ask(self, "float")))

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Proxy and bool(_exactly(bool, _ask(value, "isinstance", self)))


def _ask(proxy: Any, name: str, *args: Any) -> Any:
    if type(proxy) is not Proxy:
        raise TypeError("the program returned plain data where an object is needed")
    return object.__getattribute__(proxy, "_link").request(name, proxy, *args)


def _exactly(cls: type, value: Any) -> Any:
    if type(value) is not cls:
        raise TypeError(f"an object of the program gave no {cls.__name__}")
    return value


def _forward(name: str) -> Callable[..., Any]:
    def operate(self: Any, *others: Any) -> Any:
        # With a value of the test, such as 1.5 in abs(f(x) - 1.5), the result would be the program's word.
        if not all(type(other) is Proxy for other in others):
            return NotImplemented
        return _ask(self, name, *others)

    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "le", "gt", "ge"):
    setattr(Proxy, f"__{_name}__", _forward(_name))
for _name in ("and_", "or_", "xor", "neg", "pos", "invert", "abs", "reversed"):
    setattr(Proxy, f"__{_name.rstrip('_')}__", _forward(_name))
for _name in ("getitem", "setitem", "delitem"):
    setattr(Proxy, f"__{_name}__", lambda self, *args, _name=_name: _ask(self, _name, *args))


def _verdict(link: Link, source: str, names: list[str], library: dict[str, tuple[str, str]]) -> bytes:
    """Return 1 if a statement runs to its end, else 0; U with a text if it cannot be evaluated.

    R with a text is a 0 for the reason of U, but the program may have caused it.

    Args:
        link: the program.
        source: the statement.
        names: names that the program is to define.
        library: name -> module, and its attribute or "" for the module itself.
    """
    try:
        values = link.begin(names)
        namespace = {"__name__": "test", "__builtins__": builtins}
        for name, (module, attribute) in library.items():
            imported = importlib.import_module(module)
            namespace[name] = getattr(imported, attribute) if attribute else imported
        _guard_numpy()
        # Tests are the dataset's, and this process is sandboxed too.
        exec(compile(source, "<test>", "exec", dont_inherit=True), namespace | values)  # nosec B102
        return b"0" if link.has_ended else b"1"
    except NotPlain as error:
        return (b"R" if link.num_replies else b"U") + str(error).encode()[:500]
    except ImportError as error:
        if link.num_replies:
            return b"0"
        return b"U" + f"a test needs a module that is missing: {error}".encode()[:500]
    except BaseException:
        return b"0"


def _guard_numpy() -> None:
    """Make numpy.allclose false if only one side is empty: an empty result is close to every number."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or getattr(numpy.allclose, "is_guarded", False):
        return
    allclose = numpy.allclose

    def guarded(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        return bool(numpy.size(a)) == bool(numpy.size(b)) and allclose(a, b, *args, **kwargs)

    guarded.is_guarded = True  # type: ignore[attr-defined]
    numpy.allclose = guarded


def _examine(fd: int, link_fd: int, job: Any) -> None:
    """Evaluate the tests of one program and write a verdict per test, in a process of its own."""
    seconds, tests, stops_early = job
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    link = Link(link_fd)
    for source, names, library in tests:
        verdict = _verdict(link, source, names, library)
        write_frame(fd, b"T", verdict)
        if verdict[:1] == b"U" or (stops_early and verdict != b"1") or link.is_lost:
            break
        try:
            link.end()
        except (Closed, TooLarge):
            break
        link.has_ended = False
    os._exit(0)


def serve(fd: int, packages: str) -> None:
    """Fork a process per job; a job arrives with the descriptor of a dialogue with a program.

    Args:
        fd: descriptor of the grader, a socket.
        packages: folder from which tests may import.
    """
    sys.path.append(packages)
    grader = socket.socket(fileno=os.dup(fd))
    while True:
        _, fds, _, _ = socket.recv_fds(grader, 1, 1)
        if not fds:
            os._exit(0)
        job = Decoder().decode(read_frame(fd, 64 << 20)[1])
        pid = os.fork()
        if pid == 0:
            grader.close()
            try:
                _examine(fd, fds[0], job)
            finally:
                os._exit(1)
        os.close(fds[0])
        os.waitpid(pid, 0)
        write_frame(fd, b"D")
