"""Process 1 of a program's sandbox: it forks a process per test. Standard library only.

The program can read and change everything here, so nothing here is trusted and nothing is secret: it gets the
program and the arguments of calls, and sends back values. It is sent as source together with wire.py.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from titanrl.components.rewards.code_tests.wire import (
    Closed,
    Decoder,
    Encoder,
    TooLarge,
    read_frame,
    write_frame,
)

__all__ = ["ENDED", "serve"]

ENDED = 42
"""Exit status of a script that ran to its end; os._exit(0) gives another one."""
MAX_OUTPUT = 16 << 20
"""Bytes of a script's output."""


class _Codec(Encoder, Decoder):
    """Objects of the program become numbers, and functions of the tests become functions that ask for a call.

    Args:
        fd: the descriptor.
        module: the program.
    """

    def __init__(self, fd: int, module: types.ModuleType) -> None:
        self._fd, self._module = fd, module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """Return the number of an object, which lives on with it."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def opaque(self, value: Any) -> bytes:
        base = ""
        if isinstance(value, type) and issubclass(value, Exception):
            base = _builtin_name(value)
        return b"o%d,%s;" % (self.number(value), base.encode())

    def is_opaque(self, value: Any) -> bool:
        # A class of the program with methods of its own is used as an object; a named tuple is a value.
        return any(_public_functions(cls, self._module.__name__) for cls in type(value).__mro__)

    def reference(self, number: int, text: str) -> Any:
        return self._objects[number]

    def function(self, number: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            write_frame(self._fd, b"F", self.encode((number, args, kwargs)))
            kind, content = read_frame(self._fd)
            value = self.decode(content)
            if kind == b"V":
                return value
            raise getattr(builtins, value[0], RuntimeError)(value[1])

        return call


def _public_functions(cls: type, module: str) -> list[str]:
    if cls.__module__ != module:
        return []
    functions = (types.FunctionType, classmethod, staticmethod, property)
    return [
        name for name, each in vars(cls).items() if isinstance(each, functions) and not name.startswith("_")
    ]


def _builtin_name(cls: type) -> str:
    return str(next(each.__name__ for each in cls.__mro__ if getattr(builtins, each.__name__, None) is each))


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "getattr": getattr,
    "setattr": setattr,
    "isinstance": isinstance,
    **{each.__name__: each for each in (len, iter, next, str, repr, bool, int, float, abs, reversed)},
    **{
        name: getattr(operator, name)
        for name in ("getitem", "setitem", "delitem", "contains", "index", "neg", "pos", "invert")
    },
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor")
    },
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge")},
}


def _answer(codec: _Codec, content: bytes) -> tuple[bytes, bytes]:
    """Run one operation; return the kind and the content of the reply."""
    name, args, kwargs = codec.decode(content)
    is_mutable = [type(each) in (list, dict, set, bytearray) for each in args]
    before = [codec.encode(each) if is_it else b"" for each, is_it in zip(args, is_mutable, strict=True)]
    try:
        result = OPERATIONS[name](*args, **kwargs)
    except Exception as error:
        kind = type(error)
        cls = -1 if getattr(builtins, kind.__name__, None) is kind else codec.number(kind)
        try:
            text = str(error)[:1000]
        except Exception:
            text = ""
        return b"X", codec.encode((_builtin_name(kind), text, cls))
    changed = {
        i: each
        for i, (each, is_it, code) in enumerate(zip(args, is_mutable, before, strict=True))
        if is_it and codec.encode(each) != code
    }
    same = next((i for i, each in enumerate(args) if is_mutable[i] and each is result), -1)
    try:
        return b"V", codec.encode((None if same >= 0 else result, same, changed))
    except TooLarge as error:
        return b"X", codec.encode(("OverflowError", f"the program returned {error}", -1))


def _execute(source: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules[name] = module
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    # This file runs inside the sandbox.
    exec(compile(source, "<program>", "exec", dont_inherit=True), vars(module))  # nosec B102
    return module


def _define(fd: int, source: str, names: list[str]) -> None:
    """Run the program as a module, send the values of names, and then answer operations."""
    module = _execute(source, "solution")
    codec = _Codec(fd, module)
    values = {name: vars(module)[name] for name in names if name in vars(module)}
    write_frame(fd, b"R", codec.encode(values))
    while True:
        kind, content = read_frame(fd)
        if kind != b"C":
            os._exit(0)
        write_frame(fd, *_answer(codec, content))


def _script(source: str) -> None:
    """Run the program as a script; its normal end, or sys.exit(0), ends this process with ENDED."""
    try:
        _execute(source, "__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    # Ending the interpreter as usual waits for threads, calls atexit functions and writes what is buffered.
    sys.exit(ENDED)


def _child(fd: int, kind: bytes, source: str, names: list[str]) -> None:
    try:
        if kind == b"B":
            _define(fd, source, names)
        else:
            _script(source)
    except SystemExit as error:
        if kind == b"S" and error.code == ENDED:
            raise
        os._exit(1)
    except BaseException:
        os._exit(1)


def _kill_others() -> None:
    """Kill what a test left behind, if this is process 1 of a namespace; else the grader does it."""
    if os.getpid() == 1:
        try:  # contextlib would cost more to import than the whole start.
            os.kill(-1, 9)
        except OSError:
            return
    try:
        while os.waitpid(-1, 0 if os.getpid() == 1 else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _stream(content: bytes | None) -> int:
    """Return a file without a name, with a content to be read, or empty to be written."""
    fd = os.open(".stream", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(".stream")
    view = memoryview(content or b"")
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _clear(folder: str) -> None:
    """Remove what is in a folder, as far as that is possible."""
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _clear(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
    except (OSError, RecursionError):
        pass


def _output(fd: int, status: int) -> bytes:
    """Return a flag, whether a script ran to its end, and its output if so."""
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != ENDED:
        return b"0"
    output = b""
    while len(output) < MAX_OUTPUT and (part := os.pread(fd, 1 << 20, len(output))):
        output += part
    return b"1" + output


def serve(fd: int, packages: str) -> None:
    """Read the program, and run it once per frame B (as a module) or S (as a script, with its input).

    After each, a frame D holds a flag, whether a script ran to its end, and the script's output.

    Args:
        fd: descriptor of the dialogue.
        packages: folder from which the program may import.
    """
    source = read_frame(fd)[1].decode("utf-8", "surrogatepass")
    decoder = Decoder()
    try:
        while True:
            kind, content = read_frame(fd, 64 << 20)
            if kind not in (b"B", b"S"):
                continue  # Meant for a process that has ended.
            null = os.open(os.devnull, os.O_RDWR)
            stdin = _stream(content) if kind == b"S" else null
            stdout = _stream(None) if kind == b"S" else null
            pid = os.fork()
            if pid == 0:
                os.dup2(stdin, 0)
                os.dup2(stdout, 1)
                os.dup2(null, 2)
                for each in {stdin, stdout, null}:
                    os.close(each)
                sys.path.append(packages)
                sys.argv[:] = ["program"]
                names = decoder.decode(content) if kind == b"B" else []
                if kind == b"S":
                    os.close(fd)
                _child(fd, kind, source, names)
                os._exit(1)
            status = os.waitpid(pid, 0)[1]
            _kill_others()
            _clear(".")
            output = _output(stdout, status) if kind == b"S" else b""
            for each in {stdin, stdout, null}:
                os.close(each)
            write_frame(fd, b"D", output)
    except Closed:
        os._exit(0)
