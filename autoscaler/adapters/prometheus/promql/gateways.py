"""Queries for requests held by and arriving at gateways, by the table of gateways."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.adapters.prometheus.promql.expressions import by, duration, either
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, METRIC, PLACE
from autoscaler.catalog.gateways import GATEWAYS, HOME_LABELS, Gateway
from autoscaler.catalog.series import names_of

_REPLICA_LABELS = ("prometheus", "prometheus_replica", "replica", "receive_replica", "thanos_replica", "ha_replica")
_JOB_LABELS = ("job", "endpoint", "container", "instance")  # of who scraped


def front_waiting_query() -> str:
    """Return the query for the requests that all gateways hold; label `metric` says which gauge a series is."""
    return either(_summed(gateway, {name: name for name in names_of(gateway.waiting)}) for gateway in _WAITING)


def front_arrivals_query(window_s: float) -> str:
    """Return the query for the requests per second that arrive at all gateways; label `metric` as above."""
    window = duration(window_s)
    return either(
        _summed(gateway, {name: f"rate({name}[{window}])" for name in names_of(gateway.arrivals)})
        for gateway in _ARRIVALS
    )


_WAITING = tuple(gateway for gateway in GATEWAYS.values() if gateway.waiting)
_ARRIVALS = tuple(gateway for gateway in GATEWAYS.values() if gateway.arrivals)


def _summed(gateway: Gateway, readings: Mapping[str, str]) -> str:
    """Compile the sum over the pods of a gateway, for each metric; a pod counts once, whoever scrapes it how often.

    readings: by metric.
    """
    labels = (METRIC, *gateway.labels(), *HOME_LABELS, "exported_namespace", *CLUSTER_LABELS)
    series = either(f'label_replace({reading}, "{METRIC}", "{name}", "", "")' for name, reading in readings.items())
    # What is scraped in no pod differs by its address; of a pod the address is whatever a job calls it.
    parted = f'label_replace({series}, "{PLACE}", "$1", "instance", "(.+)")'
    parted = f'label_replace({parted}, "{PLACE}", "", "pod", ".+")'
    return f"sum {by(*labels)} (max without ({', '.join((*_REPLICA_LABELS, *_JOB_LABELS))}) ({parted}))"
