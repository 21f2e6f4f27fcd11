"""A missing server is a skip for a developer and a failure in CI; a test without a marker may use none.

Files that wait for servers come first, and those that compute last.
"""

import pytest

HOOKS = ("collection_modifyitems", "make_collect_report", "runtest_makereport", "runtest_protocol", "runtest_setup")
CONFTEST = "from tests.conftest import " + ", ".join(f"pytest_{hook}" for hook in HOOKS)
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
UNMARKED = """
import pytest
from tests.harness.process import require_binary

@pytest.fixture
def kube_api():
    pass

def test_starts_a_server():
    require_binary("sh", "apt-get install dash")

def test_uses_the_shared_server(kube_api):
    pass

@pytest.mark.integration
def test_is_marked(kube_api):
    require_binary("sh", "apt-get install dash")
"""
WHOLE_FILE = "import pytest; pytest.importorskip('no_such_module')"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers =\n  integration\n  slow")
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


def test_a_server_is_refused_to_a_test_without_a_marker(project: pytest.Pytester):
    project.makepyfile(UNMARKED)
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "*this test uses sh, so mark it with `@pytest.mark.integration`",
            "*this test uses kube_api, so mark it with `@pytest.mark.integration`",
        ]
    )


def test_quick_files_come_between_servers_and_computation(project: pytest.Pytester):
    quick = "import pytest\n\ndef test_quick(): pass\n"
    waits, computes = (f"\n@pytest.mark.{tier}\ndef test_long(): pass\n" for tier in ("integration", "slow"))
    project.makepyfile(test_a=quick + computes, test_b=quick, test_c=quick + waits)
    lines = project.runpytest_inprocess("--collect-only", "-q").outlines
    assert [line.partition(".")[0] for line in lines[:5]] == ["test_c", "test_c", "test_b", "test_a", "test_a"]
