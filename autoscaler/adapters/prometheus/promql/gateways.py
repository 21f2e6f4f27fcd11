"""Queries for requests that wait or arrive at gateways, built from the table of gateways."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.adapters.prometheus.promql.expressions import by, duration, or_join
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, METRIC, PLACE
from autoscaler.catalog.gateways import GATEWAYS, NAMESPACE_LABELS, Gateway
from autoscaler.catalog.series import names_of

_REPLICA_LABELS = ("prometheus", "prometheus_replica", "replica", "receive_replica", "thanos_replica", "ha_replica")
MAX_SPREAD_S = 60.0  # of ages of one gateway's series: two scrapes of 30 s, which is how far they may be apart
LATELY_S = 60.0  # a request counts as arriving for this long: a sample may be stored half a minute late
_JOB_LABELS = ("job", "endpoint", "container", "instance")  # they name the scrape


def gateway_queue_query() -> str:
    """Return the query for the requests held by all gateways. The label `metric` names the gauge of a series."""
    return or_join(_summed(gateway, {name: _fresh(name) for name in names_of(gateway.waiting)}) for gateway in _WAITING)


def gateway_arrivals_query() -> str:
    """Return the query for the requests per second that arrive at all gateways, with the label `metric`."""
    return or_join(
        _summed(gateway, {name: _lately_per_s(name) for name in names_of(gateway.arrivals)}) for gateway in _ARRIVALS
    )


_WAITING = tuple(gateway for gateway in GATEWAYS.values() if gateway.waiting)
_ARRIVALS = tuple(gateway for gateway in GATEWAYS.values() if gateway.arrivals)


def _lately_per_s(name: str) -> str:
    """Return the growth of a counter per second in the last `LATELY_S`.

    A range in which slow scrapes leave two samples would show a last request for minutes, so they are compared instead.
    """
    window = duration(LATELY_S)
    return f"(rate({name}[{window}]) or ({name} - {name} offset {window} >= 0) / {LATELY_S:g})"


def _fresh(name: str) -> str:
    """Return the series of a gauge without those that are much older than others of the same gateway.

    Nothing may mark the end of a replica that is gone, and a Prometheus replica may lag.
    """
    gateway = ("namespace", "exported_namespace", "job")
    oldest = f"max {by(*gateway)} (timestamp({name})) - {MAX_SPREAD_S:g}"
    return f"({name} unless timestamp({name}) < on ({', '.join(gateway)}) group_left () ({oldest}))"


def _summed(gateway: Gateway, readings: Mapping[str, str]) -> str:
    """Return the sum over the pods of a gateway for each metric. A pod that several jobs scrape counts once.

    readings: expression by metric name.
    """
    labels = (METRIC, *gateway.labels(), *NAMESPACE_LABELS, "exported_namespace", *CLUSTER_LABELS)
    series = or_join(f'label_replace({reading}, "{METRIC}", "{name}", "", "")' for name, reading in readings.items())
    # The address distinguishes targets outside of pods. Jobs may give one pod different addresses.
    placed = f'label_replace({series}, "{PLACE}", "$1", "instance", "(.+)")'
    placed = f'label_replace({placed}, "{PLACE}", "", "pod", ".+")'
    return f"sum {by(*labels)} (max without ({', '.join((*_REPLICA_LABELS, *_JOB_LABELS))}) ({placed}))"
