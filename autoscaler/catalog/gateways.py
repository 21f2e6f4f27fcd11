"""Gateways and routers in front of workloads: the names of their metrics, and how their labels name a workload.

A gateway runs while a workload has no pod, so its metrics wake a workload from zero. There is one row per product.
`adapters.gateways` maps the series to workloads.

Sources: llm-d-router `docs/metrics.md` and gateway-api-inference-extension v1.5.0, KEDA http-add-on v0.15.0, vLLM
production-stack 0.1.12, Dynamo 1.6.1, Knative serving v0.50.0; Istio, Envoy and ingress-nginx by their standard names;
SGLang model gateway `src/observability/metrics.rs`, AIBrix `pkg/metrics/gateway_metrics.go`, LiteLLM
`litellm/types/integrations/prometheus.py`, Kong `kong/plugins/prometheus/exporter.lua`, Envoy AI Gateway
`internal/metrics/metrics_impl.go`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from autoscaler.catalog.series import MOVED, Readings, Series, counter, first


@dataclass(frozen=True)
class Key:
    """Labels of a series that name a workload: its model, or its name and perhaps its namespace."""

    model: str = ""  # label with the model's name
    name: str = ""  # label with the name of the workload or of its service
    namespace: str = ""  # label with their namespace; "" if there is none
    pattern: re.Pattern[str] | None = None  # extracts `name` and perhaps `namespace` from the label `name`
    suffix: str = ""  # to append to the label for the name of the workload

    def labels(self) -> tuple[str, ...]:
        """Return the labels that this key reads."""
        return tuple(label for label in (self.model, self.name, self.namespace) if label)


@dataclass(frozen=True)
class Gateway:
    """How to read one product. `waiting` and `arrivals` are alternatives in order; so are `keys`."""

    name: str
    keys: tuple[Key, ...]
    waiting: Readings = ()  # gauges: requests held
    arrivals: Readings = ()  # counters: requests that arrived, whether or not a pod could serve them
    waiting_includes_served: bool = False  # the gauge is a queue only while no pod serves
    same_arrivals: bool = False  # the alternatives of `arrivals` count the same requests, some only a part
    refuses_unserved: bool = False  # it holds requests only while pods serve, so its 0 means nothing

    def labels(self) -> tuple[str, ...]:
        """Return the labels that a query must keep for this row, each with its `exported_` form."""
        rows = (part for row in (*self.waiting, *self.arrivals) for part in row.parts())
        plain = [label for key in self.keys for label in key.labels()] + [
            label for row in rows for label, _ in row.where
        ]
        return tuple(dict.fromkeys(form for label in plain for form in (label, f"{MOVED}{label}")))


_DNS = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_CLUSTERS = (
    # Istio: outbound|8000|subset|service.namespace.svc.cluster.local
    re.compile(rf"(?:outbound|inbound)\|\d*\|[^|]*\|(?P<name>{_DNS})\.(?P<namespace>{_DNS})\.svc(?:\..*)?"),
    # Envoy Gateway: httproute/namespace/route/rule/0
    re.compile(rf"(?:httproute|grpcroute)/(?P<namespace>{_DNS})/(?P<name>{_DNS})(?:/.*)?"),
    # Contour and others: namespace/service or namespace/service/port/hash
    re.compile(rf"(?P<namespace>{_DNS})/(?P<name>{_DNS})(?:/.*)?"),
    re.compile(rf"(?P<name>{_DNS})"),
)
# Kong's ingress controller names services namespace.service.port, and backends of routes httproute.namespace.name.n.
_KONG_SERVICES = (
    re.compile(rf"(?:httproute|grpcroute)\.(?P<namespace>{_DNS})\.(?P<name>{_DNS})\.\d+(?:\..*)?"),
    re.compile(rf"(?P<namespace>{_DNS})\.(?P<name>{_DNS})\.[^.]+"),
    re.compile(rf"(?P<name>{_DNS})"),
)
_REVISION = re.compile(rf"(?P<name>{_DNS})-\d{{5}}")

_EPP_KEYS = (Key(name="inference_pool"), Key(model="target_model_name"), Key(model="model_name"))

GATEWAYS: Mapping[str, Gateway] = MappingProxyType(
    {
        row.name: row
        for row in (
            # Exposes old and new names together. Holds requests only with the feature gate flowControl.
            Gateway(
                "llm-d-epp",
                keys=_EPP_KEYS,
                waiting=first("llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"),
                arrivals=counter("llm_d_epp_request") + counter("inference_objective_request"),
            ),
            Gateway(
                "keda-http-add-on",
                keys=(Key(name="route_name", namespace="route_namespace"),),
                waiting=first("interceptor_request_concurrency"),
                waiting_includes_served=True,
                arrivals=counter("interceptor_request_count"),
            ),
            Gateway(
                "knative-activator",
                keys=tuple(
                    key
                    for name, namespace in (
                        ("kn_revision_name", "k8s_namespace_name"),
                        ("revision_name", "namespace_name"),
                    )
                    for key in (
                        Key(name=name, namespace=namespace, suffix="-deployment"),
                        Key(name=name, namespace=namespace),
                        Key(name=name, namespace=namespace, pattern=_REVISION),
                    )
                ),
                waiting=first("kn_revision_request_queued"),
                arrivals=counter("activator_request_count"),
            ),
            # The router repeats the engines' vllm:num_requests_*; only this counter is its own.
            Gateway(
                "production-stack",
                keys=(Key(model="model"),),
                arrivals=counter("vllm:num_incoming_requests"),
            ),
            Gateway(
                "dynamo",
                keys=(Key(model="model"),),
                arrivals=counter("dynamo_frontend_requests_started") + counter("dynamo_frontend_requests"),
            ),
            # The client side also counts requests without a healthy upstream (flags UH, NR). So does a waypoint, the
            # reporter of ambient meshes. Each of them, and the server side, may report the same request.
            Gateway(
                "istio",
                keys=(
                    Key(name="destination_workload", namespace="destination_workload_namespace"),
                    Key(name="destination_service_name", namespace="destination_service_namespace"),
                    Key(
                        name="destination_service",
                        pattern=re.compile(rf"(?P<name>{_DNS})\.(?P<namespace>{_DNS})\.svc(?:\..*)?"),
                    ),
                ),
                arrivals=tuple(
                    Series("istio_requests_total", where=(("reporter", (reporter,)),))
                    for reporter in ("source", "waypoint", "destination")
                ),
                same_arrivals=True,
            ),
            # A request without a healthy endpoint gets a 503; none_healthy counts it, upstream_rq_total does not.
            Gateway(
                "envoy",
                keys=tuple(Key(name="envoy_cluster_name", pattern=pattern) for pattern in _CLUSTERS),
                waiting=first("envoy_cluster_upstream_rq_pending_active"),
                refuses_unserved=True,
                arrivals=(
                    Series("envoy_cluster_upstream_rq_total", plus=first("envoy_cluster_upstream_cx_none_healthy")),
                ),
            ),
            Gateway(
                "ingress-nginx",
                keys=(Key(name="service", namespace="namespace"), Key(name="ingress", namespace="namespace")),
                arrivals=first("nginx_ingress_controller_requests"),
            ),
            # Counts a request before a worker is chosen. Its gauges count requests that are at workers.
            Gateway(
                "sglang-router",
                keys=(Key(model="model"), Key(model="model_id")),
                arrivals=first("smg_router_requests_total", "sgl_router_requests_total"),
            ),
            # Counts a request when it ends, also if it failed. Its gauge of requests names no model.
            Gateway(
                "litellm",
                keys=(Key(model="requested_model"),),
                arrivals=counter("litellm_proxy_total_requests_metric"),
            ),
            # In some versions its total names no model; these two do.
            Gateway(
                "aibrix",
                keys=(Key(model="model"),),
                arrivals=(
                    Series("gateway_request_model_success_total", plus=first("gateway_request_model_fail_total")),
                ),
            ),
            # Before 3.0 the metric was kong_http_status. A request without an upstream counts as a 503.
            Gateway(
                "kong",
                keys=tuple(Key(name="service", pattern=pattern) for pattern in _KONG_SERVICES),
                arrivals=first("kong_http_requests_total", "kong_http_status"),
            ),
            # Counted when a response ends. Envoy itself reports requests without a backend.
            Gateway(
                "envoy-ai-gateway",
                keys=(Key(model="gen_ai_request_model"), Key(model="gen_ai_original_model")),
                arrivals=first("gen_ai_server_request_duration_seconds_count"),
            ),
        )
    }
)


def metric_names() -> frozenset[str]:
    """Return the name of every metric of the table."""
    return frozenset(
        part.name
        for gateway in GATEWAYS.values()
        for row in (*gateway.waiting, *gateway.arrivals)
        for part in row.parts()
    )


# Namespaces in which gateways for a whole cluster are usually installed, by the documentation of each.
GATEWAY_NAMESPACES: tuple[str, ...] = (
    "agentgateway-system",
    "aibrix-system",
    "contour",
    "envoy-ai-gateway-system",
    "envoy-gateway-system",
    "gateway-system",
    "gloo-system",
    "ingress-nginx",
    "istio-ingress",
    "istio-system",
    "keda",
    "kgateway-system",
    "knative-serving",
    "kong",
    "kong-system",
    "kourier-system",
    "kube-system",
    "openshift-ingress",
    "projectcontour",
)

# Labels in which a scrape writes the namespace of its target. A target can set those that its scrape does not, so all
# of them must be trusted. Moved labels (`exported_namespace`) are set by the target and do not count.
NAMESPACE_LABELS = ("namespace", "kubernetes_namespace", "k8s_namespace_name")
