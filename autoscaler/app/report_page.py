"""The report that the daemon's page shows: of its own record, as far back as is cheap beside the ticks.

A process of its own computes it. So ticks do not wait for the interpreter, the memory is bounded and free afterwards,
and the daemon does not load the laboratory. It yields the processor to the daemon.
"""

from __future__ import annotations

import os
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


def page_of_record(folder: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the HTML of the last days of a record, and leave it in its folder. Blocks for seconds.

    Raises Unavailable, as with less than an hour of ticks, or if the memory does not suffice.
    """
    with Record(folder) as record:
        names = {row for _, row in record.query("SELECT namespace, name FROM workloads")}
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
            f"the report needs more than {most_bytes >> 20} MiB; `report --record` elsewhere has no limit"
        )
    if done.returncode:
        raise Unavailable(said[-MAX_SAID:])
    return (folder / FILE).read_text("utf-8")
