"""Load on pods that no longer serve: terminating, preempted or not ready.

These pods are no capacity, but their requests may come back to the other pods, so they still count as load. A pod
without a reading that is recent enough to trust counts for nothing.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.observation import DrainingLoad
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.pods import GroupedPods
from autoscaler.core.table.columns import BoolColumn, or_zero


def is_draining(inp: TickInput, samples: PodSamples) -> BoolColumn:
    """Return the pods that hold requests but do not serve; bool[P]. Pods whose engine sleeps are counted elsewhere."""
    draining = ~inp.fleet.pod_ready | inp.fleet.pod_terminating
    some = np.flatnonzero(draining)  # few of many
    running, waiting = samples.running[some], samples.waiting[some]
    max_age_s = inp.spec.max_input_age_s[inp.fleet.pod_workload[some]]
    fresh = inp.now_s - samples.time_s[some] <= max_age_s  # False if the engine did not answer
    has_load = ~np.isnan(running) & ~np.isnan(waiting) & ((running > 0) | (waiting > 0))
    draining[some] = fresh & has_load & ~(samples.asleep[some] > 0)
    return draining


def sum_load(draining: BoolColumn, pods: GroupedPods) -> DrainingLoad:
    """Sum the load of draining pods. draining: bool[P]."""
    samples, rates = pods.samples, pods.rates
    if not draining.any():  # as in most ticks
        return DrainingLoad.filled(pods.by_workload.workloads, 0.0)
    requests = samples.running + samples.waiting
    columns = requests, pods.ended, rates["prompt_tokens"], rates["generation_tokens"], samples.kv_usage
    return DrainingLoad(*pods.by_workload.sum([(or_zero(column), draining) for column in columns]))


def is_lost(inp: TickInput, serving: BoolColumn, samples: PodSamples) -> BoolColumn:
    """Return the draining pods of workloads with fewer serving pods than spec.replicas; bool[P].

    Sleeping pods count as serving here. Other pods must take over the load of lost ones. After a scale-down as many
    pods serve as spec.replicas says, and the load that drains does not come back.
    """
    draining = is_draining(inp, samples)
    if not draining.any():
        return draining
    counted = serving | (samples.asleep > 0)
    serve = np.bincount(inp.fleet.pod_workload[counted], minlength=len(inp.fleet.workloads))
    return np.asarray(draining & (serve < inp.fleet.replicas)[inp.fleet.pod_workload])
