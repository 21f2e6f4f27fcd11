"""Parallel calls on all cores of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import SimpleQueue
from typing import Any, Generic, TypeVar

from autoscaler.lab.replay.call_progress import Progress, no_progress

Item = TypeVar("Item")
Result = TypeVar("Result")
Function = Callable[[Any, Item, Progress], Result]  # called with the shared value, an item, and a progress callback
NextItems = Callable[[int, Result], Sequence[Item]]  # returns further items, once the call at a position has its result
OnProgress = Callable[[int, float], None]  # receives the position of a call and its completed fraction, 0..1

CONNECT_TIMEOUT_S = 30.0  # for a Ray cluster to answer; Ray itself tries a dead address for two minutes
CALLS_PER_WORKER = 2  # calls submitted per worker, so that none waits for its next one
PROGRESS_PERIOD_S = 0.5  # interval of progress reports

_shared: Any = None  # shared value of this worker process
_progress_queue: SimpleQueue[tuple[int, float]] | None = None  # to the parent process
_progress_period_s = PROGRESS_PERIOD_S


def _init_worker(value: Any, messages: SimpleQueue[tuple[int, float]], progress_period_s: float) -> None:
    """Initialize a worker process."""
    global _shared, _progress_queue, _progress_period_s  # a pool's initializer can only set globals
    _shared, _progress_queue, _progress_period_s = value, messages, progress_period_s
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # `_signals_deferred` blocked it until here
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    """End this worker when its parent ends, however that ends."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _call(function: Function[Item, Result], item: Item, place: int) -> Result:
    assert _progress_queue is not None
    return function(_shared, item, _ProgressSender(_progress_queue.put, place, _progress_period_s))


class _ProgressSender:
    """Sends the progress of one call, at most once per period."""

    def __init__(self, tell: Callable[[tuple[int, float]], None], place: int, period_s: float) -> None:
        self._send, self._place, self._period_s = tell, place, period_s
        self._sent_s = time.monotonic()

    def __call__(self, share: float) -> None:
        if (now_s := time.monotonic()) >= self._sent_s + self._period_s:
            self._sent_s = now_s
            self._send((self._place, share))


def _no_next_items(_place: int, _result: Any) -> Sequence[Any]:
    return ()


def _ignore_progress(_place: int, _share: float) -> None:
    """Ignore progress."""


def sweep(
    function: Function[Item, Result],
    shared: Any,
    items: Sequence[Item],
    workers: int | None = None,
    ray: bool = False,
    next_items: NextItems[Result, Item] = _no_next_items,
    on_progress: OnProgress = _ignore_progress,
    progress_period_s: float = PROGRESS_PERIOD_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Iterator[tuple[int, Result]]:
    """Call `function(shared, item, progress)` for every item, and yield the position and result of each as it
    completes.

    `function` must be module-level and everything picklable; `shared` is sent once per worker. workers: number of
    processes; None: one per core; 1: this process.
    next_items: called here with each position and result. The returned items get the next positions and run before the
    waiting ones. on_progress: receives progress reports of calls, at most one per `progress_period_s` from each call,
    except on Ray. An error in a call ends the sweep.
    With `ray`, calls are tasks of the cluster that the environment names, else of a local one. Raises RuntimeError if
    the library is missing, the cluster does not answer, or a worker process died.
    """
    queue = _CallQueue(items, next_items)
    if ray:
        yield from _on_ray(function, shared, queue, connect_timeout_s)
    elif (workers := workers or os.cpu_count() or 1) == 1 or len(items) < 2:
        while queue.items:
            place, item = queue.items.popleft()
            sender = _ProgressSender(lambda word: on_progress(*word), place, progress_period_s)
            yield queue.done(place, function(shared, item, sender))
    else:
        yield from _on_cores(function, shared, queue, workers, on_progress, progress_period_s)


class _CallQueue(Generic[Item, Result]):
    """The queue of calls."""

    def __init__(self, items: Sequence[Item], next_items: NextItems[Result, Item]) -> None:
        self.items = deque(enumerate(items))
        self._count = len(items)
        self._next_items = next_items

    def done(self, place: int, result: Result) -> tuple[int, Result]:
        """Queue the items after a result at the front, so that long chains end early. Return position and result."""
        more = self._next_items(place, result)
        self.items.extendleft(reversed(list(enumerate(more, self._count))))
        self._count += len(more)
        return place, result


def _on_cores(
    function: Function[Item, Result],
    shared: Any,
    queue: _CallQueue[Item, Result],
    workers: int,
    on_progress: OnProgress,
    progress_period_s: float,
) -> Iterator[tuple[int, Result]]:
    """Sweep in processes. No process outlives the sweep, and an early end does not wait for running calls."""
    others = set(active_children())
    context = get_context("spawn")  # compiled code and threads do not survive a fork
    messages: SimpleQueue[tuple[int, float]] = context.SimpleQueue()
    initial = (shared, messages, progress_period_s)
    with ProcessPoolExecutor(workers, context, initializer=_init_worker, initargs=initial) as pool:
        try:
            futures: dict[Future[Result], int] = {}
            while queue.items or futures:
                while queue.items and len(futures) < CALLS_PER_WORKER * workers:
                    place, item = queue.items.popleft()
                    with _signals_deferred():  # this may start a worker
                        futures[pool.submit(_call, function, item, place)] = place
                done = wait(futures, progress_period_s, FIRST_COMPLETED).done
                while not messages.empty():  # all progress of a completed call is in the queue by now
                    on_progress(*messages.get())
                for future in done:
                    yield queue.done(futures.pop(future), future.result())
        except BaseException as error:
            for worker in set(active_children()) - others:
                worker.kill()
            if isinstance(error, BrokenProcessPool):
                raise RuntimeError(
                    "a worker process died, most likely because memory ran out; use fewer workers"
                ) from error
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM of this process, and start workers that ignore SIGINT and block SIGTERM until ready.

    A worker receives its data in pieces, so no signal may interrupt this process meanwhile; signals take effect at the
    end. Blocking them would not do, since another thread may receive them. A third signal interrupts at once.
    """
    came: list[int] = []

    def hold(number: int, _frame: object) -> None:
        came.append(number)
        if len(came) > 2:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    before = [signal.signal(number, hold) for number in numbers] if main else []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # a new process inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(numbers, before, strict=False):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    """Restore the signal handlers at the end: Ray's handler of SIGTERM aborts."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _on_ray(
    function: Function[Item, Result], shared: Any, queue: _CallQueue[Item, Result], connect_timeout_s: float
) -> Iterator[tuple[int, Result]]:
    try:
        ray: Any = import_module("ray")  # optional, and slow to import
    except ImportError as error:
        raise RuntimeError("running on Ray needs its library: pip install 'vllm-autoscaler[ray]'") from error
    if not ray.is_initialized():
        _connect(ray, connect_timeout_s)
    there = ray.put(shared)
    task = ray.remote(function)
    places: dict[Any, int] = {}
    while queue.items or places:
        while queue.items:
            place, item = queue.items.popleft()
            places[task.remote(there, item, no_progress)] = place
        done, _ = ray.wait(list(places), num_returns=1)
        yield queue.done(places.pop(done[0]), ray.get(done[0]))


def _connect(ray: Any, timeout_s: float) -> None:
    """Connect to the cluster that the environment names, else start one. Raises RuntimeError."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        with _signal_handlers_restored():
            # in this thread, because processes that Ray starts end with the thread that started them
            ray.init(log_to_driver=False)
        return
    connected: Future[None] = Future()

    def connect() -> None:
        try:
            ray.init(log_to_driver=False)
        except Exception as error:  # raised again in the waiting thread
            connected.set_exception(error)
        else:
            connected.set_result(None)

    # Connecting has no timeout of its own; a hanging thread ends with this process.
    threading.Thread(target=connect, name="ray", daemon=True).start()
    trouble = f"RAY_ADDRESS is {address!r}; no Ray cluster there"
    if not wait([connected], timeout_s).done:
        raise RuntimeError(f"{trouble} within {timeout_s:g} s")
    try:
        connected.result()
    except (OSError, ValueError, RuntimeError) as error:
        raise RuntimeError(f"{trouble}: {' '.join(str(error.__cause__ or error).split())}") from error
