"""Many runs at once: on all cores of this machine, or on a Ray cluster."""

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

from autoscaler.lab.replay.files import Told, untold

Item = TypeVar("Item")
Result = TypeVar("Result")
Function = Callable[[Any, Item, Told], Result]  # called with what is shared; tells how much of the call is done
Follow = Callable[[int, Result], Sequence[Item]]  # what else is to be called, once a place has its result
Heard = Callable[[int, float], None]  # how much of the call of a place is done, 0..1

CONNECT_S = 30.0  # that a Ray cluster may take to answer; Ray itself tries a dead address for two minutes
AHEAD = 2  # calls handed out for each worker, so that none waits for its next one
BEAT_S = 0.5  # between two words on how much of a call is done

_shared: Any = None  # of this worker process
_words: SimpleQueue[tuple[int, float]] | None = None  # to the process it works for


def _share(value: Any, words: SimpleQueue[tuple[int, float]]) -> None:
    """Prepare a worker."""
    global _shared, _words  # what a pool's initializer is for
    _shared, _words = value, words
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked until here by `_signals_held`
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End this worker with the process it works for, however that ends: nobody else would."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _call(function: Function[Item, Result], item: Item, place: int) -> Result:
    assert _words is not None
    return function(_shared, item, _Teller(_words.put, place))


class _Teller:
    """Tells how much of one call is done, not more often than every `BEAT_S`."""

    def __init__(self, tell: Callable[[tuple[int, float]], None], place: int) -> None:
        self._tell, self._place = tell, place
        self._told_s = time.monotonic()

    def __call__(self, share: float) -> None:
        if (now_s := time.monotonic()) >= self._told_s + BEAT_S:
            self._told_s = now_s
            self._tell((self._place, share))


def _no_more(_place: int, _result: Any) -> Sequence[Any]:
    return ()


def _unheard(_place: int, _share: float) -> None:
    """Listen to nobody."""


def sweep(
    function: Function[Item, Result],
    shared: Any,
    items: Sequence[Item],
    workers: int | None = None,
    ray: bool = False,
    follow: Follow[Result, Item] = _no_more,
    heard: Heard = _unheard,
) -> Iterator[tuple[int, Result]]:
    """Call `function(shared, item, told)` for every item and yield the place of each with its result, as they are done.

    `function` must be one of a module and everything must be picklable; `shared` (a trace, say) travels once. workers:
    processes, as many as cores if None; 1 runs in this one. follow: told each place and result, here; the items that it
    returns get the next places, and their turn before those that were there. heard: told, now and then, what a call
    tells of itself before it returns, except on Ray. An error in a call ends the sweep with it.
    With `ray` the calls are tasks of the cluster that the environment names, else of one on this machine. Raises
    RuntimeError if the library is missing or the cluster does not answer, or if a worker process died.
    """
    todo = _Todo(items, follow)
    if ray:
        yield from _on_ray(function, shared, todo)
    elif (workers := workers or os.cpu_count() or 1) == 1 or len(items) < 2:
        while todo.items:
            place, item = todo.items.popleft()
            yield todo.done(place, function(shared, item, _Teller(lambda word: heard(*word), place)))
    else:
        yield from _on_cores(function, shared, todo, workers, heard)


class _Todo(Generic[Item, Result]):
    """What is still to be called, first things first."""

    def __init__(self, items: Sequence[Item], follow: Follow[Result, Item]) -> None:
        self.items = deque(enumerate(items))
        self._count = len(items)
        self._follow = follow

    def done(self, place: int, result: Result) -> tuple[int, Result]:
        """Return both, once what follows from them stands in line: first, for who goes on in rounds ends last."""
        more = self._follow(place, result)
        self.items.extendleft(reversed(list(enumerate(more, self._count))))
        self._count += len(more)
        return place, result


def _on_cores(
    function: Function[Item, Result], shared: Any, todo: _Todo[Item, Result], workers: int, heard: Heard
) -> Iterator[tuple[int, Result]]:
    """Sweep in processes. However it ends, none is left; an end before the last result does not wait for what runs."""
    others = set(active_children())
    context = get_context("spawn")  # compiled code and threads of the parent do not survive a fork
    words: SimpleQueue[tuple[int, float]] = context.SimpleQueue()
    with ProcessPoolExecutor(workers, context, initializer=_share, initargs=(shared, words)) as pool:
        try:
            futures: dict[Future[Result], int] = {}
            while todo.items or futures:
                while todo.items and len(futures) < AHEAD * workers:
                    place, item = todo.items.popleft()
                    with _signals_held():  # this may begin a worker
                        futures[pool.submit(_call, function, item, place)] = place
                done = wait(futures, BEAT_S, FIRST_COMPLETED).done
                while not words.empty():  # whatever a call told before it was done is there by then
                    heard(*words.get())
                for future in done:
                    yield todo.done(futures.pop(future), future.result())
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
def _signals_held() -> Iterator[None]:
    """Start processes within that never see Ctrl-C, and SIGTERM only once they are ready: who waits ends them.

    A worker is told what it needs in pieces, so neither must come between for this process: both take effect at the
    end. Blocking would not do here, for another thread may receive them. Who insists, by a third signal, is heard.
    """
    came: list[int] = []

    def hold(number: int, _frame: object) -> None:
        came.append(number)
        if len(came) > 2:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()  # no other may say what a signal does
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
def _signals_kept() -> Iterator[None]:
    """Let nobody within say what a signal does to this process: Ray's answer to SIGTERM is to abort."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _on_ray(function: Function[Item, Result], shared: Any, todo: _Todo[Item, Result]) -> Iterator[tuple[int, Result]]:
    try:
        ray: Any = import_module("ray")  # optional, and slow to import
    except ImportError as error:
        raise RuntimeError("running on Ray needs its library: pip install 'vllm-autoscaler[ray]'") from error
    if not ray.is_initialized():
        _connect(ray)
    there = ray.put(shared)
    task = ray.remote(function)
    places: dict[Any, int] = {}
    while todo.items or places:
        while todo.items:
            place, item = todo.items.popleft()
            places[task.remote(there, item, untold)] = place
        done, _ = ray.wait(list(places), num_returns=1)
        yield todo.done(places.pop(done[0]), ray.get(done[0]))


def _connect(ray: Any) -> None:
    """Connect to the cluster that the environment names, else start one. Raises RuntimeError."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        with _signals_kept():
            ray.init(log_to_driver=False)  # in this thread: what Ray starts here ends with the thread that started it
        return
    connected: Future[None] = Future()

    def connect() -> None:
        try:
            ray.init(log_to_driver=False)
        except Exception as error:  # raised again by who waits
            connected.set_exception(error)
        else:
            connected.set_result(None)

    # Connecting has no time limit of its own; a thread that hangs ends with this process.
    threading.Thread(target=connect, name="ray", daemon=True).start()
    trouble = f"RAY_ADDRESS is {address!r}; no Ray cluster there"
    if not wait([connected], CONNECT_S).done:
        raise RuntimeError(f"{trouble} within {CONNECT_S:g} s")
    try:
        connected.result()
    except (OSError, ValueError, RuntimeError) as error:
        raise RuntimeError(f"{trouble}: {' '.join(str(error.__cause__ or error).split())}") from error
