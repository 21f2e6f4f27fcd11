"""Many runs at once: on all cores of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_shared: Any = None  # of this worker process


def _share(value: Any) -> None:
    """Prepare a worker. Ctrl-C is for the process that waits; it ends the workers."""
    global _shared  # noqa: PLW0603  (what a pool's initializer is for)
    _shared = value
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(function: Callable[[Any, Item], Result], item: Item) -> Result:
    return function(_shared, item)


def sweep(
    function: Callable[[Any, Item], Result],
    shared: Any,
    items: Sequence[Item],
    workers: int | None = None,
    ray: bool = False,
) -> Iterator[tuple[int, Result]]:
    """Call `function(shared, item)` for every item and yield the place of each with its result, as they are done.

    `function` must be one of a module and everything must be picklable; `shared` (a trace, say) travels once. workers:
    processes, as many as cores if None; 1 runs in this one. An error in a call ends the sweep with it. With `ray` the
    calls are tasks of the cluster that the environment names, else of one on this machine. Raises RuntimeError if the
    library is missing, or if a worker process died.
    """
    if ray:
        yield from _on_ray(function, shared, items)
    elif (workers or os.cpu_count() or 1) == 1 or len(items) < 2:
        for place, item in enumerate(items):
            yield place, function(shared, item)
    else:
        context = get_context("spawn")  # compiled code and threads of the parent do not survive a fork
        with ProcessPoolExecutor(workers, context, initializer=_share, initargs=(shared,)) as pool:
            futures = {pool.submit(_call, function, item): place for place, item in enumerate(items)}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool as error:
                raise RuntimeError(
                    "a worker process died, most likely for want of memory; use fewer workers"
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)


def _on_ray(
    function: Callable[[Any, Item], Result], shared: Any, items: Sequence[Item]
) -> Iterator[tuple[int, Result]]:
    try:
        ray: Any = import_module("ray")  # optional, and slow to import
    except ImportError as error:
        raise RuntimeError("a sweep on Ray needs its library: pip install 'vllm-autoscaler[ray]'") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    there = ray.put(shared)
    task = ray.remote(function)
    places = {task.remote(there, item): place for place, item in enumerate(items)}
    while places:
        done, _ = ray.wait(list(places), num_returns=1)
        yield places.pop(done[0]), ray.get(done[0])
