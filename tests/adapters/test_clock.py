"""Real time, also of a machine that slept."""

import subprocess
import sys

import pytest

SLEPT_S = 100_000
ASLEEP = ("unshare", "--user", "--map-root-user", "--time", "--boottime", str(SLEPT_S))
TOLD = """
import time
from autoscaler.adapters.clock import SystemClock
print(SystemClock().now_s() - time.monotonic())
"""


def test_the_time_that_the_machine_was_suspended_counts():
    """A lease that ran out meanwhile is not held any more, and what was read before is not fresh."""
    try:
        subprocess.run([*ASLEEP, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine cannot make a time namespace")
    ran = subprocess.run([*ASLEEP, sys.executable, "-c", TOLD], check=True, capture_output=True, text=True)
    assert float(ran.stdout) == pytest.approx(SLEPT_S, abs=1)
