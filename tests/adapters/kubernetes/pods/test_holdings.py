"""What pods hold: the columns equal a plain account of the last state of each pod."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject
from autoscaler.adapters.kubernetes.pods.holdings import NO_HOLDER, Holder, Holdings

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def pod(node: str, gpus: int, slices: int, phase: str = "Running") -> PodObject:
    limits = {name: str(count) for name, count in ((GPU, gpus), (MIG, slices)) if count}
    container = {"name": "c", "resources": {"limits": limits | {"cpu": "2"}}}
    return msgspec.convert(
        {"metadata": {}, "spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}, PodObject
    )


events = st.tuples(
    st.integers(0, 5),
    st.sampled_from(["a", "b", ""]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["Running", "Failed", "gone"]),
)


@given(st.lists(events, max_size=30))
def test_columns_equal_a_plain_account_of_pods(seen):
    holdings, pods = Holdings(), {}
    for number, node, gpus, slices, phase in seen:
        key = "x", str(number)
        if phase == "gone":
            holdings.remove(key)
            pods.pop(key, None)
        else:
            holdings.put(key, pod(node, gpus, slices, phase))
            pods[key] = (node, gpus, slices) if node and phase == "Running" else None
    held = holdings.held(lambda key: Holder(int(key[1]), -1))
    expected: Counter[tuple[str, str, int]] = Counter()
    cpu: Counter[str] = Counter()
    for (_, number), state in pods.items():
        if state is not None:
            node, gpus, slices = state
            expected.update({(node, GPU, int(number)): gpus, (node, MIG, int(number)): slices})
            cpu[node] += 2
    found: Counter[tuple[str, str, int]] = Counter()
    cores: Counter[str] = Counter()
    for node, target, resource, count, used in zip(
        held.node, held.target, held.resource, held.devices, held.cpu, strict=True
    ):
        found[held.nodes[node], held.resources[resource], int(target)] += int(count)
        cores[held.nodes[node]] += int(used)
    assert +found == +expected
    assert +cores == +cpu


def test_target_is_looked_up_again_when_it_may_have_changed():
    holdings, targets = Holdings(), {("x", "a"): NO_HOLDER}
    holdings.put(("x", "a"), pod("n", 1, 0))
    assert holdings.held(targets.__getitem__).replica.tolist() == [-1]
    targets["x", "a"] = Holder(7, 3)
    version = holdings.version
    holdings.mark(("x", "a"), ("x", "unknown"))
    assert holdings.version > version
    found = holdings.held(targets.__getitem__)
    assert (found.target.tolist(), found.replica.tolist()) == ([7], [3])
