"""Plain data on a descriptor: frames, and an encoding of builtin values by value. Standard library only.

Both sides of a dialogue use it, and neither trusts the other: decoding makes values of builtin types and
calls no constructor but those of Decimal, Fraction and numeric arrays. Everything else travels as a number
that stands for an object of the other side.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["MAX_FRAME", "Closed", "Decoder", "Encoder", "TooLarge", "read_frame", "write_frame"]

MAX_FRAME = 8 << 20
"""Bytes of one frame."""
MAX_DEPTH = 100
"""Levels of nested containers."""
TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        *(bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range),
        *(object, type, type(None)),
    )
}
"""Builtin types that travel by name."""


class Closed(Exception):
    """The other side has closed the descriptor."""


class TooLarge(ValueError):
    """A value is too large or too deep to travel, or refers to itself."""


def read_frame(fd: int, limit: int = MAX_FRAME) -> tuple[bytes, bytes]:
    """Return the kind, one byte, and the content of the next frame.

    Raises:
        Closed: there is none.
        TooLarge: it is longer than ``limit``.
    """
    head = _read(fd, 5)
    size = int.from_bytes(head[1:], "big")
    if size > limit:
        raise TooLarge(f"a frame of {size} bytes")
    return head[:1], _read(fd, size)


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = os.read(fd, min(size, 1 << 16))
        except ConnectionError:
            part = b""
        if not part:
            raise Closed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_frame(fd: int, kind: bytes, content: bytes = b"") -> None:
    """Write a frame; see ``read_frame``.

    Raises:
        Closed: the other side does not read it.
    """
    data = memoryview(kind + len(content).to_bytes(4, "big") + content)
    while data:
        try:
            data = data[os.write(fd, data) :]
        except ConnectionError:
            raise Closed from None


class Encoder:
    """Writes values; subclasses decide about objects that are no plain data."""

    def opaque(self, value: Any) -> bytes:
        """Return the code of an object that is no plain data.

        Raises:
            TypeError: it cannot travel.
        """
        raise TypeError(f"{type(value).__name__} is no plain data")

    def is_opaque(self, value: Any) -> bool:
        """Whether an instance of a subclass of a builtin type travels as an object, not by value."""
        return False

    def encode(self, value: Any) -> bytes:
        """Return the code of a value.

        Raises:
            TooLarge: see there.
            TypeError: as for ``opaque``.
        """
        parts: list[bytes] = []
        self._size = 0
        self._encode(value, parts, 0)
        return b"".join(parts)

    def _add(self, parts: list[bytes], part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_FRAME - 64:
            raise TooLarge("a value of too many bytes")
        parts.append(part)

    def _encode(self, value: Any, parts: list[bytes], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TooLarge("a value that is nested too deeply, or contains itself")
        code = self._scalar(value)
        if code is not None:
            self._add(parts, code)
            return
        kind, items = self._items(value)
        if not kind:
            self._add(parts, self._other(value, depth))
            return
        self._add(parts, b"%c%x;" % (kind, len(items)))
        for item in items:
            self._encode(item, parts, depth + 1)

    def _scalar(self, value: Any) -> bytes | None:
        base = type(value)
        if base not in _SCALARS and base is not type(None):
            if self.is_opaque(value):
                return None
            base = next((each for each in _SCALARS if issubclass(base, each)), base)
        if value is None:
            return b"N"
        if base is bool:
            return b"T" if value else b"F"
        if base is int:
            return b"i%x;" % int.__index__(value)
        if base is float:
            return b"d%s;" % float.hex(value).encode()
        if base is complex:
            number = complex.__add__(value, 0j) if type(value) is not complex else value
            return b"c%s,%s;" % (float.hex(number.real).encode(), float.hex(number.imag).encode())
        if base is str:
            if len(value) > MAX_FRAME:
                raise TooLarge("a string of too many characters")
            text = str.encode(value, "utf-8", "surrogatepass")
            return b"s%x;%s" % (len(text), text)
        if base is bytes or base is bytearray:
            if len(value) > MAX_FRAME:
                raise TooLarge("too many bytes")
            content = bytes(memoryview(value))
            return b"%s%x;%s" % (b"b" if base is bytes else b"B", len(content), content)
        return None

    def _items(self, value: Any) -> tuple[int, list[Any]]:
        base: Any = type(value)
        if base not in _CONTAINERS:
            if self.is_opaque(value):
                return 0, []
            base = next((each for each in _CONTAINERS if issubclass(base, each)), base)
        if base is dict:
            return ord("m"), [each for pair in dict.items(value) for each in pair]
        if base in _CONTAINERS:
            return _CONTAINERS[base], [*base.__iter__(value)]
        if base is range:
            return ord("r"), [value.start, value.stop, value.step]
        return 0, []

    def _other(self, value: Any, depth: int) -> bytes:
        if isinstance(value, type) and TYPES.get(value.__name__) is value:
            return b"y%s;" % value.__name__.encode()
        for module, names in _TEXTUAL.items():
            if module in sys.modules and type(value).__name__ in names:
                cls: Any = getattr(sys.modules[module], type(value).__name__, None)
                if cls is not None and type(value) is cls:
                    text = str(value).encode()
                    return b"x%s;%x;%s" % (cls.__name__.encode(), len(text), text)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
            parts: list[bytes] = []
            self._encode(value.item(), parts, depth + 1)
            return b"".join(parts)
        if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            if value.nbytes > MAX_FRAME:
                raise TooLarge("an array of too many bytes")
            shape = ",".join(map(str, value.shape)).encode()
            data = value.tobytes()
            return b"a%s;%s;%x;%s" % (value.dtype.str.encode(), shape, len(data), data)
        return self.opaque(value)


_SCALARS = (bool, int, float, complex, str, bytes, bytearray)
_CONTAINERS = {list: ord("l"), tuple: ord("t"), set: ord("e"), frozenset: ord("z"), dict: ord("m")}
_TEXTUAL = {"decimal": ("Decimal",), "fractions": ("Fraction",)}


class Decoder:
    """Reads values; subclasses decide about objects of the other side."""

    def reference(self, number: int, text: str) -> Any:
        """Return what stands for an object of the other side.

        Args:
            number: its number there.
            text: further facts about it.
        """
        raise ValueError("unexpected reference")

    def function(self, number: int) -> Any:
        """Return what stands for a function of the other side."""
        raise ValueError("unexpected function")

    def decode(self, data: bytes) -> Any:
        """Return the value of a code.

        Raises:
            ValueError: it is no code of a value.
        """
        self._data, self._at = data, 0
        value = self._decode(0)
        if self._at != len(data):
            raise ValueError("bytes after the value")
        return value

    def _text(self) -> bytes:
        end = self._data.index(b";", self._at)
        text, self._at = self._data[self._at : end], end + 1
        return text

    def _bytes(self) -> bytes:
        size = int(self._text(), 16)
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError("wrong length")
        content, self._at = self._data[self._at : self._at + size], self._at + size
        return content

    def _decode(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        kind = chr(self._data[self._at]) if self._at < len(self._data) else ""
        self._at += 1
        if kind in "NTF" and kind:
            return {"N": None, "T": True, "F": False}[kind]
        if kind == "i":
            return int(self._text(), 16)
        if kind == "d":
            return float.fromhex(self._text().decode())
        if kind == "c":
            real, imag = self._text().decode().split(",")
            return complex(float.fromhex(real), float.fromhex(imag))
        if kind == "s":
            return self._bytes().decode("utf-8", "surrogatepass")
        if kind == "b":
            return self._bytes()
        if kind == "B":
            return bytearray(self._bytes())
        if kind and kind in "ltezmr":
            return self._container(kind, depth)
        if kind == "y":
            return TYPES[self._text().decode()]
        if kind == "x":
            return self._textual(self._text().decode(), self._bytes().decode())
        if kind == "a":
            return self._array(self._text().decode(), self._text().decode(), self._bytes())
        if kind == "o":
            number, _, text = self._text().decode().partition(",")
            return self.reference(int(number), text)
        if kind == "f":
            return self.function(int(self._text()))
        raise ValueError("unknown kind")

    def _container(self, kind: str, depth: int) -> Any:
        count = int(self._text(), 16)
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("wrong count")
        items = [self._decode(depth + 1) for _ in range(count)]
        if kind == "l":
            return items
        if kind == "m":
            return dict(zip(items[::2], items[1::2], strict=True))
        if kind == "r":
            start, stop, step = items
            return range(start, stop, step)
        return {"t": tuple, "e": set, "z": frozenset}[kind](items)

    def _textual(self, name: str, text: str) -> Any:
        if name == "Decimal":
            from decimal import Decimal

            return Decimal(text)
        if name == "Fraction":
            from fractions import Fraction

            top, _, bottom = text.partition("/")
            return Fraction(int(top), int(bottom or 1))
        raise ValueError("unknown type")

    def _array(self, dtype: str, shape: str, data: bytes) -> Any:
        import numpy

        if len(dtype) > 4 or dtype[0] not in "<>|=" or dtype[1] not in "biufc" or not dtype[2:].isdigit():
            raise ValueError("unknown dtype")
        sizes = [int(size) for size in shape.split(",") if size]
        return numpy.frombuffer(bytearray(data), numpy.dtype(dtype)).reshape(sizes)
