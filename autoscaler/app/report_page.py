"""The report that the daemon's page shows: of its own record, as far back as is cheap beside the ticks.

A process of its own computes it. So ticks do not wait for the interpreter, the memory is free afterwards, and the
daemon does not load the laboratory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autoscaler.adapters.record.reader import Record
from autoscaler.ports import Unavailable

MOST_HOURS = 7 * 24
MOST_SERVICE_HOURS = 5_000
"""Hours of all services that are computed: a day of 200 services, a week of 30."""

LEAST_HOURS = 6
DEADLINE_S = 300.0
MAX_SAID = 500
FILE = "report.html"
COMMAND = "from autoscaler.cli.main import main; main()"


def page_of_record(folder: Path) -> str:
    """Return the HTML of the last days of a record, and leave it in its folder. Blocks for seconds.

    Raises Unavailable, as with less than an hour of ticks.
    """
    with Record(folder) as record:
        names = {row for _, row in record.query("SELECT namespace, name FROM workloads")}
    hours = min(max(MOST_SERVICE_HOURS // max(len(names), 1), LEAST_HOURS), MOST_HOURS)
    words = ["report", "--record", str(folder), "--since", f"{hours}h", "--html", str(folder / FILE)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Unavailable(f"the report could not be computed: {error}") from error
    if done.returncode:
        raise Unavailable(done.stderr.decode("utf-8", "replace").strip()[-MAX_SAID:])
    return (folder / FILE).read_text("utf-8")
