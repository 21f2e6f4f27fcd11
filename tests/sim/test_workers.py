import multiprocessing
import os
import sys
from collections.abc import Callable

import pytest

from autoscaler.sim.workers import spread


def square(number: int, told: Callable[[float], None]) -> int:
    told(0.5)
    return number * number


def process(_number: int, _told: Callable[[float], None]) -> int:
    return os.getpid()


def fail_at_two(number: int, _told: Callable[[float], None]) -> int:
    if number == 2:
        raise ValueError("two")
    return number


def die(_number: int, _told: Callable[[float], None]) -> int:
    os._exit(9)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int) -> None:
    assert spread(square, list(range(7)), jobs=jobs) == [0, 1, 4, 9, 16, 25, 36]


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_rises_to_one(jobs: int) -> None:
    shares: list[float] = []
    spread(square, list(range(4)), jobs=jobs, told=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_several_jobs_work_in_other_processes() -> None:
    assert os.getpid() not in spread(process, [1, 2], jobs=2)
    assert spread(process, [1, 2], jobs=1) == [os.getpid()] * 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_error_of_an_item_is_the_error_of_all_and_leaves_no_process(jobs: int) -> None:
    with pytest.raises(ValueError, match="two"):
        spread(fail_at_two, list(range(5)), jobs=jobs)
    for child in multiprocessing.active_children():
        child.join(5)
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(RuntimeError, match="a worker process died"):
        spread(die, [1, 2], jobs=2)


def test_ray_that_is_not_installed_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    with pytest.raises(ValueError, match=r"pip install 'vllm-autoscaler\[ray\]'"):
        spread(square, [1], ray=True)
