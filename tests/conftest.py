"""What holds for all tests: the servers they can ask for, and that nothing is skipped where it counts."""

import asyncio
from collections.abc import Generator

import pytest

from tests.harness.process import in_ci

pytest_plugins = ["pytester", "tests.harness.fixtures"]


def pytest_configure() -> None:
    """Say that there is no event loop. Python 3.11 would make one when pytest-asyncio looks, and nobody closes it."""
    asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, count an integration test that was skipped, for whatever reason, as failed."""
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if in_ci() and report.skipped and not expected_to_fail and item.get_closest_marker("integration"):
        report.outcome, report.longrepr = "failed", f"an integration test may not be skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, count a whole file that skips itself as failed: its tests' markers are not known by then."""
    report = yield
    if in_ci() and report.skipped:
        report.outcome, report.longrepr = "failed", f"a test file may not be skipped in CI: {report.longrepr}"
    return report
