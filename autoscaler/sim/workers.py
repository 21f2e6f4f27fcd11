"""One function over many items on all cores, or on a Ray cluster. What is computed is not known here."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Told = Callable[[float], None]  # how much of the work is done, 0..1
Work = Callable[[Item, Told], Result]

POLL_S = 0.2
RAY_PIP = "pip install 'vllm-autoscaler[ray]'"

_shares: Any = None  # in a worker: how much of each item is done, shared with the process that waits


def cores() -> int:
    """Return how many processes can work at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    work: Work[Item, Result],
    items: Sequence[Item],
    *,
    jobs: int | None = None,
    ray: bool = False,
    told: Told = lambda _share: None,
) -> list[Result]:
    """Return `work(item, told)` of every item, in their order.

    work: a function of a module, for it is sent to other processes; items and results are pickled.
    jobs: processes, None: one per core; one, or one item, works in this process. ray: hand the items to a Ray cluster.
    Raises what `work` raises, first come; then nothing more is computed. RuntimeError if a worker died.
    """
    if ray:
        return _on_ray(work, items, told)
    jobs = min(jobs or cores(), len(items))
    if jobs > 1:
        return _on_cores(work, items, jobs, told)
    results = []
    for index, item in enumerate(items):
        results.append(work(item, lambda share, done=index: told((done + share) / len(items))))  # type: ignore[misc]
        told((index + 1) / len(items))
    return results


def _on_cores(work: Work[Item, Result], items: Sequence[Item], jobs: int, told: Told) -> list[Result]:
    context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks as they happen to be
    shares = context.Array("d", len(items), lock=False)
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, _begin, (shares,)) as pool:
        try:
            futures = [pool.submit(_step, work, index, item) for index, item in enumerate(items)]
            pending: set[Future[Result]] = set(futures)
            while pending:
                done, pending = wait(pending, POLL_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                told(sum(shares) / len(items))
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise RuntimeError("a worker process died, most likely for want of memory; try fewer --jobs") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


def _begin(shares: Any) -> None:
    """Prepare a worker. Ctrl-C is for the process that waits; it ends the workers."""
    global _shares  # noqa: PLW0603  a worker has no other place to keep what it inherits
    _shares = shares
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _step(work: Work[Item, Result], index: int, item: Item) -> Result:
    def told(share: float) -> None:
        _shares[index] = share

    result = work(item, told)
    told(1.0)
    return result


def _on_ray(work: Work[Item, Result], items: Sequence[Item], told: Told) -> list[Result]:
    """Use the cluster that RAY_ADDRESS names, else one started here; progress is told item by item."""
    try:
        cluster: Any = importlib.import_module("ray")
    except ImportError:
        raise ValueError(f"--ray needs Ray, which is not installed: {RAY_PIP}") from None
    started = not cluster.is_initialized()
    if started:
        cluster.init(include_dashboard=False, log_to_driver=False)
    try:
        remote = cluster.remote(_unobserved)
        references = [remote.remote(work, item) for item in items]
        pending = list(references)
        while pending:
            _, pending = cluster.wait(pending)
            told(1.0 - len(pending) / len(items))
        return list(cluster.get(references))
    finally:
        if started:
            cluster.shutdown()


def _unobserved(work: Work[Item, Result], item: Item) -> Result:
    return work(item, lambda _share: None)
