"""The plugin that makes tests meet a busy machine."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.busy import LATE, children, late_s, stop_one


def test_turns_are_late_by_their_shares() -> None:
    late = [late_s((place + 0.5) / 10_000) for place in range(10_000)]
    assert {most_s: late.count(most_s) for _, most_s in LATE} == {
        most_s: round(share * 10_000) for share, most_s in LATE
    }


def test_stopped_process_goes_on() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert sleeper.pid in children(os.getpid())
        stop_one([sleeper.pid], 0.0)
        assert Path(f"/proc/{sleeper.pid}/stat").read_text().split()[2] != "T"
        sleeper.terminate()
        assert sleeper.wait() == -signal.SIGTERM
    stop_one([sleeper.pid], 0.0)
    stop_one([], 0.0)


def test_loops_are_late_only_while_the_plugin_is_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import selectors\ndef test_late(): assert selectors.EpollSelector.select.__name__ == 'late'")
    pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "tests.harness.busy").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("-p", "no:asyncio").assert_outcomes(failed=1)
