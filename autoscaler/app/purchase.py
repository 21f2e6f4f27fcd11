"""The history of GPUs from which `demand` says when to buy: of a record, or of the daemon's metrics in Prometheus."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.capacity_queries import read_exported_use
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.app.report_reading import DEADLINE_S, reader_of
from autoscaler.config.settings import PrometheusSettings
from autoscaler.demand.capacity import GpuHistory, capacity_of_exported, capacity_of_record
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.ports import Unavailable

YEAR_S = 366 * 86_400.0


def read_capacity(
    settings: PrometheusSettings, record: Path | None, span_s: tuple[float, float], console: Console
) -> tuple[GpuHistory | None, str]:
    """Return the history of GPUs, and why there is none; "": there is one.

    A record is read as far as it reaches, and Prometheus over the span.
    """
    if record is not None:
        return capacity_of_record(record, span_s[1] - YEAR_S), ""
    deadline_s = time.monotonic() + DEADLINE_S
    with reader_of(lambda: RangeReader(settings, Credentials(settings), deadline_s)) as reader:
        try:
            with ProgressBar("reading what the daemon exported", console) as progress:
                exported = read_exported_use(reader, span_s, progress)
        except Unavailable as error:
            return None, str(error)
        found = capacity_of_exported(exported, f"the daemon's metrics in {reader.name}")
    beside = "; ".join(("", *exported.problems))
    return found, "" if found is not None else f"Prometheus has no metrics of the daemon's pools and workloads{beside}"
