"""What holds for all tests: the servers they can ask for, and that nothing is skipped where it counts."""

from collections.abc import Generator

import pytest

from tests.harness.process import in_ci

pytest_plugins = ["tests.harness.fixtures"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, count an integration test that was skipped, for whatever reason, as failed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("integration") and in_ci():
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
