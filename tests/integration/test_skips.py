"""A missing server is a skip for a developer and a failure in CI."""

import pytest

CONFTEST = "from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport"
MARKED = """
import pytest
from tests.harness.process import require_binary

@pytest.mark.integration
def test_without_its_server():
    require_binary("no-such-server", "apt-get install no-such-server")

@pytest.mark.integration
@pytest.mark.skip(reason="not today")
def test_set_aside():
    pass

@pytest.mark.integration
@pytest.mark.xfail(reason="known", strict=True)
def test_known_to_fail():
    assert False

@pytest.mark.skip(reason="not today")
def test_without_a_server():
    pass
"""
WHOLE_FILE = "import pytest; pytest.importorskip('no_such_module')"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = integration")
    pytester.makeconftest(CONFTEST)
    return pytester


def test_a_developer_is_told_what_to_install(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CI", raising=False)
    project.makepyfile(MARKED)
    result = project.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=3, xfailed=1)
    result.stdout.fnmatch_lines(["*no-such-server is not there; `apt-get install no-such-server` installs it"])


def test_in_ci_a_skipped_integration_test_is_a_failure(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    project.makepyfile(MARKED)
    project.runpytest_inprocess().assert_outcomes(failed=1, errors=1, skipped=1, xfailed=1)


def test_in_ci_a_file_that_skips_itself_is_an_error(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    project.makepyfile(WHOLE_FILE)
    project.runpytest_inprocess().assert_outcomes(errors=1)
