"""Load on pods that do not serve any more: terminating, preempted, or no longer ready.

They are no capacity, but the requests they hold are load that comes back to the others: losing pods must not look like
losing load. A pod that has not been heard for longer than inputs are trusted holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero
from autoscaler.core.table.groupby import GroupBy


def holding(inp: TickInput, samples: PodSamples) -> BoolColumn:
    """Say which pods hold requests though they do not serve; bool[P]."""
    holds = ~inp.fleet.pod_ready | inp.fleet.pod_terminating
    some = np.flatnonzero(holds)  # few of many
    running, waiting = samples.running[some], samples.waiting[some]
    max_age_s = inp.spec.max_input_age_s[inp.fleet.pod_workload[some]]
    fresh = inp.now_s - samples.time_s[some] <= max_age_s  # False where it did not answer
    holds[some] = fresh & ~np.isnan(running) & ~np.isnan(waiting) & ((running > 0) | (waiting > 0))
    return holds


def load(
    holds: BoolColumn,
    samples: PodSamples,
    rates: Mapping[str, FloatColumn],
    ended: FloatColumn,
    by_workload: GroupBy,
) -> dict[str, FloatColumn]:
    """Add up what such pods hold and do; columns of `Observation`, float64[W], 0 where there are none.

    rates: per second and ended: since the last reading, float64[P], NaN unknown.
    """
    columns = {
        "draining_requests": samples.running + samples.waiting,
        "draining_ended": ended,
        "draining_prompt_tokens_per_s": rates["prompt_tokens"],
        "draining_generation_tokens_per_s": rates["generation_tokens"],
        "draining_kv_usage": samples.kv_usage,
    }
    if not holds.any():  # as in most ticks
        return dict.fromkeys(columns, np.zeros(by_workload.workloads))
    sums = by_workload.sum([(or_zero(column), holds) for column in columns.values()])
    return dict(zip(columns, sums, strict=True))


def are_lost(inp: TickInput, serving: BoolColumn, samples: PodSamples) -> BoolColumn:
    """Say which of the pods that hold requests are missed: of a workload in which fewer serve than are wanted. bool[P].

    After a shrink as many serve as are wanted, and what drains then is gone for good.
    """
    holds = holding(inp, samples)
    if not holds.any():
        return holds
    serve = np.bincount(inp.fleet.pod_workload[serving], minlength=len(inp.fleet.workloads))
    return np.asarray(holds & (serve < inp.fleet.replicas)[inp.fleet.pod_workload])


def with_draining(observation: Observation, requests: FloatColumn) -> FloatColumn:
    """Add the requests of such pods to those of the pods that serve; float64[W], NaN: not known."""
    draining = or_zero(observation.draining_requests)
    return np.where((observation.ready == 0) & (draining > 0), 0.0, requests) + draining
