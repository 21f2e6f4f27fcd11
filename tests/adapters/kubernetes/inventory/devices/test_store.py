"""Devices of drivers by claims: what a workload asks for, what nodes offer, and what claims hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autoscaler.adapters.kubernetes.api import device_objects
from autoscaler.adapters.kubernetes.inventory.elastic import Elastic
from autoscaler.adapters.kubernetes.inventory.nodes import SHRINK_DELAY_S
from autoscaler.adapters.kubernetes.inventory.pools import TO_COME, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import count_usage
from autoscaler.adapters.kubernetes.pods.holdings import NO_HOLDER
from autoscaler.adapters.kubernetes.pods.template import Facts, group_facts
from autoscaler.config.prices import find_price
from tests.adapters.kubernetes.inventory.devices.world import (
    A100,
    DRIVER,
    FULL,
    H100,
    NVIDIA,
    SLICE_1G,
    SLICE_3G,
    Cluster,
    attribute,
    cuttable,
    device_class,
    facts_of,
    gpu,
    mig,
    request,
    slice_of,
    whole,
)
from tests.adapters.kubernetes.inventory.world import node

PROFILE = attribute("profile")
SHAREABLE = "example.com/gpu"


def of_eight(*nodes: str, product: str = H100) -> Cluster:
    """Return a cluster with eight GPUs on each node, and a template `one` for one of them."""
    cluster = Cluster(nodes)
    cluster.slices(*(slice_of(node, [gpu(f"gpu-{place}", product) for place in range(8)]) for node in nodes))
    cluster.template("one", request(DRIVER))
    return cluster


def unclear(cluster: Cluster, facts: Facts) -> str:
    """Return why the GPUs of a workload are not known, which then has no pool."""
    (settled,) = cluster.settle(facts)
    assert math.isnan(settled.gpus)
    return settled.unclear


def test_claims_count_like_an_extended_resource():
    cluster = of_eight("a", "b")
    cluster.template("two", request(DRIVER, count=2))
    assert cluster.pools(facts_of("one"), facts_of("two"), facts_of("one", "two")) == [
        (FULL, 16.0, 16.0),
        (FULL, 16.0, 8.0),
        (FULL, 16.0, 4.0),  # three for each replica, two on each node
    ]
    (settled,) = cluster.settle(facts_of("one", "two"))
    assert (settled.gpus, settled.resource, settled.unclear) == (3.0, FULL, "")


def test_product_memory_and_price_come_from_the_devices():
    cluster = of_eight("a")
    cluster.slices(slice_of("b", [mig("m0", "1g.10gb")], "a"))
    cluster.template("small", request("mig.nvidia.com"))
    layout, _ = cluster.count(facts_of("one"), facts_of("small"))
    (group,) = layout.groups
    assert group.key.product == "NVIDIA-H100-80GB-HBM3"
    whole, small = layout.pools
    assert find_price(whole, {"nvidia-h100-80gb": 7.0}, {}).usd == 7.0
    assert find_price(small, {"nvidia-h100-80gb": 7.0}, {}).usd == 1.0
    ((key, *_), *_) = of_eight("a").count(facts_of("one"))[0].groups
    assert key.memory == "81559"


CLAIMED = facts_of("one-h100")
BY_CLASS = facts_of(limits={"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"})
MAPPED = facts_of(limits={"example.com/gpu": "2"})
WITH_NIC = facts_of("rdma-nic", limits={"nvidia.com/gpu": "1"})
GROUP = group_facts(facts_of(limits={"nvidia.com/gpu": "8"}), [(CLAIMED, 3)])


@pytest.mark.parametrize("facts", [CLAIMED, BY_CLASS, MAPPED, WITH_NIC, GROUP])
def test_gpus_of_dra_are_unknown_without_its_objects(facts: Facts):
    assert math.isnan(facts.gpus)
    (settled,) = Cluster(classes=()).settle(facts)
    assert math.isnan(settled.gpus)
    assert settled.unclear


@pytest.mark.parametrize(("facts", "gpus"), [(CLAIMED, 1), (BY_CLASS, 2), (MAPPED, 2), (WITH_NIC, 1), (GROUP, 11)])
def test_gpus_of_dra_are_a_number_with_its_objects(facts: Facts, gpus: int):
    nic = device_class("nic", "device.driver == 'dra.net'")
    mapped = device_class("mapped", "device.driver == 'gpu.example.com'", extendedResourceName="example.com/gpu")
    cluster = Cluster(["a"], [*NVIDIA, nic, mapped])
    cluster.slices(slice_of("a", [gpu(f"gpu-{place}") for place in range(8)]))
    cluster.template("one-h100", request(DRIVER))
    cluster.template("rdma-nic", request("nic"))
    assert [each.gpus for each in cluster.settle(facts)] == [gpus]


def test_selectors_choose_among_products():
    cluster = Cluster(["a", "b"])
    cluster.slices(slice_of("a", [gpu("gpu-0"), gpu("gpu-1")]))
    cluster.slices(slice_of("b", [gpu(f"gpu-{place}", A100, "40Gi") for place in range(4)]))
    cluster.template("h100", request(DRIVER, f"{attribute('productName')} == '{H100}'"))
    cluster.template("large", request(DRIVER, f"device.capacity['{DRIVER}'].memory.compareTo(quantity('41Gi')) >= 0"))
    cluster.template("any", request(DRIVER))
    cluster.template("none", request(DRIVER, f"{attribute('productName')} == 'B300'"))
    h100, large, both, none = cluster.pools(*map(facts_of, ("h100", "large", "any", "none")))
    assert (h100[1], large[1], both[1]) == (2.0, 2.0, 6.0)
    assert none[0] == FULL
    assert math.isinf(none[2])  # its nodes may still be created


def test_node_whose_devices_match_in_part_is_not_guessed():
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [gpu("gpu-0"), gpu("gpu-1", A100)]))
    cluster.template("h100", request(DRIVER, f"{attribute('productName')} == '{H100}'"))
    cluster.template("any", request(DRIVER))
    assert "it may get some, and not others" in unclear(cluster, facts_of("h100"))
    assert cluster.pools(facts_of("any")) == [(FULL, 2.0, 2.0)]


def test_slices_of_a_static_cut_are_pools_by_profile():
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [mig("m0", "3g.40gb"), mig("m1", "1g.10gb"), mig("m2", "1g.10gb"), gpu("gpu-1")]))
    cluster.template("small", request("mig.nvidia.com", f"{PROFILE} == '1g.10gb'"))
    cluster.template("large", request("mig.nvidia.com", f"{PROFILE} == '3g.40gb'"))
    cluster.template("whole", request(DRIVER))
    cluster.template("any", request("mig.nvidia.com"))
    pools = cluster.pools(*map(facts_of, ("small", "large", "whole")))
    assert pools == [(SLICE_1G, 2.0, 2.0), (SLICE_3G, 1.0, 1.0), (FULL, 1.0, 1.0)]
    assert f"devices of {SLICE_1G} and {SLICE_3G}" in unclear(cluster, facts_of("any"))


def test_gpu_that_can_be_cut_counts_once():
    cluster = Cluster(["a"])
    cluster.slices(
        slice_of("a-devices", [*cuttable("gpu-0"), *cuttable("gpu-1")], "a", pool="a", slices=2),
        slice_of("a-counters", [], "a", pool="a", slices=2, sharedCounters=[whole("gpu-0"), whole("gpu-1")]),
    )
    cluster.template("small", request("mig.nvidia.com", f"{PROFILE} == '1g.10gb'"))
    cluster.template("large", request("mig.nvidia.com", f"{PROFILE} == '3g.40gb'"))
    cluster.template("whole", request(DRIVER))
    assert cluster.pools(facts_of("whole")) == [(FULL, 2.0, 2.0)]
    assert cluster.pools(facts_of("small")) == [(SLICE_1G, 14.0, 14.0)]
    assert cluster.pools(facts_of("large")) == [(SLICE_3G, 4.0, 4.0)]
    assert "the same GPUs can be cut" in unclear_pair(cluster, facts_of("small"), facts_of("whole"))
    cluster.claim("theirs", [("a", "gpu-0-1g-0")])  # half of the GPU and the whole of it are no longer free
    assert cluster.pools(facts_of("whole")) == [(FULL, 1.0, 1.0)]
    assert cluster.pools(facts_of("large")) == [(SLICE_3G, 3.0, 3.0)]
    assert cluster.pools(facts_of("small")) == [(SLICE_1G, 13.0, 13.0)]


def unclear_pair(cluster: Cluster, *facts: Facts) -> str:
    settled = cluster.settle(*facts)
    assert all(math.isnan(each.gpus) for each in settled)
    assert len({each.unclear for each in settled}) == 1
    return settled[0].unclear


def test_held_devices_are_those_of_ours_and_of_others():
    cluster = of_eight("a")
    cluster.pod("llama-0", "a", 0, "one")
    cluster.claim("llama-0", [("a", "gpu-0")], ["llama-0"])
    cluster.claim("theirs", [("a", "gpu-1"), ("a", "gpu-2")], ["training"])
    cluster.claim("watching", [("a", "gpu-3")], ["monitor"])
    _, usage = cluster.count(facts_of("one"))
    assert (usage.groups.used.tolist(), usage.groups.used_by_others.tolist()) == ([1.0], [3.0])
    assert (usage.fits.tolist(), usage.room.tolist()) == ([5.0], [4.0])
    cluster.store.claims.remove("team", "theirs")
    _, usage = cluster.count(facts_of("one"))
    assert usage.groups.used_by_others.tolist() == [1.0]


@pytest.mark.parametrize(
    ("devices", "claims", "counts", "fits", "former"),
    [
        (1, 1, [2.0], 4.0, 4.0),  # four pods of one device fill the node; a template of two cuts none of them
        (2, 1, [2.0], 4.0, 0.0),  # the template of today
        (1, 2, [2.0], 4.0, 0.0),  # by two claims of one device each
        (3, 1, [2.0], 2.0, 2.0),
        (1, 1, [1.0, 1.0], 4.0, 4.0),  # likewise by two requests of one claim
    ],
)
def test_pods_whose_claims_an_earlier_template_made_stay(devices, claims, counts, fits, former):
    cluster = Cluster(["a"])
    size = devices * claims
    pods = 8 // size if former == 0 else int(former)
    cluster.slices(slice_of("a", [gpu(f"gpu-{place}") for place in range(pods * size)]))
    cluster.template("now", *(request(DRIVER, count=int(count)) for count in counts))
    for number in range(pods):
        cluster.pod(f"llama-{number}", "a", 0, "now")
        for place in range(claims):
            first = number * size + place * devices
            held = [("a", f"gpu-{first + each}") for each in range(devices)]
            cluster.claim(f"llama-{number}-{place}", held, [f"llama-{number}"])
    _, usage = cluster.count(facts_of("now"))
    assert (usage.fits.tolist(), usage.former.tolist()) == ([fits], [former])


def test_shared_claim_counts_once_for_all_its_pods():
    cluster = of_eight("a")
    for name in ("one", "two", "three"):
        cluster.pod(name, "a", 0)
    cluster.claim("shared", [("a", "gpu-0"), ("a", "gpu-1")], ["one", "two", "three"])
    _, usage = cluster.count(facts_of("one"))
    assert usage.groups.used.tolist() == [2.0]
    shared = facts_of(resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}])
    assert "share the devices of ResourceClaim 'shared'" in unclear(cluster, shared)


def test_admin_access_holds_no_device():
    cluster = of_eight("a")
    cluster.template("watch", request(DRIVER, adminAccess=True))
    (settled,) = cluster.settle(facts_of("watch"))
    assert (settled.gpus, settled.resource) == (0.0, "")
    results = [{"driver": DRIVER, "pool": "a", "device": "gpu-0", "adminAccess": True}]
    status = {"allocation": {"devices": {"results": results}}}
    cluster.put(device_objects.ResourceClaim, {"metadata": {"name": "x", "namespace": "team"}, "status": status})
    assert cluster.count(facts_of("one"))[1].groups.used_by_others.tolist() == [0.0]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_tainted_device_counts_only_while_it_is_held(effect: str):
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [gpu("gpu-0"), gpu("gpu-1", taints=[{"key": "broken", "effect": effect}])]))
    cluster.template("one", request(DRIVER))
    assert cluster.pools(facts_of("one")) == [(FULL, 1.0, 1.0)]
    cluster.pod("llama-0", "a", 0)
    cluster.claim("llama-0", [("a", "gpu-1")], ["llama-0"])
    assert cluster.pools(facts_of("one")) == [(FULL, 2.0, 2.0)]
    cluster.store.claims.remove("team", "llama-0")
    assert cluster.pools(facts_of("one")) == [(FULL, 1.0, 1.0)]


def test_only_the_complete_newest_generation_counts():
    cluster = of_eight("a")
    half = [gpu("gpu-0")]
    cluster.slices(slice_of("a-1", half, "a", pool="a", generation=2, slices=2))
    assert cluster.pools(facts_of("one")) == [(FULL, 8.0, 8.0)]  # the driver is still writing
    assert "only 1 of its 2 slices" in " ".join(cluster.store.problems())
    cluster.slices(slice_of("a-2", [gpu("gpu-1")], "a", pool="a", generation=2, slices=2))
    assert cluster.pools(facts_of("one")) == [(FULL, 2.0, 2.0)]
    assert cluster.store.problems() == []


def test_pool_that_is_gone_counts_until_its_driver_may_be_back():
    cluster = of_eight("a")
    cluster.store.slices.remove("", "a")
    cluster.clock.time_s += SHRINK_DELAY_S - 1
    cluster.store.update()
    assert cluster.pools(facts_of("one")) == [(FULL, 8.0, 8.0)]
    cluster.clock.time_s += 1
    cluster.store.update()
    ((resource, _, fits),) = cluster.pools(facts_of("one"))
    assert resource == FULL
    assert math.isinf(fits)


def test_first_available_counts_if_the_alternatives_are_alike():
    cluster = Cluster(["a", "b"])
    cluster.slices(slice_of("a", [gpu("gpu-0")]), slice_of("b", [gpu("gpu-0", A100), mig("m", "1g.10gb")]))
    products = [request(DRIVER, f"{attribute('productName')} == '{each}'") for each in (H100, A100)]
    cluster.template("either", {"firstAvailable": products})
    cluster.template("more", {"firstAvailable": [products[0], {**products[1], "count": 2}]})
    cluster.template("smaller", {"firstAvailable": [products[0], request("mig.nvidia.com")]})
    assert cluster.pools(facts_of("either")) == [(FULL, 2.0, 2.0)]
    assert "different numbers of devices" in unclear(cluster, facts_of("more"))
    assert "its alternatives are devices of" in unclear(cluster, facts_of("smaller"))


def test_alternatives_are_not_mixed_on_one_node():
    """Two GPUs of one product or two of the other, and a node with one of each."""
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [gpu("gpu-0"), gpu("gpu-1", A100)]))
    products = [request(DRIVER, f"{attribute('productName')} == '{each}'", count=2) for each in (H100, A100)]
    cluster.template("either", {"firstAvailable": products})
    cluster.template("both", *[{**each, "count": 1} for each in products])
    for name in ("either", "both"):
        assert "it may get some, and not others" in unclear(cluster, facts_of(name))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(DRIVER, allocationMode="All"), "all devices of a node"),
        (request(DRIVER, count=-1), "it asks for -1 devices"),
        (request(DRIVER, count=0), "it asks for 0 devices"),
        (request(DRIVER, count=10**12), "allowed: 1 to 1024"),
        (request(DRIVER, capacity={"requests": {"memory": "10Gi"}}), "a share of a device"),
        (request("absent"), "DeviceClass 'absent' does not exist, or may not be listed"),
        (request("x" * 300), "does not exist, or may not be listed"),
        (request(DRIVER, f"{attribute('absent')} == 1"), "does not have"),
        (request(DRIVER, "[1].exists(x, x > 0)"), "is not evaluated"),
        (request(DRIVER, *(["true"] * 65)), "more than 64 selectors"),
        ({"firstAvailable": [request(DRIVER)] * 65}, "more than 64 requests and alternatives"),
    ],
)
def test_request_is_unknown_with_a_reason_when_not_understood(asked: Mapping[str, Any], reason: str):
    cluster = of_eight("a")
    cluster.template("odd", asked)
    assert reason in unclear(cluster, facts_of("odd"))
    assert cluster.pools(facts_of("odd"), facts_of("one"))[1] == (FULL, 8.0, 8.0)  # others are served


def test_claim_that_needs_too_many_comparisons_is_skipped():
    """Each of 64 selectors is small, and all of them are evaluated for each kind of device."""
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [gpu(f"gpu-{place}", f"{H100} {place}") for place in range(40)]))
    long = " && ".join(["true"] * 100)
    cluster.template("costly", request(DRIVER, *[f"{long} && {place} == {place}" for place in range(64)]))
    cluster.template("one", request(DRIVER))
    assert "need 258560 comparisons on 40 kinds of devices; allowed: 50000" in unclear(cluster, facts_of("costly"))
    assert cluster.pools(facts_of("costly"), facts_of("one"))[1] == (FULL, 40.0, 40.0)


def test_template_that_is_missing_is_named():
    assert "ResourceClaimTemplate 'one-h100' does not exist" in unclear(of_eight("a"), facts_of("one-h100"))


def test_claim_for_a_network_card_changes_nothing():
    nic = device_class("rdma", "device.driver == 'dra.net'")
    odd = device_class("fast", "device.driver == 'acme.com'")
    cluster = Cluster(["a"], [*NVIDIA, nic, odd])
    cluster.slices(slice_of("a", [gpu("gpu-0")]), slice_of("n", [{"name": "eth0"}], "a", driver="dra.net"))
    for name, asked in (("nic", "rdma"), ("odd", "fast"), ("one", DRIVER)):
        cluster.template(name, request(asked))
    limits = {"nvidia.com/gpu": "1"}
    with_nic, with_odd, alone, only_odd, both = cluster.settle(
        facts_of("nic", limits=limits),
        facts_of("odd", limits=limits),
        facts_of("nic"),
        facts_of("odd"),
        facts_of("one", "nic"),
    )
    assert [each.gpus for each in (with_nic, with_odd, alone, both)] == [1.0, 1.0, 0.0, 1.0]
    assert with_nic.resource == "nvidia.com/gpu"
    assert "may be an accelerator, or not" in only_odd.unclear


def test_extended_resource_of_a_class_counts_its_devices():
    classes = [NVIDIA[1], device_class(DRIVER, "device.driver == 'gpu.nvidia.com'", extendedResourceName=SHAREABLE)]
    cluster = Cluster(["a"], classes)
    cluster.slices(slice_of("a", [gpu(f"gpu-{place}") for place in range(4)]))
    cluster.template("one", request(DRIVER))
    named = facts_of(limits={SHAREABLE: "2"})
    implicit = facts_of(limits={f"deviceclass.resource.kubernetes.io/{DRIVER}": "2"})
    assert cluster.pools(named, implicit, facts_of("one")) == [
        (SHAREABLE, 4.0, 2.0),
        (SHAREABLE, 4.0, 2.0),
        (SHAREABLE, 4.0, 4.0),
    ]
    cluster.pod("theirs", "a", -1, limits={SHAREABLE: "1"})
    special = {"resource.kubernetes.io/extended-resource-claim": "true"}
    cluster.claim("theirs-extended", [("a", "gpu-0")], ["theirs"], annotations=special)
    _, usage = cluster.count(named)
    assert usage.groups.used_by_others.tolist() == [1.0]  # the pod and its claim are one


def test_nodes_with_plugin_and_with_driver_are_one_pool():
    classes = [device_class(DRIVER, "device.driver == 'gpu.nvidia.com'", extendedResourceName="nvidia.com/gpu")]
    cluster = Cluster(["driven"], classes)
    cluster.nodes.put(node("plugged", {}, allocatable={"nvidia.com/gpu": "8"}))
    cluster.slices(slice_of("driven", [gpu("gpu-0"), gpu("gpu-1")]))
    cluster.template("one", request(DRIVER))
    named, claimed = cluster.pools(facts_of(limits={"nvidia.com/gpu": "1"}), facts_of("one"))
    assert named == ("nvidia.com/gpu", 10.0, 10.0)
    assert claimed == ("nvidia.com/gpu", 2.0, 2.0)  # a claim needs a driver


def test_newest_class_serves_an_extended_resource():
    stamps = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")
    classes = [
        device_class("old", "device.driver == 'gpu.amd.com'", extendedResourceName=SHAREABLE),
        device_class("new", "device.driver == 'gpu.nvidia.com'", extendedResourceName=SHAREABLE),
    ]
    for each, stamp in zip(classes, stamps, strict=True):
        each["metadata"]["creationTimestamp"] = stamp
    cluster = Cluster(["a"], classes)
    cluster.slices(slice_of("a", [gpu("gpu-0")]), slice_of("x", [{"name": "card"}] * 1, "a", driver="gpu.amd.com"))
    assert cluster.pools(facts_of(limits={SHAREABLE: "1"})) == [(SHAREABLE, 1.0, 1.0)]


def test_group_with_claims_of_its_workers_is_counted_whole():
    cluster = of_eight("a", "b")
    cluster.template("eight", request(DRIVER, count=8))
    leader, worker = facts_of(limits={"nvidia.com/gpu": "8"}), facts_of("eight")
    group = group_facts(leader, [(worker, 3)])
    assert math.isnan(group.gpus)
    (settled,) = cluster.settle(group)
    assert (settled.gpus, settled.resource) == (32.0, "")  # two kinds of resources
    (settled,) = cluster.settle(group_facts(worker, [(worker, 1)]))
    assert (settled.gpus, settled.resource, settled.unclear) == (16.0, FULL, "")


@pytest.mark.parametrize(
    "place",
    [
        {"allNodes": True},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}},
    ],
)
def test_devices_that_several_nodes_can_use_are_unknown(place: Mapping[str, Any]):
    cluster = Cluster(["a"])
    cluster.slices(slice_of("fabric", [gpu("gpu-0")], **place))
    cluster.template("one", request(DRIVER))
    assert "several nodes can use the same devices" in unclear(cluster, facts_of("one"))


def test_devices_may_name_their_node_one_by_one():
    cluster = Cluster(["a", "b"])
    field = {"key": "metadata.name", "operator": "In", "values": ["b"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    devices = [gpu("gpu-0", nodeName="a"), gpu("gpu-1", nodeName="b"), gpu("gpu-2", nodeSelector=selector)]
    cluster.slices(slice_of("rack", devices, perDeviceNodeSelection=True))
    cluster.template("one", request(DRIVER))
    layout, usage = cluster.count(facts_of("one"))
    assert usage.fits.tolist() == [3.0]
    assert dict(zip(layout.place, layout.devices[:, 0].tolist(), strict=True)) == {"a": 1.0, "b": 2.0}


def test_devices_that_pods_share_are_unknown():
    cluster = Cluster(["a"])
    cluster.slices(slice_of("a", [gpu("gpu-0", allowMultipleAllocations=True)]))
    cluster.template("one", request(DRIVER))
    assert f"pods share devices of {FULL}" in unclear(cluster, facts_of("one"))


def test_old_api_versions_are_read_as_well():
    """v1beta1 has the fields of a device in `basic`, and those of a request beside its name."""
    cluster = Cluster(["a"])
    device = gpu("gpu-0")
    basic = {"name": device.pop("name"), "basic": device}
    cluster.slices(slice_of("a", [basic]))
    requests = [{"name": "r0", **request(DRIVER)}]
    body = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"spec": {"devices": {"requests": requests}}}}
    cluster.put(device_objects.ResourceClaimTemplate, body)
    assert cluster.pools(facts_of("one")) == [(FULL, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([gpu("gpu-0", consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "-1"}}}])], "with '-1'"),
        ([gpu("x" * 300)], "300 characters"),
        ([gpu("gpu-0", product="x" * 300)], "more than 256 characters"),
        ([gpu("gpu-0", attributes={f"a{place}": {"int": place} for place in range(99)})], "more than 64 attributes"),
        ([gpu(f"gpu-{place}") for place in range(5000)], "allowed: up to 4096"),
        ([gpu("gpu-0"), gpu("gpu-0")], "two devices of the same name"),
    ],
)
def test_absurd_pool_is_not_counted_and_named(devices: list[dict[str, Any]], reason: str):
    cluster = of_eight("a")
    cluster.nodes.put(node("bad", {}, allocatable={"cpu": "8"}))
    cluster.slices(slice_of("bad", devices))
    assert cluster.pools(facts_of("one")) == [(FULL, 8.0, 8.0)]
    (problem,) = cluster.store.problems()
    assert reason in problem
    assert "pool 'bad'" in problem


def test_slices_without_end_are_named_and_not_kept():
    """A broken driver adds one slice after the other to a pool of a million devices."""
    cluster = of_eight("a")
    rows = [gpu(f"gpu-{place}") for place in range(128)]
    for number in range(400):
        rows[0]["name"] = f"gpu-of-{number}"
        cluster.slices(slice_of(f"huge-{number}", rows, "huge", pool="huge", slices=8000))
    assert "more than 256 slices" in " ".join(cluster.store.problems())
    assert cluster.store.slices.size <= 257 * 128
    assert cluster.pools(facts_of("one")) == [(FULL, 8.0, 8.0)]


def test_nodes_to_come_have_the_devices_of_a_present_one_if_free():
    """All GPUs of the only node are held in another cut, and the autoscaler may add two such nodes."""
    cluster = Cluster()
    cluster.nodes.put(node("a", {"agentpool": "gpu"}, allocatable={"cpu": "64"}))
    cluster.slices(
        slice_of("a-devices", cuttable("gpu-0"), "a", pool="a", slices=2),
        slice_of("a-counters", [], "a", pool="a", slices=2, sharedCounters=[whole("gpu-0")]),
    )
    cluster.claim("theirs", [("a", f"gpu-0-1g-{place}") for place in range(7)])
    cluster.template("large", request("mig.nvidia.com", f"{PROFILE} == '3g.40gb'"))
    settled = cluster.settle(facts_of("large"))
    layout = lay_out_pools(cluster.store.add_to(cluster.nodes.nodes), settled, Elastic({"agentpool=gpu": 3}))
    assert dict(
        zip([group.nodes for group in layout.node_groups.groups], layout.node_groups.can_add.tolist(), strict=True)
    ) == {
        "agentpool=gpu": 0.0,
        TO_COME: 4.0,
    }
    held = cluster.store.add_held(
        cluster.holdings.held(lambda key: NO_HOLDER), lambda key: NO_HOLDER, lambda key: False
    )
    usage = count_usage(layout, held, np.arange(1))
    assert (usage.fits.tolist(), usage.room.tolist()) == ([4.0], [0.0])


def test_device_without_attributes_has_an_unknown_product():
    cluster = Cluster(["a"], [device_class("any", "device.driver == 'gpu.example.com'")])
    cluster.slices(slice_of("a", [{"name": "card"}], driver="gpu.example.com"))
    cluster.template("one", request("any"))
    layout, usage = cluster.count(facts_of("one"))
    assert (layout.pools[0].resource, layout.pools[0].product) == ("gpu.example.com/device", "")
    assert usage.fits.tolist() == [1.0]


def test_change_that_matters_has_a_new_version():
    cluster = of_eight("a")
    before = cluster.store.update()
    cluster.claim("c", [("a", "gpu-0")], ["p"])
    assert cluster.store.update() == before  # the devices are the same
    cluster.slices(slice_of("a", [gpu("gpu-0")], generation=2))
    assert cluster.store.update() != before


def test_devices_that_are_alike_are_one_kind():
    """Whatever a driver writes about single devices: thousands of nodes have a few kinds."""
    cluster = Cluster([f"n{number}" for number in range(50)])
    for number in range(50):
        rows = [gpu(f"gpu-{place}") for place in range(8)]
        for place, each in enumerate(rows):
            unique = f"{number:04x}:{place:02x}:00.0"
            each["attributes"] |= {"index": {"int": place}, "bus": {"string": unique}, "uuid": {"string": unique}}
        cluster.slices(slice_of(f"n{number}", rows))
    assert len(cluster.store.slices.kinds()) == 1


def test_kinds_that_are_not_served_any_more_are_forgotten():
    cluster = of_eight("a")
    cluster.claim("c", [("a", "gpu-0")], ["p"])
    for store in (cluster.store.slices, cluster.store.classes, cluster.store.templates, cluster.store.claims):
        store.clear()
    assert cluster.store.slices.pools == {}
    assert "does not exist" in unclear(cluster, facts_of("one"))
    assert not cluster.store.has_devices("a")
