"""What GPUs are used for while templates change: sums over workloads are those of the pools, each tick."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.inventory.pools import lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import count_usage
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals, PoolKey, TickUse, name_row
from autoscaler.core.gpu_use import IDLE, GpuState
from autoscaler.core.model.fleet import Fleet, Pod
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.adapters.kubernetes.inventory.world import GPU, MIG, PRODUCT, hold, nodes, placed_facts, pod
from tests.core.world import fleet, spec, world

L4, H100, A100 = ({PRODUCT: name} for name in ("NVIDIA-L4", "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"))
OFFERED = [(L4, {GPU: "8"}), (H100, {GPU: "8"}), (A100, {MIG: "4", GPU: "4"})]
SECONDS = 60.0
OTHERS = 2  # in place of a workload: it is not managed
TEMPLATES = [(GPU, 1.0, L4), (GPU, 4.0, L4), (GPU, 2.0, H100), (MIG, 1.0, A100), (MIG, 2.0, A100), (GPU, 1.0, A100)]


class SeenPod(NamedTuple):
    """A pod of a workload, which a template made that is not its present one, or is."""

    workload: int
    node: int
    resource: str
    devices: int
    ready: bool
    leaves: bool


class Cluster(NamedTuple):
    templates: list[tuple[str, float, dict[str, str]]]  # of two workloads
    pods: list[SeenPod]


clusters = st.builds(
    Cluster,
    st.lists(st.sampled_from(TEMPLATES), min_size=2, max_size=2),
    st.lists(
        st.builds(
            SeenPod,
            st.integers(0, OTHERS),
            st.integers(0, 2),
            st.sampled_from([GPU, GPU, MIG]),
            st.integers(1, 4),
            st.booleans(),
            st.booleans(),
        ),
        max_size=9,
    ),
)


def view(cluster: Cluster) -> Fleet:
    seen = [
        pod(f"{'ours' if each.workload < OTHERS else 'theirs'}-{each.workload}.{number}", f"n{each.node}", limits)
        for number, each in enumerate(cluster.pods)
        for limits in [{each.resource: str(each.devices)}]
    ]
    facts = [
        placed_facts(devices, resource, selector=tuple(labels.items()))
        for resource, devices, labels in cluster.templates
    ]
    layout = lay_out_pools(nodes(*OFFERED).nodes, facts)
    usage = count_usage(layout, hold(*seen), np.arange(2))
    assert usage.of_pods is not None
    ids = np.array([number for number, each in enumerate(cluster.pods) if each.workload < OTHERS], dtype=np.int64)
    of = [cluster.pods[number] for number in ids.tolist()]
    ready = np.array([each.ready for each in of], dtype=bool)
    return replace(
        fleet([0, 0]),
        pods=tuple(Pod("x", f"p{number}", node=f"n{each.node}") for number, each in zip(ids, of, strict=True)),
        pod_id=ids,
        pod_workload=np.array([each.workload for each in of], dtype=np.int64),
        pod_ready=ready,
        pod_terminating=np.array([each.leaves for each in of], dtype=bool),
        pod_pending=np.zeros(len(of), dtype=np.int64),
        **{name: np.zeros(len(of)) for name in ("pod_created_s", "pod_scheduled_s", "pod_started_s")},
        pod_ready_s=np.where(ready, 60.0, np.nan),
        gpus_per_replica=np.array([devices for _, devices, _ in cluster.templates]),
        pool=np.array(layout.rows),
        pools=layout.pools,
        groups=usage.groups,
        held=usage.of_pods.on_rows(ids),
    )


def count(cluster: Cluster) -> Counter[tuple[int, str, str]]:
    """A plain account: devices of nodes that pods hold, by workload, product and resource."""
    held: Counter[tuple[int, str, str]] = Counter()
    for each in cluster.pods:
        labels, offered = OFFERED[each.node]
        if each.resource in offered:
            held[each.workload, labels[PRODUCT], each.resource] += each.devices
    return held


@pytest.mark.slow
@given(st.lists(clusters, min_size=2, max_size=4))
def test_sums_of_workloads_are_those_of_pools_when_templates_change(seen: list[Cluster]):
    totals, memory = GpuTotals[tuple[int, PoolKey]](), Memory.empty()
    expected: Counter[tuple[int, PoolKey]] = Counter()
    for number, cluster in enumerate(seen):
        state, held = view(cluster), count(cluster)
        inp = world(1000.0 + SECONDS * number, state, spec(2))
        decision, memory = tick(inp, memory)
        shares = shares_of(state.groups.groups)
        totals.add(TickUse.of(inp, decision), shares, 9, lambda *line: line)
        pools, named = totals.pools, [each[:3] for each in state.groups.groups]
        assert pools is not None
        ours, theirs = np.zeros((2, len(pools.pools)))
        for row, groups in enumerate(pools.groups):
            for group in groups:
                kind = state.groups.groups[group]
                theirs[row] += held[OTHERS, kind.product, kind.resource]
                for workload in range(OTHERS):
                    devices = held[workload, kind.product, kind.resource]
                    ours[row] += devices
                    if number:
                        expected[workload, name_row(pools, row, state.pools, named)] += (
                            devices * shares[group] * SECONDS
                        )
        offered = [sum(state.held.allocatable[list(groups)]) for groups in pools.groups] if state.held else []
        np.testing.assert_allclose(pools.states[: GpuState.ORDERED].sum(axis=0), ours)
        np.testing.assert_allclose(pools.devices, np.maximum(offered, ours + theirs))
        np.testing.assert_allclose(pools.states.sum(axis=0), pools.devices)
    names, sums = totals.by_name(lambda *line: line)
    found = dict(zip(names, sums.gpu_s[: GpuState.ORDERED].sum(axis=0).tolist(), strict=True))
    assert +Counter(found) == pytest.approx(+expected)
    np.testing.assert_allclose(sums.idle_gpu_s.sum(axis=0), sums.gpu_s[IDLE].sum(axis=0), atol=1e-6)
    for key, states in totals.of_pools.items():
        own = [row for row, (_, pool) in enumerate(names) if pool == key]
        of_pool = sums.gpu_s[:, own].sum(axis=1)[: GpuState.ORDERED]
        np.testing.assert_allclose(of_pool, states[: GpuState.ORDERED], atol=1e-6)
    np.testing.assert_allclose(totals.of_workloads.gpu_s.sum(), sums.gpu_s.sum())
