"""The verdict of the soak tool."""

from __future__ import annotations

import random

import pytest

from tools.soak import growth


def test_line_has_its_own_growth() -> None:
    found = growth(range(100, 300), [5.0 + 0.01 * step for step in range(100, 300)])
    assert found.total == pytest.approx(1.99)
    assert found.margin == pytest.approx(0.0, abs=1e-6)
    assert found.exceeds(0.1)
    assert not found.exceeds(0.5)


def test_noise_is_flat() -> None:
    generator = random.Random(0)
    assert not growth(range(300), [5.0 + generator.gauss(0, 1) for _ in range(300)]).exceeds(0.03)
