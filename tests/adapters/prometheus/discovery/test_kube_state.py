"""Facts from kube-state-metrics."""

import math

import pytest

from autoscaler.adapters.prometheus.decode import decode_vector
from autoscaler.adapters.prometheus.discovery.kube_state import PodFacts, read_controllers, read_pods
from autoscaler.core.model.fleet import PendingCause
from tests.adapters.prometheus.responses import pod, vector


def facts(*series: tuple[str, dict[str, str], object]) -> PodFacts:
    answer = vector(*[({"metric": name, **pod("a-0"), **labels}, value) for name, labels, value in series])
    return read_pods(decode_vector(answer.encode()), {})["llm", "a-0"]


def test_times_readiness_and_owner_of_a_pod():
    found = facts(
        ("kube_pod_owner", {"owner_kind": "ReplicaSet", "owner_name": "a"}, 1),
        ("kube_pod_created", {}, 1_000),
        ("kube_pod_status_scheduled_time", {}, 1_001),
        ("kube_pod_container_state_started", {}, 1_010),
        ("kube_pod_status_ready_time", {}, 1_060),
        ("kube_pod_status_ready", {}, 1),
    )
    assert (found.controller, found.ready) == (("ReplicaSet", "a"), True)
    assert (found.created_s, found.scheduled_s, found.started_s, found.ready_s) == (1_000, 1_001, 1_010, 1_060)


@pytest.mark.parametrize("turned", [1, -1])
def test_start_time_is_unknown_after_a_restart(turned: int):
    series = [("kube_pod_container_state_started", {}, 1_010), ("kube_pod_container_status_restarts_total", {}, 2)]
    assert math.isnan(facts(*series[::turned]).started_s)
    assert facts(series[0], ("kube_pod_container_status_restarts_total", {}, 0)).started_s == 1_010


@pytest.mark.parametrize(
    ("series", "blocked"),
    [
        (("kube_pod_status_unschedulable", {}, 1), PendingCause.UNSCHEDULABLE),
        (("kube_pod_status_unschedulable", {}, 0), PendingCause.NONE),
        (("kube_pod_container_status_waiting_reason", {"reason": "ImagePullBackOff"}, 1), PendingCause.IMAGE_PULL),
        (("kube_pod_container_status_waiting_reason", {"reason": "CrashLoopBackOff"}, 1), PendingCause.CRASH_LOOP),
        (("kube_pod_container_status_waiting_reason", {"reason": "CrashLoopBackOff"}, 0), PendingCause.NONE),
        (
            ("kube_pod_container_status_waiting_reason", {"reason": "CreateContainerConfigError"}, 1),
            PendingCause.CONFIG_ERROR,
        ),
        (("kube_pod_container_status_waiting_reason", {"reason": "ContainerCreating"}, 1), PendingCause.NONE),
    ],
)
def test_why_waiting_does_not_help(series: tuple, blocked: PendingCause):
    assert facts(series).blocked is blocked


def test_ended_and_terminating_pods_are_marked():
    assert facts(("kube_pod_status_phase", {"phase": "Failed"}, 1)).ended
    assert not facts(("kube_pod_status_phase", {"phase": "Failed"}, 0)).ended
    assert facts(("kube_pod_deletion_timestamp", {}, 1_000)).terminating


def requests(container: str, resource: str, count: int, init: str = "") -> tuple[str, dict[str, str], object]:
    return f"kube_pod_{init}container_resource_requests", {"container": container, "resource": resource}, count


@pytest.mark.parametrize(
    ("series", "gpus"),
    [
        ([requests("vllm", "nvidia_com_mig_3g_40gb", 1)], {"nvidia.com/mig-3g.40gb": 1}),
        ([requests("vllm", "amd_com_gpu", 4), requests("guard", "amd_com_gpu", 1)], {"amd.com/gpu": 5}),
        (
            [requests("vllm", "habana_ai_gaudi", 2), requests("load", "habana_ai_gaudi", 4, "init_")],
            {"habana.ai/gaudi": 4},
        ),
        ([requests("vllm", "rdma_ib", 1), requests("vllm", "example_com_gpu", 1)], {}),
    ],
)
def test_the_devices_of_a_pod_are_those_of_all_its_containers(series: list[tuple], gpus: dict[str, float]):
    assert facts(*series).gpus == gpus


def test_the_engine_is_the_container_with_devices():
    series = [
        requests("vllm", "amd_com_gpu", 1),
        ("kube_pod_container_state_started", {"container": "vllm"}, 1_010),
        ("kube_pod_container_state_started", {"container": "proxy"}, 2_000),
        ("kube_pod_container_status_restarts_total", {"container": "proxy"}, 3),
    ]
    assert facts(*series).started_s == 1_010
    assert math.isnan(facts(*series, ("kube_pod_container_status_restarts_total", {"container": "vllm"}, 1)).started_s)


def test_owners_of_replica_sets_and_spec_replicas():
    answer = vector(
        ({"namespace": "llm", "replicaset": "a-7d", "owner_kind": "Deployment", "owner_name": "a"}, 1),
        ({"namespace": "llm", "replicaset": "bare"}, 1),
        ({"namespace": "llm", "deployment": "a"}, 3),
        ({"namespace": "llm", "statefulset": "b"}, 0),
        ({"namespace": "llm", "deployment": "broken"}, "NaN"),
    )
    found = read_controllers(decode_vector(answer.encode()), {})
    assert found.replica_set_owners == {("llm", "a-7d"): ("Deployment", "a")}
    assert found.replicas == {("llm", "Deployment", "a"): 3, ("llm", "StatefulSet", "b"): 0}


def test_series_without_a_pod_or_a_number_are_left_out():
    answer = vector(({"metric": "kube_pod_created", "namespace": "llm"}, 1), ({"metric": "x", **pod("b")}, "NaN"))
    assert read_pods(decode_vector(answer.encode()), {}) == {}
    assert math.isnan(facts(("unknown_metric", {}, 1)).created_s)


OTHER = {"namespace": "evil", "pod": "evil-0", "exported_namespace": "llm", "exported_pod": "a-0"}
MOVED = {**OTHER, "namespace": "monitoring", "pod": "kube-state-metrics-0"}
"""The labels of series about one pod, as a pod of a tenant and kube-state-metrics write them."""


def test_no_number_of_devices_is_known_that_no_pod_can_have():
    for count in (1e308, -1, 1025):
        assert facts(requests("vllm", "nvidia_com_gpu", count)).gpus == {}


def test_facts_of_a_kept_label_go_before_what_pods_of_others_tell():
    answer = vector(
        ({"metric": "kube_pod_created", **pod("a-0")}, 1_000),
        ({"metric": "kube_pod_status_phase", "phase": "Failed", **OTHER}, 1),
        ({"metric": "kube_pod_created", **OTHER, "exported_pod": "a-1"}, 1_000),
    )
    problems: dict[str, None] = {}
    (created,) = read_pods(decode_vector(answer.encode()), problems).values()
    assert (created.created_s, created.ended, problems) == (1_000, False, {})


@pytest.mark.parametrize(
    "lie",
    [
        {"metric": "kube_pod_deletion_timestamp", **OTHER},
        {"metric": "kube_pod_created", **OTHER, "exported_pod": "a-1"},
    ],
)
def test_facts_are_unknown_where_pods_of_others_contradict_each_other(lie: dict[str, str]):
    truth = {"metric": "kube_pod_created"}
    answer = vector(({**truth, **MOVED}, 1_000), ({**truth, **MOVED, "exported_namespace": "b"}, 1_000), (lie, 1_000))
    problems: dict[str, None] = {}
    assert list(read_pods(decode_vector(answer.encode()), problems)) == [("b", "a-0")]
    (problem,) = problems
    assert problem == "pods of 'evil', 'monitoring' contradict each other about pods of 'llm': none is believed"


def test_replicas_are_unknown_where_other_pods_contradict():
    answer = vector(({**MOVED, "deployment": "a"}, 3), ({**OTHER, "deployment": "a"}, 30))
    problems: dict[str, None] = {}
    assert read_controllers(decode_vector(answer.encode()), problems).replicas == {}
    assert "about controllers of 'llm'" in next(iter(problems))
