"""Real time, including suspended machines."""

import subprocess
import sys

import pytest

SLEPT_S = 100_000
ASLEEP = ("unshare", "--user", "--map-root-user", "--time", "--boottime", str(SLEPT_S))
SCRIPT = """
import time
from autoscaler.adapters.clock import SystemClock
print(SystemClock().now_s() - time.monotonic())
"""


def test_time_counts_while_the_machine_is_suspended():
    """A lease may expire meanwhile, and earlier readings are no longer fresh."""
    try:
        subprocess.run([*ASLEEP, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine cannot make a time namespace")
    ran = subprocess.run([*ASLEEP, sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert float(ran.stdout) == pytest.approx(SLEPT_S, abs=1)
