"""Queries for the GPUs that pods hold, built from the table of DCGM metrics."""

from __future__ import annotations

from itertools import chain

from autoscaler.adapters.prometheus.promql.engines import SampleQuery
from autoscaler.adapters.prometheus.promql.expressions import by, duration, keep_all, or_join
from autoscaler.adapters.prometheus.promql.labels import PLACE, Identity
from autoscaler.catalog import gpus
from autoscaler.catalog.series import POD_LABELS, Labels, Series
from autoscaler.core.model.fleet import Pool

GPU_COLUMNS = frozenset({"fb_usage", *gpus.COLUMNS})
MAX_DEVICES = 1024  # per pod; no node has more
GPU_WINDOW_S = 180.0  # DCGM collects every 30 s, so a short request may show in one sample only


def gpu_queries(identity: Identity) -> tuple[SampleQuery, ...]:
    """Return the queries that read the GPUs of all pods."""
    pod = by(*identity)
    device = by(*identity, *_DEVICE)
    used, free = (f"max {device} ({_device(_drop_impossible(name, name))})" for name in (gpus.FB_USED, gpus.FB_FREE))
    window = duration(GPU_WINDOW_S)

    def ratio(row: Series, reading: str) -> str:
        return f"clamp_max(max {pod} ({_drop_impossible(row.name, reading)}), 1)"

    def peak(name: str) -> str:
        return _drop_impossible(name, f"max_over_time({name}[{window}])")

    def of_whole_gpus(name: str, reading: str) -> str:
        instances = or_join(f'{each}{{{label}!=""}}' for each in (gpus.FB_USED, name) for label in gpus.MIG_LABELS)
        return f"(max {pod} ({reading}) unless max {pod} ({instances}))"

    usage = [f"max {pod} ({used} / ({used} + {free}))", *(ratio(row, row.name) for row in gpus.FB_RATIO)]
    return (
        SampleQuery("gpu_time_s", or_join(f"max {pod} (timestamp({name}))" for name in _READ), slow=True),
        SampleQuery("fb_usage", or_join(usage), slow=True),
        *(
            SampleQuery(column, or_join(ratio(row, f"max_over_time({row.name}[{window}])") for row in rows), slow=True)
            for column, rows in gpus.ACTIVITY.items()
        ),
        SampleQuery("gpu_util", or_join(of_whole_gpus(row.name, peak(row.name)) for row in gpus.GPU_UTIL), slow=True),
        *(
            SampleQuery(column, of_whole_gpus(names[0], keep_all([peak(name) for name in names])), slow=True)
            for column, names in gpus.LINKS.items()
        ),
    )


POOL = ("modelName", "GPU_I_PROFILE")
"""Labels that name the pool of a device."""


def devices_query(apart: Identity = ()) -> str:
    """Return the query for the number of GPUs, or MIG instances, of each pod, for each pair of labels that names it.

    apart: further labels that tell pods apart, such as those of clusters.
    A device that two exporters report has one UUID, even if they name its host differently.
    """
    pod = tuple(dict.fromkeys((*chain.from_iterable(POD_LABELS), *apart, *POOL)))
    whole = (f"max {by(*pod, *_DEVICE)} ({_device(name)})" for name in GPU_PRESENCE)
    return f"count {by(*pod)} ({or_join(whole)})"


def pool_of(labels: Labels) -> Pool:
    """Return the pool of a series of the answer to `devices_query`."""
    profile = labels.get("GPU_I_PROFILE", "")
    resource = f"nvidia.com/mig-{profile}" if profile else "nvidia.com/gpu"
    return Pool(resource, labels.get("modelName", "").replace(" ", "-"))  # as GPU feature discovery writes it


def _device(name: str) -> str:
    """Return an expression with the label `UUID`, or with the label `place` for devices without a UUID."""
    moved = f'label_replace({name}, "UUID", "$1", "uuid", "(.+)")'
    return f'label_replace(label_join({moved}, "{PLACE}", "/", {_PLACES}), "{PLACE}", "", "UUID", ".+")'


_PLACES = ", ".join(f'"{label}"' for label in gpus.PLACE_LABELS)
_DEVICE = ("UUID", *gpus.SLICE_LABELS, PLACE)
# Metrics that show that a device was read.
GPU_PRESENCE = (gpus.FB_USED, *(row.name for row in (*gpus.FB_RATIO, *gpus.ACTIVITY["tensor_active"])))
_READ = (*GPU_PRESENCE, *(row.name for row in gpus.GPU_UTIL))


def _drop_impossible(name: str, reading: str) -> str:
    """Drop values that no GPU can have."""
    return f"{reading} >= 0 <= {gpus.max_value(name):g}"
