"""Whose word counts about which workloads: a gateway speaks for its own namespace, and only some speak for others.

Any pod that is scraped can claim to be the gateway of a neighbour. So a series counts for workloads of the namespace
that it was scraped in; for others only where the operator believes that namespace.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.catalog.series import Labels

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
ALL = "*"  # stands for every namespace

# Labels in which a scrape writes the namespace of its target. A target can write those that its scrape does not, so
# where they differ all of them must be believed. Moved labels (`exported_namespace`) are the target's own words.
HOME_LABELS = ("namespace", "kubernetes_namespace", "k8s_namespace_name")

NAMED = 3  # namespaces named in one line


def scraped_in(labels: Labels) -> frozenset[str]:
    """Return the namespaces that a series may come from; none: its target is of the operator's own list."""
    return frozenset(labels[label] for label in HOME_LABELS if labels.get(label))


class Reporters:
    """The namespaces whose gateways are believed everywhere, and what came from others about workloads not theirs."""

    def __init__(self, believed: Iterable[str] = GATEWAY_NAMESPACES) -> None:
        self._believed = frozenset(believed)
        self._refused: dict[str, set[str]] = {}

    def everywhere(self, homes: frozenset[str]) -> bool:
        """Say whether what was scraped in these namespaces counts for all workloads."""
        return ALL in self._believed or homes <= self._believed

    def refuse(self, homes: frozenset[str], workload: str) -> None:
        """Remember that a series did not count for a workload."""
        self._refused.setdefault(" and ".join(sorted(homes)), set()).add(workload)

    def problem(self) -> str:
        """Say what did not count, in one line; "": everything did."""
        if not self._refused:
            return ""
        homes = sorted(self._refused)
        more = f" and {len(homes) - NAMED} more" if len(homes) > NAMED else ""
        about = min(self._refused[homes[0]])
        return (
            f"series from namespace {', '.join(homes[:NAMED])}{more} are about workloads of other namespaces, such as "
            f"{about}, and do not count for them; --gateway-namespace {homes[0].partition(' ')[0]} lets them"
        )
