"""Python programs in a sandbox."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from titanrl.protocols.tools import LiveTool, OpenTool
from titanrl.registry import Range, register
from titanrl.runtime.sandbox import Limits, Sandbox, missing_for_strict, remove_leftovers
from titanrl.runtime.sandbox_mounts import base_python, mounts

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest

__all__ = ["Python"]

UNPROTECTED = (
    "python: isolation = 'process' does not protect this machine: programs of the policy can read and write "
    "files, use the network and stop processes of their user; use 'strict', or a container for nothing else."
)
MAX_OUTPUT = 4 << 20
"""Bytes of output above which a program is killed."""
RUN = """
import ast, sys, traceback
sys.stderr = sys.stdout
sys.path.append({packages!r})
def run(source):
    names = {{"__name__": "__main__"}}
    try:
        tree = ast.parse(source, "<program>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<program>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit:
        raise
    except BaseException as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == "<program>"]
        for each in frames[-5:]:
            print("line", each.lineno, "in", each.name)
        print(*traceback.format_exception_only(error), sep="", end="")
run(sys.stdin.buffer.read().decode("utf-8", "replace"))
"""
"""Program that runs a program and prints the value of its last expression, as an interactive Python does."""


@register("tool", "python")
@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """Python programs in the sandbox of the reward `code_tests`: no network, no files of this machine.

    The result is the output, the value of the last expression, and the error if there is one. Each call is a
    process of its own, so that nothing of one call remains for the next. [Code rewards](../code-rewards.md)
    describes the sandbox.
    """

    timeout_seconds: Annotated[float, Range("(0, inf)")] = 10.0
    """Time limit of a program, seconds."""
    memory_mb: Annotated[int, Range("[64, 4096]")] = 512
    """Memory of a program, MiB."""
    isolation: Literal["strict", "process"] = "strict"
    """`strict`: a sandbox by bubblewrap without network, files of this machine and other processes.
    `process`: limits on time and memory only, no protection of files, network and other processes."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import, with what they require, beside the standard library."""

    def problems(self) -> list[tuple[str, str]]:
        """Returns the keys that this machine cannot satisfy, each with what is wrong and the remedy."""
        problems = []
        if self.isolation == "strict" and (missing := missing_for_strict()):
            problems.append(
                ("isolation", f"'strict' {missing} Or set isolation = 'process', see its meaning.")
            )
        try:
            mounts(self.packages, 1)
        except ModuleNotFoundError as error:
            problems.append(("packages", f"must be installed: {error}; install or remove it."))
        return problems

    def notices(self) -> list[str]:
        """Returns what a user should know about this tool on this machine."""
        return [UNPROTECTED] if self.isolation == "process" else []

    def start(self) -> LivePython:
        """Creates the live tool.

        Raises:
            SandboxError: this machine cannot make the sandbox.
        """
        return LivePython(self)


class LivePython(LiveTool):
    """Live tool of `python`."""

    def __init__(self, settings: Python) -> None:
        from titanrl.runtime.tools.schemas import FunctionTool

        self._settings = settings
        self._idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        self._idle.put(self._sandbox())

        def python(code: str) -> str:
            """Run a Python program and return its output.

            Args:
                code: The program. The value of its last expression is printed. Earlier calls leave nothing.
            """
            return self._run(code)

        tool = FunctionTool(python)
        self.schemas = (tool.schema,)
        self._opened = OpenTool({tool.name: tool})

    def open(self, row: RolloutRequest) -> OpenTool:
        """Returns the function, which has no state."""
        return self._opened

    def close(self) -> None:
        """Removes the sandboxes."""
        while not self._idle.empty():
            self._idle.get().close()
        remove_leftovers()

    def _sandbox(self) -> Sandbox:
        settings = self._settings
        limits = Limits(memory_mb=settings.memory_mb, cpu_seconds=settings.timeout_seconds)
        return Sandbox(limits, isolation=settings.isolation, packages=settings.packages)

    def _run(self, code: str) -> str:
        try:
            sandbox = self._idle.get_nowait()
        except queue.Empty:
            sandbox = self._sandbox()
        try:
            program = RUN.format(packages=sandbox.path)
            argv = [base_python(), "-I", "-S", "-X", "utf8", "-c", program]
            stdin = code.encode("utf-8", "replace")
            seconds = self._settings.timeout_seconds
            result = sandbox.run(argv, stdin=stdin, seconds=seconds, max_output=MAX_OUTPUT)
        finally:
            self._idle.put(sandbox)
        output = result.stdout.decode("utf-8", "replace")
        if result.killed_for == "wall time":
            raise TimeoutError(f"the program took longer than {seconds:g} s; output until then:\n{output}")
        if result.killed_for:
            raise RuntimeError(f"the program was killed, its limit of {result.killed_for} is exceeded")
        return output if not result.status else f"{output}\n[exit status {result.status}]".lstrip("\n")
