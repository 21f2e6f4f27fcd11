"""What is seen in front of the workloads: gateways and routers, their metrics, and which workload a series is about.

A gateway is alive while a workload has no pod, so its metrics are what wakes a workload from zero. One row per product;
the scraper and the Prometheus adapter both read by these rows and both use `read_front`, so a request held in a gateway
means the same wherever it was seen. Labels are untrusted: what they name is looked up, and a hostile one finds nothing.

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
    """One way in which the labels of a series name a workload: by its model, or by a name and perhaps a namespace."""

    model: str = ""  # label with the model's name
    name: str = ""  # label with the name of the workload or of its service
    namespace: str = ""  # label with their namespace; "": the name alone must do
    pattern: re.Pattern[str] | None = None  # takes `name` and perhaps `namespace` out of the value of the label `name`
    suffix: str = ""  # what the workload's name has behind the label's

    def labels(self) -> tuple[str, ...]:
        """Return the labels this key looks at."""
        return tuple(label for label in (self.model, self.name, self.namespace) if label)


@dataclass(frozen=True)
class Gateway:
    """How one product is read. Both readings are alternatives in order; `keys` are tried in order."""

    name: str
    keys: tuple[Key, ...]
    waiting: Readings = ()  # gauges: requests held
    arrivals: Readings = ()  # counters: requests that arrived, whether or not anybody could serve them
    waiting_includes_served: bool = False  # the gauge is the queue while no pod serves; while one does, nothing is held
    same_arrivals: bool = False  # the alternatives of `arrivals` count the same requests, some perhaps in part
    refuses_unserved: bool = False  # holds requests for pods that serve, and none without: then its 0 says nothing

    def labels(self) -> tuple[str, ...]:
        """Return every label a query must keep for this row: of keys and filters, each with its `exported_` form."""
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
            # Emits old and new names beside each other. Needs the feature gate flowControl to hold requests.
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
            # The router's vllm:num_requests_* are the engines' own gauges again; only the counter is its own.
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
            # The client's side counts also what found no healthy upstream (flags UH, NR); so does a waypoint, the
            # reporter of ambient meshes. One request may be told by each of them, and by the server's side.
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
            # A request that finds no healthy endpoint gets a 503; it is in none_healthy and not in upstream_rq_total.
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
            # Counts a request before a worker is chosen. Its gauges count requests that workers have already.
            Gateway(
                "sglang-router",
                keys=(Key(model="model"), Key(model="model_id")),
                arrivals=first("smg_router_requests_total", "sgl_router_requests_total"),
            ),
            # Counts a request when it has ended, also one that failed. Its gauge of requests names no model.
            Gateway(
                "litellm",
                keys=(Key(model="requested_model"),),
                arrivals=counter("litellm_proxy_total_requests_metric"),
            ),
            # Its total names no model in some versions; these two do.
            Gateway(
                "aibrix",
                keys=(Key(model="model"),),
                arrivals=(
                    Series("gateway_request_model_success_total", plus=first("gateway_request_model_fail_total")),
                ),
            ),
            # Before 3.0 the metric was called by the status code. A request that finds no upstream counts, as a 503.
            Gateway(
                "kong",
                keys=tuple(Key(name="service", pattern=pattern) for pattern in _KONG_SERVICES),
                arrivals=first("kong_http_requests_total", "kong_http_status"),
            ),
            # Measured when an answer ends. Requests that find no backend are told by Envoy itself.
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


# Where gateways for a whole cluster are usually installed, by the documentation of each.
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

# Labels in which a scrape writes the namespace of its target. A target can write those that its scrape does not, so
# where they differ all of them must be believed. Moved labels (`exported_namespace`) are the target's own words.
HOME_LABELS = ("namespace", "kubernetes_namespace", "k8s_namespace_name")
