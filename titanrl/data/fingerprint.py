"""Fingerprint of a source: whether a resumed run reads the rows that it was started with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from titanrl.data.columns import json_value

__all__ = ["compare", "fingerprint"]

NUM_ROWS = 128
"""Maximum number of rows that are read."""
DIGEST_BYTES = 6
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Objects without a text of their own show where they are in memory."""


class Rows(Protocol):
    """A source of prompts or examples of any kind."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


def fingerprint(source: Rows) -> dict[str, Any]:
    """Return the number of rows of a source, and hashes of the first, the last and evenly spread rows.

    At most ``NUM_ROWS`` rows are read, so that it is cheap for large and for generated sources. A change of
    other rows, with the same number of rows, is not noticed.

    Args:
        source: rows by index.
    """
    size = len(source)
    count = min(size, NUM_ROWS)
    indices = [i * (size - 1) // max(count - 1, 1) for i in range(count)]
    return {"rows": size, "hashes": {str(index): _digest(source, index) for index in indices}}


def compare(stored: Mapping[str, Any], source: Rows) -> str:
    """Return in words how a source differs from a stored fingerprint; "" if it does not.

    Args:
        stored: as ``fingerprint`` returns it.
        source: rows by index.
    """
    size, hashes = len(source), stored["hashes"]
    present = [index for index in hashes if int(index) < size]
    digests = {index: _digest(source, int(index)) for index in present}
    changed = [index for index in present if digests[index] != hashes[index]]
    facts = []
    if size != stored["rows"]:
        facts.append(f"it has {size} rows, had {stored['rows']}")
    if changed:
        is_moved = size == stored["rows"] and sorted(digests.values()) == sorted(hashes.values())
        kind = "are in another order" if is_moved else "differ"
        facts.append(f"{len(changed)} of {len(present)} compared rows {kind}, the first is row {changed[0]}")
    return ", and ".join(facts)


def _digest(source: Rows, index: int) -> str:
    """Return a hash of a row; a row that cannot be read has the hash of its kind of error."""
    try:
        content = ADDRESS.sub("", json.dumps(json_value(source[index]), sort_keys=True))
    except Exception as error:  # A source may raise any type; the row is reported when it is reached.
        content = type(error).__name__
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
