"""The report that the daemon's page shows: of its own record, as far back as is cheap beside the ticks.

A process of its own computes it. So ticks do not wait for the interpreter, the memory is bounded and free afterwards,
and the daemon does not load the laboratory. It yields the processor to the daemon.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog

from autoscaler.adapters.record.reader import NothingRecorded, Record
from autoscaler.adapters.record.rows import TRAFFIC_S, first_report_s
from autoscaler.adapters.web.report_page import NotYet
from autoscaler.config.values import show_duration
from autoscaler.ports import Unavailable

MOST_HOURS = 7 * 24
MOST_SERVICE_HOURS = 5_000
"""Hours of all services that are computed: a day of 200 services, a week of 30."""

LEAST_HOURS = 6
NEEDED = f"A report needs a record of one hour, in whole steps of {TRAFFIC_S // 60} minutes."
NOTHING = "Nothing is recorded yet. The report will be here within 70 minutes of the first tick, by the daemon's clock."
DEADLINE_S = 300.0
FILE = "report.html"
MOST_BYTES = 768 << 20
"""Memory of that process, which shares the limit of the daemon's container. 200 services over a day take 231 MiB."""

NO_MEMORY = ("MemoryError", "emory allocation", "annot allocate memory")
"""Words of Python, OpenBLAS and the system for it; some libraries end the process instead."""

COMMAND = """
import os, resource, sys
os.nice(10)
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
del sys.argv[1]
from autoscaler.cli.main import main
main()
"""
log = structlog.get_logger(__name__)


def page_of_record(folder: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the HTML of the last days of a record, and leave it in its folder. Blocks for seconds.

    Raises NotYet with less than an hour of ticks, and Unavailable otherwise, as if the memory does not suffice.
    """
    try:
        with Record(folder) as record:
            if missing := say_missing(*record.span()):
                raise NotYet(missing)
            names = {row for _, row in record.query("SELECT namespace, name FROM workloads")}
    except NothingRecorded as error:
        raise NotYet(f"{NEEDED} {NOTHING}") from error
    hours = min(max(MOST_SERVICE_HOURS // max(len(names), 1), LEAST_HOURS), MOST_HOURS)
    words = ["report", "--record", str(folder), "--since", f"{hours}h", "--html", str(folder / FILE)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, str(most_bytes), *words],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread reserves memory
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Unavailable(f"the report could not be computed: {error}") from error
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode < 0 or any(words in said for words in NO_MEMORY):
        raise Unavailable(
            f"it needs more than the {most_bytes >> 20} MiB of memory that it may use in the daemon; "
            "the command `report` has no such limit"
        )
    if done.returncode:
        log.error("the report of the record failed", error=said)
        raise Unavailable("it could not be computed; the log of the daemon has the reason")
    return (folder / FILE).read_text("utf-8")


def say_missing(first_s: float, last_s: float) -> str:
    """Return the sentences that tell what a record lacks for a report; "": nothing. first_s, last_s: of its ticks."""
    ready_s = first_report_s(first_s)
    if last_s >= ready_s:
        return ""
    first, last, ready = (datetime.fromtimestamp(each_s, UTC) for each_s in (first_s, last_s, ready_s))
    wait = show_duration(math.ceil((ready_s - last_s) / 60) * 60)
    return (
        f"{NEEDED} So far it reaches from {first:%H:%M} to {last:%H:%M} UTC of {last:%Y-%m-%d}. "
        f"The report will be here soon after {ready:%H:%M} by that clock, in {wait}."
    )
