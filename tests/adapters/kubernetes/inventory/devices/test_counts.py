"""Counts of claims against brute force: every device is free, of ours, of others, or not for new pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.kubernetes.inventory.devices.world import DRIVER, Cluster, facts_of, gpu, request, slice_of

NODES = ("a", "b", "c")
OURS, THEIRS, NOBODY = "ours", "theirs", "nobody"
State = tuple[str, bool]  # who holds a device, and whether it is tainted

devices = st.lists(st.tuples(st.sampled_from([OURS, THEIRS, NOBODY]), st.booleans()), max_size=8)
clusters = st.fixed_dictionaries(dict.fromkeys(NODES, devices))


@given(clusters, st.integers(1, 4), st.booleans())
def test_counts_are_those_of_brute_force(nodes: dict[str, list[State]], each: int, are_shared: bool):
    nodes = {  # our pods are only where they fit
        name: [(THEIRS if holder == OURS and len(states) < each else holder, tainted) for holder, tainted in states]
        for name, states in nodes.items()
    }
    cluster = Cluster(NODES)
    taint = [{"key": "broken", "effect": "NoSchedule"}]
    for name, states in nodes.items():
        rows = [
            gpu(f"gpu-{place}", **({"taints": taint} if tainted else {})) for place, (_, tainted) in enumerate(states)
        ]
        cluster.slices(slice_of(name, rows))
        for owner in (OURS, THEIRS):
            held = [(name, f"gpu-{place}") for place, (holder, _) in enumerate(states) if holder == owner]
            pods = [f"{owner}-{name}-{place}" for place in range(2 if are_shared else 1)]
            for pod in pods:
                cluster.pod(pod, name, 0 if owner == OURS else -1)
            if held:
                cluster.claim(f"{owner}-{name}", held, pods)
    cluster.template("some", request(DRIVER, count=each))
    _, usage = cluster.count(facts_of("some"))

    counted = {
        name: [state for state in states if state[0] != NOBODY or not state[1]] for name, states in nodes.items()
    }
    by_holder = {
        holder: sum(state[0] == holder for states in counted.values() for state in states) for holder in (OURS, THEIRS)
    }
    admitting = {name for name, states in nodes.items() if len(states) >= each}
    assert usage.groups.used.sum() == by_holder[OURS]
    assert usage.groups.used_by_others.sum() == by_holder[THEIRS]
    assert usage.groups.allocatable.sum() == sum(map(len, counted.values()))
    room = sum(
        sum(holder == NOBODY for holder, _ in states) // each for name, states in counted.items() if name in admitting
    )
    if admitting:
        assert usage.room.tolist() == [room]
