"""Measure `demand` over services x days with DCGM: queries, bytes, CPU time by part, and memory.

    python bench/micro/demand_cost.py [--services 200] [--days 14] [--step 180] [--json]

The stand-in of `bench/micro/report.py` answers, and adds three pods of each service with GPU counters of DCGM that show
compute-bound prefill, so that each service has changes to replay. The server's own time is not counted.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from autoscaler.app.demand import read_latencies_of
from autoscaler.app.report import make_report_of_history
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.demand.capacity import BuyLimits
from autoscaler.demand.document import to_json
from autoscaler.demand.model import DemandHistory, model_demand
from autoscaler.demand.purchase import plan_purchase
from autoscaler.demand.purchase_document import purchase_document
from bench.micro.report import PODS, StandIn, _pairs, _values, parser_of, start_server
from bench.micro.result import machine, show

Result = TypeVar("Result")
PRODUCT = "NVIDIA H100 80GB HBM3"
READINGS = (
    ("FB_USED", 70_000.0),
    ("FB_FREE", 10_000.0),
    ("TENSOR", 0.5),
    ("DRAM", 0.3),
    ("SM_ACTIVE", 0.7),
    ("GR_ENGINE", 0.7),
    ("timestamp", 0.0),
    ("GPU_UTIL", 0.9),
    ("PCIE", 1e8),
    ("NVLINK", 0.0),
)
"""Parts of the names of DCGM's metrics, and what they show. The first that a query names counts."""


class WithGpus(StandIn):
    """Answers also what asks for single pods, and counts queries and bytes."""

    asked = multiprocessing.Value("q", 0)
    sent = multiprocessing.Value("q", 0)

    def _result(self, query: str, times: np.ndarray, step_s: float) -> list[object]:
        found = self._of_pods(query, times, step_s) if "group" not in query and self._names_pods(query) else None
        result = super()._result(query, times, step_s) if found is None else found
        with self.asked.get_lock():
            self.asked.value += 1
            self.sent.value += len(json.dumps(result))
        return result

    def _names_pods(self, query: str) -> bool:
        return "DCGM" in query or ("max by (" in query and "_over_time(" in query) or "increase(" in query

    def _of_pods(self, query: str, times: np.ndarray, step_s: float) -> list[object] | None:
        rows: list[object] = []
        for number in range(self.services):
            if "DCGM" in query:
                level = next((level for name, level in READINGS if name in query), 0.0)
                values = times if "timestamp(" in query else np.full(len(times), 1.0 if "count by" in query else level)
            else:
                found = _values(query, number, times, step_s)
                if found is None:
                    return None
                values = found / PODS
            of_all = _pairs(times, values)
            for pod in range(PODS):
                labels = {"namespace": f"team-{number % 20}", "pod": f"service-{number}-{pod}", "modelName": PRODUCT}
                rows.append({"metric": labels, "values": of_all})
        return rows


def timed(parts: dict[str, tuple[float, int]], name: str, work: Callable[[], Result]) -> Result:
    """Do a part of the work; keep its CPU time in seconds, and the peak of memory so far in MiB."""
    before_s = time.process_time()
    made = work()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parts[name] = round(time.process_time() - before_s, 2), round(peak_kib / 1024)
    return made


def main() -> None:
    options = parser_of(__doc__).parse_args()
    process, wanted = start_server(options, WithGpus)
    began_s, parts, console = time.monotonic(), dict[str, tuple[float, int]](), Console(stderr=True)
    report, history = timed(parts, "report and changes", lambda: make_report_of_history(wanted, console))
    past = DemandHistory(history, *timed(parts, "histograms", lambda: read_latencies_of(wanted, history.span, console)))
    book = load_policies(())
    zone = ZoneInfo("Europe/Berlin")
    made = timed(parts, "model and drafts", lambda: model_demand(report, past, book, zone))
    purchase = timed(parts, "advice", lambda: plan_purchase(made, None, BuyLimits(), {}, "no daemon"))
    document = timed(parts, "document", lambda: to_json(made, purchase_document(purchase)))
    whole_s = time.monotonic() - began_s
    process.terminate()
    changes = [] if report.gpus is None else [each for found in report.gpus.proposals for each in found.tried]
    show(
        {
            "machine": machine(),
            "services": options.services,
            "days": options.days,
            "step_s": report.step_s,
            "queries": WithGpus.asked.value,
            "answers_mib": round(WithGpus.sent.value / (1 << 20), 1),
            "replayed_changes": sum(not each.change.why for each in changes),
            "not_replayed": sum(bool(each.change.why) for each in changes),
            "cpu_s": round(sum(cpu_s for cpu_s, _ in parts.values()), 2),
            "cpu_s_and_peak_mib_by_part": parts,
            "wall_s": round(whole_s, 2),
            "document_kib": round(len(document) / 1024),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
