"""Events in which the kubelet says for how long it pulled the images of a pod.

Source: `pkg/kubelet/images/image_manager.go`. A pod has one event for each of its containers. An event repeats when its
container restarts, so durations are kept by the name of the event.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import pod_objects
from autoscaler.adapters.kubernetes.api.reflector import Resource
from autoscaler.adapters.kubernetes.pods.status import Key, last_seen
from autoscaler.core.model.phases import SKEW_S

PULLING, PULLED = "Pulling", "Pulled"
MAX_PODS = 20_000  # the last ones that events name
MAX_IMAGES = 16  # of one pod
_DURATION = r"((?:[0-9.]{1,12}(?:ms|us|µs|ns|h|m|s)){1,6})"
_TOOK = re.compile(rf"^Successfully pulled image .{{1,512}} in {_DURATION}(?: \({_DURATION} including waiting\))?")
_PRESENT = re.compile(r"^Container image .* already present on machine")
_PART = re.compile(r"([0-9.]{1,12})(ms|us|µs|ns|h|m|s)")
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
LONGEST_S = 86_400.0


class _Pulls(NamedTuple):
    wall_s: float  # of the last event
    took_s: dict[str, float]  # by event
    pulling_wall_s: float  # last time at which a pull began


class ImagePulls:
    """The last words of the kubelet about the images of each pod."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        """`changed` is called with each pod about which there is something new."""
        self._changed = changed
        self._of: dict[Key, _Pulls] = {}  # the latest last

    def resources(self) -> list[Resource[pod_objects.PodEvent]]:
        """Return the events to watch. Without permission, the time of pulls counts as that of the container."""
        kind = "involvedObject.kind=Pod"
        return [
            Resource(
                "/api/v1",
                "events",
                pod_objects.PodEvent,
                optional=True,
                auxiliary=True,
                selector=f"{kind},reason={reason}",
            )
            for reason in (PULLING, PULLED)
        ]

    def put(self, seen: pod_objects.PodEvent, /) -> None:
        moment = last_seen(seen)
        took_s = read_pull_s(seen.message or "") if seen.reason == PULLED else math.nan
        if moment is None or (seen.reason != PULLING and math.isnan(took_s)):
            return
        at_s = moment.timestamp()
        key = seen.involved_object.namespace, seen.involved_object.name
        before = self._of.pop(key, _Pulls(-math.inf, {}, -math.inf))
        pulling_s, took = before.pulling_wall_s, before.took_s
        if seen.reason == PULLING:
            pulling_s = max(pulling_s, at_s)
        elif len(took) < MAX_IMAGES or seen.metadata.name in took:
            # A container that restarts finds its image on the node, which says nothing about the start of the pod.
            took = {**took, seen.metadata.name: max(took_s, took.get(seen.metadata.name, 0.0))}
        self._of[key] = _Pulls(max(before.wall_s, at_s) if seen.reason == PULLED else before.wall_s, took, pulling_s)
        if len(self._of) > MAX_PODS:
            del self._of[next(iter(self._of))]
        self._changed(key)

    def remove(self, namespace: str, name: str, /) -> None:
        """Keep what an expired event said: the pod may still be starting."""

    def forget(self, key: Key) -> None:
        """Forget a pod that is gone: another one may get its name."""
        self._of.pop(key, None)

    def of_pod(self, key: Key, created_wall_s: float) -> tuple[float, float]:
        """Return the seconds for which images of a pod were pulled, and the Unix time since which one is; NaN: none."""
        pulls = self._of.get(key)
        if pulls is None or max(pulls.wall_s, pulls.pulling_wall_s) < created_wall_s - SKEW_S:
            return math.nan, math.nan
        took_s = sum(pulls.took_s.values()) if pulls.took_s else math.nan
        return took_s, pulls.pulling_wall_s if pulls.pulling_wall_s > pulls.wall_s else math.nan


def read_pull_s(message: str) -> float:
    """Return the seconds that the kubelet waited for an image; 0: the node had it; NaN: the message says neither."""
    if _PRESENT.match(message):
        return 0.0
    took = _TOOK.match(message)
    if took is None:
        return math.nan
    try:
        seconds = sum(float(count) * _UNITS_S[unit] for count, unit in _PART.findall(took[2] or took[1]))
    except ValueError:  # such as two points in a number
        return math.nan
    return seconds if seconds <= LONGEST_S else math.nan
