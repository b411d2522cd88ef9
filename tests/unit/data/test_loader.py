"""The loader: the same examples from worker processes, ahead of time, and one number to go on from."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

import pytest
import torch

from titanrl.data.loader import Loader, Workers
from titanrl.data.order import IndexSampler
from titanrl.errors import ConfigError

SIZE, SEED, BAD = 7, 3, 5
SECONDS = 0.02
"""What a slow example takes."""


def read(index: int, *, bad: int = -1) -> str:
    if index == bad:
        raise ConfigError(f"answers.jsonl:{index + 1}: prompt must be a text, got {index}.")
    return "x" * index


def read_slowly(index: int) -> int:
    time.sleep(SECONDS)
    return index


def order(position: int = 0, size: int = SIZE) -> IndexSampler:
    found = IndexSampler(size, seed=SEED)
    found.load_state_dict({"position": position})
    return found


def expected(start: int, stop: int) -> list[tuple[int, str]]:
    return [(index, "x" * index) for index, _ in zip(order(start), range(stop - start), strict=False)]


def taken(loader: Loader[str], count: int) -> list[tuple[int, str]]:
    return [next(loader) for _ in range(count)]


@pytest.mark.slow
def test_num_workers_may_change_on_resume_without_changing_examples() -> None:
    torch.manual_seed(0)
    random = torch.get_rng_state()
    loader, position = Loader(read, order(), Workers(2, prefetch=9)), 0
    for count in (3, 9):
        # What is read ahead, here beyond an epoch's end, is neither lost nor taken.
        assert taken(loader, count) == expected(position, position + count)
        position += count
        assert loader.state_dict() == {"position": position}
        alone = Loader(read, order())
        alone.load_state_dict(loader.state_dict())
        assert taken(alone, 5) == expected(position, position + 5)
        position += 4
        alone.load_state_dict({"position": position})
        loader.load_state_dict(alone.state_dict())
    assert torch.equal(torch.get_rng_state(), random), "the run's random numbers are its own"


@pytest.mark.slow
def test_workers_end_when_the_loader_is_closed_and_restart_on_use(recwarn: pytest.WarningsRecorder) -> None:
    loader = Loader(read, order(), Workers(1))
    assert loader.state_dict() == {"position": 0}
    assert not multiprocessing.active_children(), "no worker is started before the first example is taken"
    taken(loader, 2)
    assert len(multiprocessing.active_children()) == 1
    loader.close()
    assert not multiprocessing.active_children()
    assert loader.position == 2
    assert taken(loader, 3) == expected(2, 5)
    loader.close()
    assert not [each for each in recwarn if "torchdata" in each.filename]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_an_example_is_raised_when_it_is_read(workers: int) -> None:
    loader = Loader(partial(read, bad=BAD), order(), Workers(workers, prefetch=SIZE))
    place = [index for index, _ in expected(0, SIZE)].index(BAD)
    assert taken(loader, place) == expected(0, place)
    with pytest.raises(ConfigError) as error:
        next(loader)
    assert str(error.value) == "answers.jsonl:6: prompt must be a text, got 5."
    assert taken(loader, 1) == expected(place + 1, place + 2)
    loader.close()


def test_unpicklable_dataset_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"\[loop\] data_workers cannot pickle .*or set data_workers = 0"):
        next(Loader(lambda index: index, order(), Workers(1)))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_workers_read_a_slow_source_while_a_step_computes() -> None:
    """Ten examples of 20 ms take a step 0.2 s by itself, and next to nothing when two workers are ahead."""
    step, spent = 10, {}
    for workers in (0, 2):
        loader = Loader(read_slowly, order(size=100), Workers(workers, prefetch=step))
        next(loader)
        time.sleep(3 * step * SECONDS)  # the step
        began = time.perf_counter()
        assert len([next(loader) for _ in range(step)]) == step
        spent[workers] = time.perf_counter() - began
        loader.close()
    assert spent[0] >= step * SECONDS
    assert spent[2] < spent[0] / 2
