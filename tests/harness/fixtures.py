"""Fixtures of servers and tools. Every test sees these; `tests/conftest.py` registers them."""

import fcntl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.cli.study import PROFILE, invoke, write_trace
from tests.harness import browser
from tests.harness import exposition as exposition_
from tests.harness import prometheus as prometheus_
from tests.harness import victoria_metrics as victoria_metrics_
from tests.harness.certificates import Certificates
from tests.harness.exposition import ExpositionServer
from tests.harness.kube_api import KubeApi
from tests.harness.promql import PromqlServer

StartPromql = Callable[..., Awaitable[PromqlServer]]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """A certificate authority of this test's own."""
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Certificates(directory)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The compiled kernel of the simulator. In a new checkout each worker would compile it, for 15 s of a core."""
    with (tmp_path_factory.getbasetemp().parent / "kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        trace = write_trace(tmp_path_factory.mktemp("kernel") / "minute.csv", (f"{at},500,80" for at in range(60)))
        assert invoke("simulate", "--trace", trace, *PROFILE).exit_code == 0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_kube_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeApi]:
    """The API server that all tests share, for fixtures of a module. Tests take `kube_api`."""
    async with KubeApi.running(tmp_path_factory.mktemp("kube-api")) as api:
        yield api


@pytest_asyncio.fixture
async def kube_api(shared_kube_api: KubeApi) -> AsyncIterator[KubeApi]:
    """The shared API server; a test keeps to namespaces and ClusterRole names of its own.

    Its nodes, workloads and further kinds go with it, because daemons of later tests would see them.
    """
    async with shared_kube_api.one_test():
        yield shared_kube_api


@pytest_asyncio.fixture
async def namespace(kube_api: KubeApi) -> str:
    """A fresh namespace in the shared API server."""
    return await kube_api.namespace()


@pytest_asyncio.fixture
async def prometheus(tmp_path: Path) -> AsyncIterator[StartPromql]:
    """Start a Prometheus: `await prometheus(Target(...), ...)`, as many as a test needs."""
    async with AsyncExitStack() as stack:
        yield lambda *targets, **options: stack.enter_async_context(
            prometheus_.prometheus(tmp_path, *targets, **options)
        )


@pytest_asyncio.fixture
async def victoria_metrics(tmp_path: Path) -> AsyncIterator[StartPromql]:
    """Start a VictoriaMetrics: `await victoria_metrics(Target(...), ...)`, as many as a test needs."""
    async with AsyncExitStack() as stack:
        yield lambda *targets, **options: stack.enter_async_context(
            victoria_metrics_.victoria_metrics(tmp_path, *targets, **options)
        )


@pytest_asyncio.fixture
async def exposition_server() -> AsyncIterator[ExpositionServer]:
    """A server of metrics text whose answers the test sets, over plain HTTP."""
    async with exposition_.exposition_server() as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of the Chromium that all tests share. Tests take `chromium`."""
    url, process = browser.chromium(tmp_path_factory.mktemp("chromium"))
    await process.start()
    try:
        yield url
    finally:
        await process.stop()


@pytest_asyncio.fixture
async def chromium(shared_chromium: str) -> AsyncIterator[Browser]:
    """A headless Chromium; `tests.harness.browser.screenshot` keeps pictures."""
    async with browser.connected(shared_chromium) as running:
        yield running
