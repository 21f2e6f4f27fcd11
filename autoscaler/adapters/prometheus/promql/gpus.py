"""Queries for the GPUs that pods hold, by the table of DCGM metrics."""

from __future__ import annotations

from itertools import chain

from autoscaler.adapters.prometheus.promql.engines import PodQuery
from autoscaler.adapters.prometheus.promql.expressions import by, duration, either
from autoscaler.adapters.prometheus.promql.labels import PLACE, Identity
from autoscaler.catalog import gpus
from autoscaler.catalog.series import POD_LABELS, Series

GPU_COLUMNS = frozenset({"fb_usage", *gpus.ACTIVITY})
GPU_WINDOW_S = 180.0  # DCGM collects each 30 s, so a short reply may leave a trace in one sample only


def gpu_queries(identity: Identity) -> tuple[PodQuery, ...]:
    """Return the queries that read the GPUs of all pods."""
    pod = by(*identity)
    device = by(*identity, *_DEVICE)
    used, free = (f"max {device} ({_device(_believable(name, name))})" for name in (gpus.FB_USED, gpus.FB_FREE))
    window = duration(GPU_WINDOW_S)

    def ratio(row: Series, reading: str) -> str:
        return f"clamp_max(max {pod} ({_believable(row.name, reading)}), 1)"

    usage = [f"max {pod} ({used} / ({used} + {free}))", *(ratio(row, row.name) for row in gpus.FB_RATIO)]
    return (
        PodQuery("gpu_time_s", either(f"max {pod} (timestamp({name}))" for name in GPU_PRESENCE), slow=True),
        PodQuery("fb_usage", either(usage), slow=True),
        *(
            PodQuery(column, either(ratio(row, f"max_over_time({row.name}[{window}])") for row in rows), slow=True)
            for column, rows in gpus.ACTIVITY.items()
        ),
    )


def devices_query() -> str:
    """Return the query that counts the GPUs, or MIG instances, that each pod holds, for each way to name the pod.

    A device that two exporters report has one UUID, whatever they call its host.
    """
    pool = ("modelName", "GPU_I_PROFILE")
    pod = tuple(dict.fromkeys((*chain.from_iterable(POD_LABELS), *pool)))
    whole = (f"max {by(*pod, *_DEVICE)} ({_device(name)})" for name in GPU_PRESENCE)
    return f"count {by(*pod)} ({either(whole)})"


def _device(name: str) -> str:
    """Return the series of a metric of GPUs with the UUID where newer exporters write it, and a place only without."""
    moved = f'label_replace({name}, "UUID", "$1", "uuid", "(.+)")'
    return f'label_replace(label_join({moved}, "{PLACE}", "/", {_PLACES}), "{PLACE}", "", "UUID", ".+")'


_PLACES = ", ".join(f'"{label}"' for label in gpus.PLACE_LABELS)
_DEVICE = ("UUID", *gpus.SLICE_LABELS, PLACE)
# Whose presence shows that a device was read.
GPU_PRESENCE = (gpus.FB_USED, *(row.name for row in (*gpus.FB_RATIO, *gpus.ACTIVITY["tensor_active"])))


def _believable(name: str, reading: str) -> str:
    """Leave out the series of a GPU metric whose reading no GPU can show."""
    return f"{reading} >= 0 <= {gpus.most(name):g}"
