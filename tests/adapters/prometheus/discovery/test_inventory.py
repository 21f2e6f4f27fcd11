"""Workloads and pods that are kept between discovery passes."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.discovery import inventory as inventory_module
from autoscaler.adapters.prometheus.discovery.inventory import FORGET_S, MISSED_S, DiscoveredWorkloads, DiscoveryResult
from autoscaler.adapters.prometheus.discovery.kube_state import Controllers, PodFacts
from autoscaler.config.prices import shares_of
from autoscaler.core.model.fleet import Fleet, PendingCause, Pool, WorkloadRef

NOTHING = Controllers({}, {})
A, B = ("llm", "llama-7d9c5b6f4-x2x8k"), ("llm", "llama-7d9c5b6f4-b4b4b")
ENGINE = ("vllm", "llama-3")
LLAMA = WorkloadRef("llm", "llama")
H100 = Pool("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3")


def result(*reporting: tuple[str, str], **fields) -> DiscoveryResult:
    return replace(DiscoveryResult(dict.fromkeys(reporting, ENGINE), {}, NOTHING, {}, complete=True), **fields)


def snapshot(inventory: DiscoveredWorkloads, now_s: float = 0.0) -> Fleet:
    return inventory.fleet(now_s, lambda unix_s: unix_s - 1000)


def test_reporting_pods_are_ready_without_kube_state_metrics():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, B), 0)
    fleet = snapshot(inventory)
    assert [(each.ref, each.model, each.engine) for each in fleet.workloads] == [(LLAMA, "llama-3", "vllm")]
    assert fleet.replicas.tolist() == [2]
    assert fleet.pod_ready.all()
    assert np.isnan(fleet.pod_created_s).all()


def test_stated_gpus_are_whole_ones_when_no_series_tells():
    inventory, other = DiscoveredWorkloads(2.0), ("llm", "measured-5d4f8c7b9-x2x9z")
    inventory.update(result(A, other, gpus={other: Counter({H100: 8})}), 0)
    fleet = snapshot(inventory)
    assert fleet.gpus_per_replica.tolist() == [2, 8]
    assert [fleet.pools[pool] for pool in fleet.pool] == [Pool("nvidia.com/gpu"), H100]
    assert shares_of(fleet.groups.groups).tolist() == [1, 1]


def group(*pods: str) -> list[tuple[str, str]]:
    return [("llm", pod) for pod in pods]


def test_workers_of_a_leader_are_one_replica_with_it():
    """A LeaderWorkerSet of three groups of two, of which the last has no worker that reports."""
    inventory = DiscoveredWorkloads()
    leaders, workers = group("deepseek-0", "deepseek-1", "deepseek-2"), group("deepseek-0-1", "deepseek-1-1")
    eight = {name: Counter({H100: 8}) for name in (*leaders, *workers)}
    inventory.update(result(*leaders, *workers, gpus=eight), 0)
    fleet = snapshot(inventory)
    (workload,) = fleet.workloads
    assert (workload.ref.kind, workload.ref.name) == ("LeaderWorkerSet", "deepseek")
    assert fleet.replicas.tolist() == [3]
    assert sorted(pod.name for pod in fleet.pods) == ["deepseek-0", "deepseek-1", "deepseek-2"]
    assert fleet.gpus_per_replica.tolist() == [16]


def test_a_replica_of_several_pods_is_as_ready_as_its_worst_pod():
    inventory = DiscoveredWorkloads()
    leader, worker = group("deepseek-0", "deepseek-0-1")
    facts = {
        leader: PodFacts(("StatefulSet", "deepseek"), ready=True),
        worker: PodFacts(("StatefulSet", "deepseek-0"), ready=False),
    }
    controllers = Controllers({}, {("llm", "StatefulSet", "deepseek"): 4})  # by which its leaders are made
    inventory.update(result(leader, pods=facts, controllers=controllers), 0)
    fleet = snapshot(inventory)
    assert [each.ref.kind for each in fleet.workloads] == ["LeaderWorkerSet"]
    assert (fleet.replicas.tolist(), fleet.pod_ready.tolist()) == ([4], [False])


def test_stateful_sets_with_numbered_names_are_no_groups():
    inventory = DiscoveredWorkloads()
    inventory.update(result(*group("llama-0", "llama-0-0", "llama-0-1", "qwen-2-1")), 0)
    assert sorted((each.ref.kind, each.ref.name) for each in snapshot(inventory).workloads) == [
        ("StatefulSet", "llama"),
        ("StatefulSet", "llama-0"),
        ("StatefulSet", "qwen-2"),
    ]


def test_numbers_ascend_and_never_come_again():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A), 0)
    first = snapshot(inventory)
    inventory.update(result(B), 10)
    second = snapshot(inventory)
    inventory.update(result(A, B), 20)
    third = snapshot(inventory)
    assert first.workload_id.tolist() == second.workload_id.tolist() == third.workload_id.tolist()
    assert third.pod_id.tolist() == sorted({*second.pod_id.tolist(), *third.pod_id.tolist()})
    assert third.pod_id[0] == second.pod_id[0]
    assert first.pod_id[0] not in third.pod_id


def test_starting_pods_count_for_their_owner():
    facts = {
        A: PodFacts(("ReplicaSet", "rs"), ready=True, created_s=1000, scheduled_s=1001, started_s=1002, ready_s=1060),
        B: PodFacts(("ReplicaSet", "rs"), blocked=PendingCause.UNSCHEDULABLE, created_s=1050),
        ("llm", "postgres-0"): PodFacts(("StatefulSet", "postgres"), ready=True),
    }
    controllers = Controllers({("llm", "rs"): ("Deployment", "chat")}, {("llm", "Deployment", "chat"): 5})
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, pods=facts, controllers=controllers), 100)
    early, fleet = snapshot(inventory, 10), snapshot(inventory, 100)
    assert (math.isnan(early.pod_started_s[0]), early.pod_ready_s[0]) == (True, 10)  # its clock is ahead
    assert [each.ref.name for each in fleet.workloads] == ["chat"]
    assert fleet.replicas.tolist() == [5]
    assert fleet.pod_ready.tolist() == [True, False]
    assert fleet.pod_pending.tolist() == [PendingCause.NONE, PendingCause.UNSCHEDULABLE]
    assert fleet.pod_created_s.tolist() == [0, 50]
    assert (fleet.pod_started_s[0], fleet.pod_ready_s[0]) == (2, 60)
    assert math.isnan(fleet.pod_ready_s[1])


def test_a_recreated_pod_gets_a_new_id():
    pod = ("llm", "mixtral-0")
    inventory = DiscoveredWorkloads()
    inventory.update(result(pod, pods={pod: PodFacts(created_s=1000, ready=True)}), 0)
    before = snapshot(inventory)
    inventory.update(result(pod, pods={pod: PodFacts(created_s=1500)}), 10)
    after = snapshot(inventory)
    assert after.pod_id[0] > before.pod_id[0]
    assert len(after.pods) == 1


def test_pods_that_ended_are_no_replicas_on_their_way():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, pods={A: PodFacts(ready=True), B: PodFacts(ended=True)}), 0)
    assert [pod.name for pod in snapshot(inventory).pods] == [A[1]]


def test_missing_pods_are_kept_after_an_incomplete_pass():
    inventory = DiscoveredWorkloads()
    facts = {A: PodFacts(ready=True, created_s=1000), B: PodFacts(created_s=1001)}
    inventory.update(result(A, pods=facts), 0)
    inventory.update(result(A, complete=False), 10)
    assert snapshot(inventory).pod_created_s.tolist() == [0, 1]
    inventory.update(result(A, complete=False), MISSED_S + 20)
    assert [pod.name for pod in snapshot(inventory).pods] == [A[1]]


def test_workloads_without_pods_stay_at_zero_then_are_forgotten():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A), 0)
    inventory.update(result(), 10)
    assert snapshot(inventory).replicas.tolist() == [0]
    inventory.update(result(), FORGET_S + 1)
    assert snapshot(inventory).workloads == ()


def test_a_workload_at_zero_in_the_cluster_is_kept():
    at_zero = Controllers({}, {("llm", "Deployment", "llama"): 0})
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, controllers=at_zero), 0)
    inventory.update(result(controllers=at_zero), 3 * FORGET_S)
    assert snapshot(inventory).replicas.tolist() == [0]


def test_gpus_per_replica_come_from_the_devices_of_pods():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, B, gpus={A: Counter({H100: 2})}), 0)
    fleet = snapshot(inventory)
    assert fleet.gpus_per_replica.tolist() == [2]
    assert fleet.pools == (H100,)
    assert fleet.pool.tolist() == [0]


def test_stated_gpus_per_replica_count_where_no_device_is_seen():
    inventory = DiscoveredWorkloads(gpus_per_replica=4.0)
    inventory.update(result(A), 0)
    assert snapshot(inventory).gpus_per_replica.tolist() == [4]
    inventory.update(result(A, gpus={A: Counter({H100: 2})}), 0)
    assert snapshot(inventory).gpus_per_replica.tolist() == [2]


def test_gpus_per_replica_drop_only_after_a_complete_pass():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A, gpus={A: Counter({H100: 4})}), 0)
    inventory.update(result(A, B, gpus={A: Counter({H100: 4}), B: Counter({H100: 2})}), 10)  # is rolled out
    assert snapshot(inventory).gpus_per_replica.tolist() == [4]
    inventory.update(result(B, gpus={B: Counter({H100: 2})}, complete=False), 20)
    assert snapshot(inventory).gpus_per_replica.tolist() == [4]
    inventory.update(result(B, gpus={B: Counter({H100: 2})}), 30)
    assert snapshot(inventory).gpus_per_replica.tolist() == [2]
    inventory.update(result(B), 40)
    assert snapshot(inventory).gpus_per_replica.tolist() == [2]


def test_gpus_come_from_requests_without_device_metrics():
    inventory = DiscoveredWorkloads()
    facts = {A: PodFacts(ready=True, gpus={"nvidia.com/mig-3g.40gb": 1.0})}
    inventory.update(result(A, pods=facts), 0)
    fleet = snapshot(inventory)
    assert fleet.pools == (Pool("nvidia.com/mig-3g.40gb"),)
    assert fleet.gpus_per_replica.tolist() == [1]


def test_targets_with_one_model_are_one_workload():
    inventory = DiscoveredWorkloads()
    targets = ("vllm", "10.0.0.1:8000"), ("vllm", "10.0.0.2:8000")
    inventory.update(result(*targets, targets=frozenset(targets)), 0)
    fleet = snapshot(inventory)
    assert [each.ref for each in fleet.workloads] == [WorkloadRef("vllm", "llama-3", "Model", "")]
    assert len(fleet.pods) == 2


def test_the_same_workloads_are_the_same_tuple():
    inventory = DiscoveredWorkloads()
    inventory.update(result(A), 0)
    first = snapshot(inventory)
    inventory.update(result(A, B), 10)
    assert snapshot(inventory).workloads is first.workloads


@pytest.mark.slow
def test_a_flood_of_told_names_leaves_room_for_scraped_pods():
    flood = {("aaa", f"w{number}-0"): ENGINE for number in range(inventory_module.MAX_WORKLOADS)}
    inventory = DiscoveredWorkloads()
    inventory.update(replace(result(), reporting=flood, told=frozenset(flood)), 0)
    assert inventory.is_full()
    assert len(snapshot(inventory).workloads) == inventory_module.MAX_WORKLOADS // 2
    inventory.update(result(A), 10)
    assert not inventory.is_full()
    assert snapshot(inventory).workloads[-1].ref == LLAMA


@pytest.mark.parametrize("others", [("llm", "llama-7d9c5b6f4-zzzzz"), ("llm", "mixtral-0-1"), ("llm", "mixtral-1")])
def test_others_add_no_pod_to_a_workload_that_is_scraped(others: tuple[str, str]):
    inventory, mixtral = DiscoveredWorkloads(), ("llm", "mixtral-0")
    inventory.update(result(A, mixtral, others, told=frozenset({others})), 0)
    fleet = snapshot(inventory)
    assert {str(each.ref): each.ref.kind for each in fleet.workloads if each.ref.name != "mixtral-0"} == {
        "llm/llama": "Deployment",
        "llm/mixtral": "StatefulSet",
    }
    assert {("llm", pod.name) for pod in fleet.pods} - {("llm", "mixtral-0-1")} == {A, mixtral}
    inventory.update(result(others, A, told=frozenset({others, A}), pods={A: PodFacts(ready=False)}), 10)
    assert not snapshot(inventory).pod_ready[0], "its scrape failed, and kube-state-metrics tells of it"


def test_kinds_of_gpus_are_bounded_and_forgotten():
    """Each pod may name a kind of its own, and another one each time."""
    inventory = DiscoveredWorkloads()
    odd = [("aaa", f"w{number}-0") for number in range(inventory_module.MAX_POOLS + 10)]
    for turn in range(2):
        gpus = {name: Counter({Pool("nvidia.com/gpu", f"{turn}-{name[1]}"): 2}) for name in odd} | {
            A: Counter({H100: 8})
        }
        inventory.update(result(A, *odd, gpus=gpus, told=frozenset(odd)), turn)
        fleet = snapshot(inventory)
        assert (len(fleet.pools), fleet.pools[0]) == (inventory_module.MAX_POOLS, H100)
        assert (fleet.pool.min(), fleet.gpus_per_replica.min()) == (-1, 2)
