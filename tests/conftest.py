"""Rules for all tests: shared servers, tiers, and no skipped integration tests in CI."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.harness import process
from tests.harness.process import in_ci

# A shared machine may pause for longer than Hypothesis's limits; speed is measured in bench/micro.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", untimed, max_examples=15, derandomize=True)  # a change alone can make a test fail
settings.register_profile("long", untimed, max_examples=300)  # of `make test-long`, which draws others each time
settings.load_profile("ci")

pytest_plugins = ["pytester", "tests.harness.fixtures"]


def pytest_configure() -> None:
    """Set no event loop. Otherwise Python 3.11 creates one for pytest-asyncio that is never closed.

    No garbage is collected while the tests are, which takes a third less time: nearly all that is created then stays.
    Among more workers than cores and one, that which computes leaves the cores to those that wait for servers, so that
    these end first and in time.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and workers > 1 + (os.cpu_count() or 1):
        os.nice(5)
    asyncio.set_event_loop(None)
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave out what was created so far from all later collections of garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that wait for servers first, quick ones in the middle, and those that compute last."""
    waits, computes = (
        Counter(item.path for item in items if item.get_closest_marker(tier)) for tier in ("integration", "slow")
    )
    items.sort(key=lambda item: (-waits[item.path], computes[item.path], item.path))


class FromBothEnds(LoadFileScheduling):
    """Gives the first worker files that compute, and the others files that wait for servers, until all meet.

    So no core is idle while servers start and conditions are awaited, and the last files are quick ones.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == "gw0":
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds | None:
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test use a server only if it is marked so, because `make test-unit` must need none."""
    before = process.servers_allowed
    process.servers_allowed = any(item.get_closest_marker(tier) for tier in ("integration", "keda"))
    try:
        return (yield)
    finally:
        process.servers_allowed = before


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail an unmarked test that asks for a shared server, which another test may have started already."""
    for server in ("kube_api", "chromium"):
        if {server, f"shared_{server}"} & set(getattr(item, "fixturenames", ())):
            process.require_marker(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, count an integration test that was skipped, for whatever reason, as failed."""
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if in_ci() and report.skipped and not expected_to_fail and item.get_closest_marker("integration"):
        report.outcome, report.longrepr = "failed", f"an integration test may not be skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, count a whole file that skips itself as failed: its tests' markers are not known by then.

    Each worker begins with another folder. In a new checkout it thus finds most files compiled, and compiles the
    others for its neighbours. Sorting restores the order.
    """
    report = yield
    if in_ci() and report.skipped:
        report.outcome, report.longrepr = "failed", f"a test file may not be skipped in CI: {report.longrepr}"
    if isinstance(collector, pytest.Directory):
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        first = len(report.result) * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) // workers
        report.result = report.result[first:] + report.result[:first]
    return report
