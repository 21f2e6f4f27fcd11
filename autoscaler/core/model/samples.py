"""Measurements as the sources read them: one row per pod, and one row per workload for its gateway.

Every source (Prometheus, direct scrape, DCGM, gateways) fills the same columns for the pods of one `Fleet`. A reading
that it does not have is NaN, while zero is a reading like any other. `merge` combines the sources.

A source aggregates the series of a pod first. Several engines or data-parallel ranks of one pod are summed (running,
waiting, counters), or the largest counts (KV usage). The source also reduces histograms to a quantile, from the
buckets of all pods of a workload together. Each of these pods has that same quantile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np

from autoscaler.core.table.columns import Columns, FloatColumn, fill_unknown, replace

Table = TypeVar("Table", "PodSamples", "GatewaySamples")

DECIMALS = {
    **dict.fromkeys(("time_s", "gpu_time_s", "gap_s", "arrivals_per_s"), 3),
    **dict.fromkeys(("ttft_s", "itl_s", "kv_usage"), 5),
    **dict.fromkeys(("fb_usage", "tensor_active", "sm_active", "dram_active", "gpu_util"), 4),
    **dict.fromkeys(("pcie_bytes_per_s", "nvlink_bytes_per_s"), -6),  # in whole MB/s
    **dict.fromkeys(("ttft_met", "itl_met", "prefill_met"), 2),  # interpolated between the bounds of buckets
}
"""Decimals of the columns that are no whole numbers: finer than any of them is measured."""


@dataclass(frozen=True)
class PodSamples(Columns):
    """Readings of each pod's engine and GPUs; every field float64[P]."""

    time_s: FloatColumn  # time of the reading of the engine; NaN: it did not answer
    running: FloatColumn  # requests in the running batch
    waiting: FloatColumn  # requests that the engine holds but does not run
    deferred: FloatColumn  # those of them that wait for no room, such as for the transfer of their KV cache
    held: FloatColumn  # requests inside the server, from /load; includes those that a sleeping engine hides
    asleep: FloatColumn  # 1 while the engine sleeps, 0 awake
    kv_usage: FloatColumn  # 0..1, used share of KV-cache blocks, the largest of the engines
    prompt_tokens: FloatColumn  # counter, of tokens computed here: not read from a cache, nor sent by another pod
    generation_tokens: FloatColumn  # counter
    finished: FloatColumn  # counter, requests that ended for any reason
    first_tokens: FloatColumn  # counter, requests that got their first token (count of the TTFT histogram)
    ttft_met: FloatColumn  # counter, of these, requests whose TTFT was within the objective
    gap_s: FloatColumn  # counter, seconds between tokens, summed over all requests (sum of the ITL histogram)
    gaps: FloatColumn  # counter, gaps between tokens (count of the ITL histogram)
    itl_judged: FloatColumn  # counter, ended requests whose mean gap is known (count of its histogram)
    itl_met: FloatColumn  # counter, of these, requests whose mean gap was within the ITL objective
    prefill_judged: FloatColumn  # counter, ended requests whose prefill time is known
    prefill_met: FloatColumn  # counter, of these, requests whose prefill time may be within the TTFT objective
    steps: FloatColumn  # counter, batches computed, for engines that count tokens late or never
    preemptions: FloatColumn  # counter
    rejections: FloatColumn  # counter, requests refused by an admission limit; they are never counted as waiting
    max_running: FloatColumn  # slots of the engine (max_num_seqs); NaN: unknown
    ttft_s: FloatColumn  # quantile of time to first token of the pod's workload, over a window; NaN: no requests
    itl_s: FloatColumn  # quantile of inter-token latency of the pod's workload, over the same window
    gpu_time_s: FloatColumn  # time of the reading of the GPU
    fb_usage: FloatColumn  # 0..1, framebuffer used / (used + free), the largest device of the pod
    tensor_active: FloatColumn  # 0..1, the largest device of the pod, largest over the source's window
    sm_active: FloatColumn  # 0..1, likewise
    dram_active: FloatColumn  # 0..1, likewise
    gpu_util: FloatColumn  # 0..100, likewise; only 0 or more says something; NaN on MIG instances
    pcie_bytes_per_s: FloatColumn  # of the larger direction, likewise; NaN on MIG instances
    nvlink_bytes_per_s: FloatColumn  # likewise


@dataclass(frozen=True)
class GatewaySamples(Columns):
    """Readings of the gateway of each workload, which exist even without a pod; every field float64[W]."""

    time_s: FloatColumn  # time of the reading; NaN: no gateway is known, or it did not answer
    waiting: FloatColumn  # requests held by the gateway
    arrivals_per_s: FloatColumn  # requests arriving at the gateway


@dataclass(frozen=True)
class Objectives(Columns):
    """The objectives that sources compare requests with, and how old readings may be.

    Every field is float64[W]; NaN: nothing is wanted.
    """

    ttft_s: FloatColumn  # most seconds to the first token
    itl_s: FloatColumn  # most seconds between two tokens
    max_age_s: FloatColumn  # of a reading


@dataclass(frozen=True)
class SourceReport:
    """Result of one sampling of one source, for metrics, readiness and explanations."""

    source: str  # "prometheus", "discovery", "scrape", "dcgm", "gateway"
    queries: int = 0  # requests sent
    failed: int = 0  # requests without a result
    problems: tuple[str, ...] = ()  # one line each, bounded, without secrets
    duration_s: float = 0.0


@dataclass(frozen=True)
class Samples:
    """All readings of one tick, on the rows of one fleet."""

    pods: PodSamples
    gateways: GatewaySamples
    reports: tuple[SourceReport, ...] = field(default=())

    @classmethod
    def unknown(cls, workloads: int, pods: int, reports: tuple[SourceReport, ...] = ()) -> Samples:
        """Return samples without readings: NaN everywhere."""
        return cls(PodSamples.filled(pods), GatewaySamples.filled(workloads), reports)

    def rounded(self) -> Samples:
        """Return them without the digits that say nothing, so that a record of them is small."""
        return replace(self, pods=_round(self.pods), gateways=_round(self.gateways))


def merge(samples: list[Samples]) -> Samples:
    """Combine several sources: each cell has the value of the first source that knows it."""
    return Samples(
        _first_known([sample.pods for sample in samples]),
        _first_known([sample.gateways for sample in samples]),
        tuple(report for sample in samples for report in sample.reports),
    )


def _round(table: Table) -> Table:
    rounded = {name: np.round(getattr(table, name), DECIMALS[name]) for name in vars(table) if name in DECIMALS}
    return replace(table, **rounded)


def _first_known(tables: list[Table]) -> Table:
    columns = {}
    for column in fields(tables[0]):
        known = getattr(tables[0], column.name)
        for table in tables[1:]:
            known = fill_unknown(known, getattr(table, column.name))
        columns[column.name] = known
    return type(tables[0])(**columns)
