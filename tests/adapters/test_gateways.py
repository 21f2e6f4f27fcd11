"""Mapping of gateway series to workloads."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.gateways import TrustedNamespaces, WorkloadLookup, read_gateways
from autoscaler.catalog.gateways import GATEWAY_NAMESPACES, GATEWAYS, metric_names
from autoscaler.core.model.fleet import Fleet, Workload, WorkloadRef
from tests.core import world

NAN = math.nan


def fleet(*workloads: Workload, ready: list[int] | None = None) -> Fleet:
    return replace(world.fleet(ready=ready or [0] * len(workloads)), workloads=workloads)


def workload(name: str, namespace: str = "llm", model: str = "", service: str = "", role: str = "") -> Workload:
    return Workload(WorkloadRef(namespace, name), model=model, service=service, role=role)


TWO = (workload("qwen", model="Qwen/Qwen3-8B"), workload("phi", model="microsoft/phi-4", service="phi-svc"))


def waiting(workloads: Fleet, name: str, *series: tuple[dict[str, str], float]) -> list[float]:
    return read_gateways(workloads, {name: series}, {})[0].tolist()


def arrivals(workloads: Fleet, name: str, *series: tuple[dict[str, str], float]) -> list[float]:
    return read_gateways(workloads, {}, {name: series})[1].tolist()


def same(found: list[float], expected: list[float]) -> bool:
    return bool(np.array_equal(found, expected, equal_nan=True))


# One test per row of the table.


@pytest.mark.parametrize("name", ["llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"])
def test_llm_d_queue_is_read_by_new_and_old_names(name: str) -> None:
    series = [
        ({"inference_pool": "phi-svc", "model_name": "phi", "fairness_id": "a", "priority": "0"}, 2.0),
        ({"inference_pool": "phi-svc", "model_name": "phi", "fairness_id": "b", "priority": "1"}, 3.0),
        ({"inference_pool": "other", "target_model_name": "Qwen/Qwen3-8B", "fairness_id": "", "priority": "0"}, 7.0),
    ]
    assert waiting(fleet(*TWO), name, *series) == [7.0, 5.0]


def test_both_llm_d_queue_names_are_not_added() -> None:
    series = [({"inference_pool": "qwen"}, 4.0)]
    both = {"llm_d_epp_flow_control_queue_size": series, "inference_extension_flow_control_queue_size": series}
    assert same(read_gateways(fleet(*TWO), both, {})[0].tolist(), [4.0, NAN])


@pytest.mark.parametrize("name", ["llm_d_epp_request_total", "inference_objective_request_total"])
def test_requests_at_llm_d_are_arrivals(name: str) -> None:
    assert same(arrivals(fleet(*TWO), name, ({"model_name": "microsoft/phi-4"}, 1.5)), [NAN, 1.5])


def test_keda_http_holds_requests_while_no_pod_serves() -> None:
    series = ({"route_name": "qwen", "route_namespace": "llm"}, 2.0)
    assert same(waiting(fleet(*TWO), "interceptor_request_concurrency", series), [2.0, NAN])
    # Once a pod serves, the gauge counts requests being answered, which the engine counts already: none is held.
    serving = fleet(*TWO, ready=[1, 0])
    assert same(waiting(serving, "interceptor_request_concurrency", series), [0.0, NAN])
    leaving = replace(serving, pod_terminating=np.array([True]))
    assert same(waiting(leaving, "interceptor_request_concurrency", series), [2.0, NAN])
    assert same(arrivals(fleet(*TWO), "interceptor_request_count_total", series), [2.0, NAN])


def test_production_stack_incoming_requests_are_arrivals() -> None:
    series = ({"model": "Qwen/Qwen3-8B"}, 0.5)
    assert same(arrivals(fleet(*TWO), "vllm:num_incoming_requests_total", series), [0.5, NAN])


def test_the_dynamo_frontend_counts_started_requests() -> None:
    started = [({"model": "Qwen/Qwen3-8B"}, 2.0)]
    done = [({"model": "Qwen/Qwen3-8B", "status": "success"}, 9.0)]
    both = {"dynamo_frontend_requests_started_total": started, "dynamo_frontend_requests_total": done}
    assert same(read_gateways(fleet(*TWO), {}, both)[1].tolist(), [2.0, NAN])
    assert same(arrivals(fleet(*TWO), "dynamo_frontend_requests_total", *done), [9.0, NAN])


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("qwen", {"kn_revision_name": "qwen-00003", "k8s_namespace_name": "llm"}),
        ("qwen-00003-deployment", {"kn_revision_name": "qwen-00003", "k8s_namespace_name": "llm"}),
        ("qwen-00003", {"kn_revision_name": "qwen-00003", "k8s_namespace_name": "llm"}),
    ],
)
def test_the_knative_activator_names_a_revision(name: str, labels: dict[str, str]) -> None:
    assert waiting(fleet(workload(name)), "kn_revision_request_queued", (labels, 3.0)) == [3.0]
    old = {"revision_name": "qwen-00003", "namespace_name": "llm"}
    assert arrivals(fleet(workload(name)), "activator_request_count", (old, 1.0)) == [1.0]


def test_istio_counts_requests_that_found_no_backend() -> None:
    labels = {"destination_workload": "unknown", "destination_workload_namespace": "unknown", "response_flags": "UH"}
    service = {"destination_service_name": "qwen", "destination_service_namespace": "llm"}
    series = [
        ({**labels, **service, "reporter": "source"}, 4.0),
        ({"destination_workload": "qwen", "destination_workload_namespace": "llm", "reporter": "source"}, 1.0),
        ({"destination_workload": "qwen", "destination_workload_namespace": "llm", "reporter": "destination"}, 1.0),
    ]
    assert same(arrivals(fleet(*TWO), "istio_requests_total", *series), [5.0, NAN])
    host = {"destination_service": "phi-svc.llm.svc.cluster.local", "reporter": "source"}
    assert same(arrivals(fleet(*TWO), "istio_requests_total", (host, 2.0)), [NAN, 2.0])


@pytest.mark.parametrize(
    "cluster",
    [
        "outbound|8000||qwen.llm.svc.cluster.local",
        "outbound|8000|v1|qwen.llm.svc",
        "httproute/llm/qwen/rule/0",
        "llm/qwen/8000/da39a3ee",
        "qwen",
    ],
)
def test_envoy_cluster_names_of_each_control_plane_are_read(cluster: str) -> None:
    labels = {"envoy_cluster_name": cluster}
    assert same(waiting(fleet(*TWO), "envoy_cluster_upstream_rq_pending_active", (labels, 2.0)), [2.0, NAN])
    rates = {
        "envoy_cluster_upstream_rq_total": [(labels, 1.0)],
        "envoy_cluster_upstream_cx_none_healthy": [(labels, 3.0)],  # those that found no backend are not in the first
    }
    assert same(read_gateways(fleet(*TWO), {}, rates)[1].tolist(), [4.0, NAN])


def test_an_empty_envoy_queue_is_unknown_at_zero() -> None:
    series = ({"envoy_cluster_name": "qwen"}, 0.0)
    assert same(waiting(fleet(*TWO, ready=[1, 0]), "envoy_cluster_upstream_rq_pending_active", series), [NAN, NAN])


def test_ingress_nginx_is_read_with_renamed_labels() -> None:
    plain = {"namespace": "llm", "service": "phi-svc", "ingress": "models"}
    moved = {"namespace": "ingress", "exported_namespace": "llm", "service": "metrics", "exported_service": "phi-svc"}
    for labels in (plain, moved):
        assert same(arrivals(fleet(*TWO), "nginx_ingress_controller_requests", (labels, 2.0)), [NAN, 2.0])


@pytest.mark.parametrize("reporter", ["source", "waypoint", "destination"])
def test_istio_requests_of_any_reporter_count(reporter: str) -> None:
    labels = {
        "reporter": reporter,
        "destination_service": "qwen.llm.svc.cluster.local",
        "destination_workload": "unknown",
    }
    assert same(arrivals(fleet(*TWO), "istio_requests_total", (labels, 2.0)), [2.0, NAN])


def test_istio_requests_of_several_reporters_count_once() -> None:
    service = {"destination_service_name": "qwen", "destination_service_namespace": "llm"}
    read_trusting = {"source": 0.0, "waypoint": 3.0, "destination": 2.0, "ztunnel": 9.0}
    series = [({**service, "reporter": reporter}, rate) for reporter, rate in read_trusting.items()]
    assert same(arrivals(fleet(*TWO), "istio_requests_total", *series), [3.0, NAN])


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("smg_router_requests_total", {"model": "Qwen/Qwen3-8B", "router_type": "http", "endpoint": "chat"}),
        ("sgl_router_requests_total", {"model_id": "Qwen/Qwen3-8B", "mode": "regular", "outcome": "error"}),
        ("litellm_proxy_total_requests_metric_total", {"requested_model": "Qwen/Qwen3-8B", "status_code": "503"}),
        ("gateway_request_model_success_total", {"model": "Qwen/Qwen3-8B", "gateway_pod": "aibrix-0"}),
        ("gateway_request_model_fail_total", {"model": "Qwen/Qwen3-8B", "status_code": "503"}),
        ("kong_http_requests_total", {"service": "llm.qwen.8000", "code": "503", "route": "r"}),
        ("kong_http_requests_total", {"service": "httproute.llm.qwen.0", "code": "200"}),
        ("kong_http_status", {"service": "qwen", "code": "200"}),
        ("gen_ai_server_request_duration_seconds_count", {"gen_ai_request_model": "Qwen/Qwen3-8B"}),
        (
            "gen_ai_server_request_duration_seconds_count",
            {"gen_ai_request_model": "unknown", "gen_ai_original_model": "Qwen/Qwen3-8B", "error_type": "_OTHER"},
        ),
    ],
)
def test_arrivals_are_known_when_a_router_names_the_workload(name: str, labels: dict[str, str]) -> None:
    assert same(arrivals(fleet(*TWO), name, (labels, 2.0)), [2.0, NAN])


def test_requests_of_aibrix_that_succeed_and_fail_are_added() -> None:
    rates = {f"gateway_request_model_{end}_total": [({"model": "Qwen/Qwen3-8B"}, 2.0)] for end in ("success", "fail")}
    assert same(read_gateways(fleet(*TWO), {}, rates)[1].tolist(), [4.0, NAN])


def test_every_row_of_the_table_is_covered_by_a_test_above() -> None:
    assert list(GATEWAYS) == [
        "llm-d-epp",
        "keda-http-add-on",
        "knative-activator",
        "production-stack",
        "dynamo",
        "istio",
        "envoy",
        "ingress-nginx",
        "sglang-router",
        "litellm",
        "aibrix",
        "kong",
        "envoy-ai-gateway",
    ]


# Joining.


def test_both_sides_of_a_pair_have_the_queue_of_their_service() -> None:
    sides = [workload("p", service="qwen", role="prefill"), workload("d", service="qwen", role="decode")]
    variants = [workload("qwen-mig", service="qwen"), workload("qwen-full", service="qwen")]
    series = ({"inference_pool": "qwen"}, 6.0)
    assert waiting(fleet(*sides, *variants), "llm_d_epp_flow_control_queue_size", series) == [6.0, 6.0, 3.0, 3.0]


def test_variants_of_one_service_share_its_queue_equally() -> None:
    variants = fleet(workload("qwen-mig", service="qwen"), workload("qwen-full", service="qwen"), workload("phi"))
    found = waiting(variants, "llm_d_epp_flow_control_queue_size", ({"inference_pool": "qwen"}, 6.0))
    assert same(found, [3.0, 3.0, NAN])


def test_one_model_in_two_namespaces_is_matched_by_namespace() -> None:
    both = fleet(workload("a", "dev", model="m"), workload("a", "prod", model="m"))
    name = "vllm:num_incoming_requests_total"
    assert same(arrivals(both, name, ({"model": "m", "namespace": "prod"}, 2.0)), [NAN, 2.0])


def test_each_namespace_gets_the_whole_value_when_none_is_named() -> None:
    members = fleet(
        workload("a", "prod", model="m", service="m"),
        workload("b", "prod", model="m", service="m"),
        workload("c", "dev", model="m"),
    )
    name = "vllm:num_incoming_requests_total"
    assert arrivals(members, name, ({"model": "m", "namespace": "gateways"}, 2.0)) == [1.0, 1.0, 2.0]


def test_a_name_in_another_namespace_is_another_workload() -> None:
    series = ({"route_name": "qwen", "route_namespace": "elsewhere"}, 2.0)
    assert same(waiting(fleet(*TWO), "interceptor_request_concurrency", series), [NAN, NAN])
    assert same(waiting(fleet(*TWO), "interceptor_request_concurrency", ({"route_name": "qwen"}, 2.0)), [NAN, NAN])


def test_an_empty_model_finds_no_workload() -> None:
    nameless = fleet(workload("a"))
    assert same(arrivals(nameless, "vllm:num_incoming_requests_total", ({"model": ""}, 2.0)), [NAN])
    assert same(arrivals(nameless, "vllm:num_incoming_requests_total", ({}, 2.0)), [NAN])


def test_several_gateways_in_front_of_one_workload_are_added() -> None:
    rates = {
        "vllm:num_incoming_requests_total": [({"model": "Qwen/Qwen3-8B"}, 1.0)],
        "nginx_ingress_controller_requests": [({"namespace": "llm", "service": "qwen"}, 2.0)],
    }
    assert same(read_gateways(fleet(*TWO), {}, rates)[1].tolist(), [3.0, NAN])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_value_that_is_no_count_is_left_out(bad: float) -> None:
    assert same(
        waiting(fleet(*TWO), "llm_d_epp_flow_control_queue_size", ({"inference_pool": "qwen"}, bad)), [NAN, NAN]
    )


@given(
    st.dictionaries(st.sampled_from(sorted({f for g in GATEWAYS.values() for f in g.labels()})), st.text(max_size=80))
)
def test_hostile_labels_raise_no_error(labels: dict[str, str]) -> None:
    names = WorkloadLookup(fleet(*TWO))
    for gateway in GATEWAYS.values():
        assert set(names.rows(gateway.keys, labels)) <= {0, 1}


def test_a_label_value_of_a_megabyte_is_matched_quickly() -> None:
    labels = {"envoy_cluster_name": "outbound|1|" + "a-" * 500_000 + ".svc"}
    assert WorkloadLookup(fleet(*TWO)).rows(GATEWAYS["envoy"].keys, labels) == ()


def test_a_query_keeps_every_label_that_a_row_reads() -> None:
    assert GATEWAYS["istio"].labels()[:2] == ("destination_workload", "exported_destination_workload")
    assert "reporter" in GATEWAYS["istio"].labels()


def test_no_gateway_metric_is_an_engine_queue() -> None:
    assert "vllm:num_requests_waiting" not in metric_names()


# Trusted namespaces.

QUEUE = "llm_d_epp_flow_control_queue_size"
NEIGHBOURS = fleet(
    workload("decode", "victim", model="m"),
    workload("chat", "attacker"),  # named like the neighbour's pool
    workload("other", "attacker", service="chat"),  # annotated like it
)


def read_trusting(series: tuple[dict[str, str], float], *trusted_too: str) -> tuple[list[float], str]:
    trusted = TrustedNamespaces((*GATEWAY_NAMESPACES, *trusted_too))
    return read_gateways(NEIGHBOURS, {QUEUE: [series]}, {}, trusted)[0].tolist(), trusted.problem()


def test_a_neighbour_takes_nothing_when_it_is_named_like_a_pool() -> None:
    series = {"inference_pool": "chat", "model_name": "m", "namespace": "victim", "pod": "epp-0"}
    found, problem = read_trusting((series, 6.0))
    assert same(found, [6.0, NAN, NAN])
    assert problem == ""


def test_an_untrusted_gateway_affects_no_other_namespace() -> None:
    found, problem = read_trusting(({"model_name": "m", "namespace": "attacker", "pod": "x"}, 500.0))
    assert same(found, [NAN, NAN, NAN])
    assert problem == (
        "series from namespace attacker are about workloads of other namespaces, such as victim/decode, and do not "
        "count for them; --gateway-namespace attacker lets them"
    )


@pytest.mark.parametrize("home", ["istio-system", "kgateway-system", "shared"])
def test_namespaces_are_resolved_apart_for_trusted_gateways(home: str) -> None:
    found, problem = read_trusting(({"inference_pool": "chat", "model_name": "m", "namespace": home}, 6.0), "shared")
    assert same(found, [6.0, 3.0, 3.0])
    assert problem == ""


def test_all_namespaces_are_trusted_when_configured() -> None:
    assert same(read_trusting(({"model_name": "m", "namespace": "attacker"}, 5.0), "*")[0], [5.0, NAN, NAN])


def test_a_series_of_a_listed_target_is_trusted() -> None:
    assert same(read_trusting(({"model_name": "m", "job": "epp"}, 5.0))[0], [5.0, NAN, NAN])


@pytest.mark.parametrize("label", ["kubernetes_namespace", "k8s_namespace_name"])
def test_a_target_cannot_set_its_namespace(label: str) -> None:
    for spoofed in ("victim", "istio-system"):
        assert same(
            read_trusting(({"model_name": "m", "namespace": "attacker", label: spoofed}, 5.0))[0], [NAN, NAN, NAN]
        )
    moved = {"model_name": "m", "namespace": "attacker", "exported_namespace": "victim"}
    assert same(read_trusting((moved, 5.0))[0], [NAN, NAN, NAN])


def test_a_namespace_key_counts_in_that_namespace_if_trusted() -> None:
    members = fleet(workload("chat", "victim"), workload("chat", "attacker"))
    labels = {"destination_workload": "chat", "destination_workload_namespace": "victim", "reporter": "source"}
    rates = {"istio_requests_total": [({**labels, "namespace": home}, 2.0) for home in ("istio-ingress", "attacker")]}
    trusted = TrustedNamespaces()
    assert same(read_gateways(members, {}, rates, trusted)[1].tolist(), [2.0, NAN])
    assert "namespace attacker" in trusted.problem()


def test_many_untrusted_namespaces_make_one_line() -> None:
    trusted = TrustedNamespaces()
    for number in range(50):
        trusted.record_ignored(frozenset({f"n{number:02}"}), "a/b")
    assert trusted.problem().startswith("series from namespace n00, n01, n02 and 47 more are about")
