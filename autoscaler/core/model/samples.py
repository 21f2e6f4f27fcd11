"""What was measured, before it is understood: one row per pod, plus what is seen in front of the workloads.

Every source (Prometheus, direct scrape, DCGM, gateways) fills the same columns for the pods of one `Fleet`, leaves
NaN where it knows nothing, and `merge` lays them over each other. A reading is NaN when it is absent; its time says
when it is stale; zero is a reading like any other.

Series are folded before they arrive here: several engines or data-parallel ranks of one pod are summed (running,
waiting, counters) or take the largest (KV usage). Histograms arrive reduced to a quantile where their buckets are:
on the Prometheus server, or in the scraper. That is the quantile of a workload's requests, from the buckets of all its
pods together, and each of these pods has it; how sources tell which pods belong together is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np

from autoscaler.core.table.columns import Columns, FloatColumn

Table = TypeVar("Table", "PodSamples", "FrontSamples")


@dataclass(frozen=True)
class PodSamples(Columns):
    """Readings of each pod's engine and GPUs; every field float64[P]."""

    time_s: FloatColumn  # when the engine was read; NaN: it did not answer
    running: FloatColumn  # requests in the running batch
    waiting: FloatColumn  # requests the engine holds but does not run
    held: FloatColumn  # requests inside the server, /load; counts those a sleeping engine hides
    asleep: FloatColumn  # 1 while the engine sleeps, 0 awake
    kv_usage: FloatColumn  # 0..1, used share of KV-cache blocks, the largest of the engines
    prompt_tokens: FloatColumn  # counter, those computed here: not from a cache, nor from another pod
    generation_tokens: FloatColumn  # counter
    finished: FloatColumn  # counter, requests ended for whatever reason
    first_tokens: FloatColumn  # counter, requests that got their first token (count of the TTFT histogram)
    ttft_met: FloatColumn  # counter, those of them whose TTFT was within the objective of their workload
    gap_s: FloatColumn  # counter, seconds between tokens, of all requests added up (sum of the ITL histogram)
    gaps: FloatColumn  # counter, how many those are (its count)
    itl_judged: FloatColumn  # counter, ended requests whose mean gap is known (count of its histogram)
    itl_met: FloatColumn  # counter, those of them whose mean gap was within the ITL objective of their workload
    prefill_judged: FloatColumn  # counter, ended requests of which it is known how long their prompt was computed
    prefill_met: FloatColumn  # counter, those of them for which it did not certainly take longer than TTFT may
    steps: FloatColumn  # counter, batches computed, where tokens are counted late or never
    preemptions: FloatColumn  # counter
    rejections: FloatColumn  # counter, requests refused by an admission limit: demand that never shows as waiting
    max_running: FloatColumn  # slots of the engine (max_num_seqs), where it can be known
    ttft_s: FloatColumn  # quantile of time to first token of the pod's workload, over a window; NaN: nobody asked
    itl_s: FloatColumn  # quantile of inter-token latency of the pod's workload, over the same window
    gpu_time_s: FloatColumn  # when the GPU was read
    fb_usage: FloatColumn  # 0..1, framebuffer used / (used + free), the largest device of the pod
    tensor_active: FloatColumn  # 0..1, the largest device of the pod, largest over the source's window
    sm_active: FloatColumn  # 0..1, likewise
    dram_active: FloatColumn  # 0..1, likewise


@dataclass(frozen=True)
class FrontSamples(Columns):
    """What is seen in front of each workload, alive even without a pod; every field float64[W]."""

    time_s: FloatColumn  # when the gateway was read; NaN: no gateway known, or it did not answer
    waiting: FloatColumn  # requests held by the gateway
    arrivals_per_s: FloatColumn  # requests arriving at the gateway


@dataclass(frozen=True)
class Objectives(Columns):
    """What sources must know to count the requests that met it: float64[W], of the policies in force; NaN: none."""

    ttft_s: FloatColumn  # seconds to the first token that a request may take
    itl_s: FloatColumn  # seconds between two tokens


@dataclass(frozen=True)
class SourceReport:
    """How one source fared in one sampling; goes into metrics, readiness and explanations."""

    source: str  # "prometheus", "discovery", "scrape", "dcgm", "gateway"
    queries: int = 0  # requests sent
    failed: int = 0  # requests that brought nothing
    problems: tuple[str, ...] = ()  # one line each, bounded, without secrets
    duration_s: float = 0.0


@dataclass(frozen=True)
class Samples:
    """All readings of one tick, on the rows of one fleet."""

    pods: PodSamples
    front: FrontSamples
    reports: tuple[SourceReport, ...] = field(default=())

    @classmethod
    def nothing(cls, workloads: int, pods: int, reports: tuple[SourceReport, ...] = ()) -> Samples:
        """Nobody answered: NaN everywhere."""
        return cls(PodSamples.filled(pods), FrontSamples.filled(workloads), reports)


def merge(samples: list[Samples]) -> Samples:
    """Lay several sources over each other: in each cell the first that knows wins."""
    return Samples(
        _first_known([sample.pods for sample in samples]),
        _first_known([sample.front for sample in samples]),
        tuple(report for sample in samples for report in sample.reports),
    )


def _first_known(tables: list[Table]) -> Table:
    columns = {}
    for column in fields(tables[0]):
        known = getattr(tables[0], column.name)
        for table in tables[1:]:
            known = np.where(np.isnan(known), getattr(table, column.name), known)
        columns[column.name] = known
    return type(tables[0])(**columns)
