import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoscaler.lab.replay.call_progress import Progress
from autoscaler.lab.replay.parallel import sweep as sweep_
from autoscaler.lab.replay.parallel.sweep import sweep
from tests.harness.process import PATIENCE_S

ROOT = Path(__file__).parents[4]


ONE_AND_TWO = [1, pytest.param(2, marks=pytest.mark.slow)]  # workers; the start of two takes half a second


def multiply(factor: int, number: int, _progress: Progress) -> int:
    return factor * number


def multiply_the_large_slowly(factor: int, number: int, _progress: Progress) -> int:
    if number >= 10:
        time.sleep(0.2)
    return factor * number


def process(_shared: None, _number: int, _progress: Progress) -> int:
    return os.getpid()


def fail_at_two(_shared: None, number: int, _progress: Progress) -> int:
    if number == 2:
        raise ValueError("two")
    return number


def die(_shared: None, _number: int, _progress: Progress) -> int:
    os._exit(9)


def wait_long(folder: Path, number: int, _progress: Progress) -> None:
    if number:
        (folder / str(number)).touch()
        time.sleep(600)


def tell_of_itself(pause_s: float, number: int, progress: Progress) -> None:
    for part in (0.25, 0.5, 0.75):
        time.sleep(pause_s)
        progress(part * number)


@pytest.mark.parametrize("workers", ONE_AND_TWO)
def test_every_item_is_called_with_the_shared_value(workers: int) -> None:
    assert dict(sweep(multiply, 3, [5, 7, 11], workers)) == {0: 15, 1: 21, 2: 33}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_progress_of_a_call_arrives_before_its_result(workers: int) -> None:
    on_progress: list[tuple[int, float]] = []
    results = sweep(
        tell_of_itself,
        0.1,
        [1, 1],
        workers,
        on_progress=lambda *word: on_progress.append(word),
        progress_period_s=0.05,
    )
    for place, _ in results:
        assert [share for at, share in on_progress if at == place] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("workers", ONE_AND_TWO)
def test_progress_is_reported_at_most_once_per_period(workers: int) -> None:
    on_progress: list[tuple[int, float]] = []
    results = sweep(
        tell_of_itself,
        0.0,
        [1, 1],
        workers,
        on_progress=lambda *word: on_progress.append(word),
        progress_period_s=PATIENCE_S,
    )
    list(results)
    assert on_progress == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", ONE_AND_TWO)
def test_next_items_run_first_with_the_next_positions(workers: int) -> None:
    def next_items(place: int, result: int) -> list[int]:
        return [result, result + 1] if place == 0 else []

    found = list(sweep(multiply_the_large_slowly, 3, [1, *range(10, 20)], workers, next_items=next_items))
    assert dict(found) == {0: 3, **{place: 27 + 3 * place for place in range(1, 11)}, 11: 9, 12: 12}
    order = [place for place, _ in found]
    if workers == 1:
        assert order == [0, 11, 12, *range(1, 11)]
    assert order.index(12) < order.index(10)


@pytest.mark.slow
def test_one_worker_runs_in_this_process() -> None:
    assert os.getpid() not in dict(sweep(process, None, [1, 2], 2)).values()
    assert set(dict(sweep(process, None, [1, 2], 1)).values()) == {os.getpid()}


@pytest.mark.parametrize("workers", ONE_AND_TWO)
def test_error_of_an_item_ends_the_sweep_and_its_processes(workers: int) -> None:
    with pytest.raises(ValueError, match="two"):
        list(sweep(fail_at_two, None, [0, 1, 2, 3, 4], workers))
    for child in multiprocessing.active_children():
        child.join(5)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_dead_worker_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a worker process died"):
        list(sweep(die, None, [1, 2], 2))


@pytest.mark.slow
def test_early_end_does_not_wait_for_running_calls(tmp_path: Path) -> None:
    results = sweep(wait_long, tmp_path, [0, 1], 2)
    assert next(results) == (0, None)
    results.close()  # type: ignore[attr-defined]  (a generator)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    program = f"""
from contextlib import suppress
from pathlib import Path
from autoscaler.lab.replay.parallel.sweep import sweep
from tests.lab.replay.parallel.test_sweep import wait_long
list(sweep(wait_long, Path({str(tmp_path)!r}), [1, 2], 2))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True)
    try:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        process.kill()
        process.communicate(timeout=PATIENCE_S)  # until no process holds its standard error any more
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_missing_ray_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(RuntimeError, match=r"pip install 'vllm-autoscaler\[ray\]'"):
        list(sweep(multiply, 3, [1], ray=True))


def fake_ray(init: Callable[[], None]) -> SimpleNamespace:
    """A fake Ray without a connection, whose `init` is the given function."""
    return SimpleNamespace(is_initialized=lambda: False, init=lambda log_to_driver: init())


def test_silent_ray_cluster_is_named_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setitem(sys.modules, "ray", fake_ray(lambda: over.wait(60) and None))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(RuntimeError, match=r"^RAY_ADDRESS is '10.0.0.1:6379'; no Ray cluster there within 0.05 s$"):
        list(sweep(multiply, 3, [1], ray=True, connect_timeout_s=0.05))
    over.set()


def test_error_of_ray_about_an_address_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError("failed to connect") from OSError("it is\ngone")

    monkeypatch.setitem(sys.modules, "ray", fake_ray(refuse))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(RuntimeError, match=r"^RAY_ADDRESS is 'auto'; no Ray cluster there: it is gone$"):
        list(sweep(multiply, 3, [1], ray=True))


def test_signal_handlers_survive_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        sweep_._connect(fake_ray(lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None), 60.0)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def on_its_own(program: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", program, home],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def run_on_ray(home: Path, limit_s: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    program = """
import os
from autoscaler.lab.replay.parallel.sweep import sweep
from tests.lab.replay.parallel.test_sweep import multiply
how = {"next_items": lambda place, _: [2] if place == 0 else [], "connect_timeout_s": float(os.environ["LIMIT_S"])}
try:
    print(sorted(sweep(multiply, 3, [5, 7, 11], ray=True, **how)))
except RuntimeError as error:
    print(error)
"""
    return on_its_own(program, home, LIMIT_S=str(limit_s), **environment)


@pytest.mark.long
def test_ray_runs_every_item_locally_and_on_a_cluster(tmp_path: Path) -> None:
    every = "[(0, 15), (1, 21), (2, 33), (3, 6)]\n"
    assert run_on_ray(tmp_path).stdout == every
    cluster = """
import ray, sys
from tests.lab.replay.parallel.test_sweep import run_on_ray
found = ray.init(address="local", log_to_driver=False, num_cpus=1)
address = found.address_info["gcs_address"]
print(run_on_ray(sys.argv[1], RAY_ADDRESS=address, RAY_AUTH_MODE="disabled").stdout, end="")
"""
    assert on_its_own(cluster, tmp_path, RAY_AUTH_MODE="disabled").stdout == every


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.slow
def test_wrong_ray_address_ends_the_run_in_time(tmp_path: Path, listening: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = run_on_ray(tmp_path, 3, RAY_ADDRESS=address)
    assert found.stdout == f"RAY_ADDRESS is '{address}'; no Ray cluster there within 3 s\n"
