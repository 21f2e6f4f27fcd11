"""The agent's side of the API server: the wishes for one node, the models of its pods, and the report of the node.

It watches one ConfigMap by its name and the pods of one node, so that a request costs the same in a large cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import Kube, object_path
from autoscaler.adapters.kubernetes.api.objects import ConfigMap, Fields, Object
from autoscaler.adapters.kubernetes.api.pod_objects import PodMetadata, PodSpec, PodStatus
from autoscaler.adapters.kubernetes.api.reflector import Reflector, Resource, WatchTimes
from autoscaler.adapters.kubernetes.pods.model_source import annotated_source
from autoscaler.adapters.kubernetes.pods.template import read_model_source
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.compile_cache import cache_of
from autoscaler.config.weights.report import ANNOTATION, FIELD_MANAGER, Report, encode, labels
from autoscaler.config.weights.source import ModelSource
from autoscaler.config.weights.wishes import InvalidWishesError, Wishes, config_map_of, decode
from autoscaler.ports import Clock

log = structlog.get_logger(__name__)

APPLY_PATCH = "application/apply-patch+yaml"
ENDED = ("Succeeded", "Failed")
_ANNOTATIONS = msgspec.json.Decoder(dict[str, Any] | None)


class _HostPath(Fields, frozen=True):
    path: str = ""


class _Volume(Fields, frozen=True):
    host_path: _HostPath | None = None


class _OwnPodSpec(PodSpec, frozen=True):
    volumes: list[_Volume] | None = None


class _OwnPod(Object, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: _OwnPodSpec = _OwnPodSpec()
    status: PodStatus = PodStatus()


class _WishStore:
    """The wishes for one node, from the ConfigMap that holds them."""

    def __init__(self, node: str, changed: asyncio.Event) -> None:
        self.wishes: Wishes | None = None
        self.problem = ""
        self._node = node
        self._changed = changed

    def put(self, seen: ConfigMap) -> None:
        """Read a document. One that cannot be used, such as that of another version, changes nothing."""
        text = (seen.data or {}).get(self._node)
        problem = ""
        try:
            wishes = decode(text) if text is not None else None
        except InvalidWishesError as error:
            wishes, problem = self.wishes, str(error)
            if problem != self.problem:
                log.error("wishes cannot be used; the previous ones stay", problem=problem)
        if (wishes, problem) != (self.wishes, self.problem):
            self.wishes, self.problem = wishes, problem
            self._changed.set()

    def remove(self, _namespace: str, _name: str) -> None:
        """Forget the wishes: nothing is known any more."""
        if self.wishes is not None or self.problem:
            self.wishes, self.problem = None, ""
            self._changed.set()


class _PodStore:
    """The models that the pods of one node load."""

    def __init__(self, changed: asyncio.Event, serves: Callable[[ModelSource, str], bool]) -> None:
        self.sources: dict[tuple[str, str], ModelSource] = {}
        self.caches: dict[tuple[str, str], frozenset[str]] = {}
        self._changed = changed
        self._serves = serves

    def put(self, seen: _OwnPod) -> None:
        """Note the model of a pod, until the pod has ended."""
        key = (seen.metadata.namespace, seen.metadata.name)
        ended = seen.status.phase in ENDED
        source = None if ended else _source_of(seen)
        if source is not None and not self._serves(source, key[0]):
            source = None
        caches = frozenset() if ended else _caches_of(seen)
        if source == self.sources.get(key) and caches == self.caches.get(key, frozenset()):
            return
        self.remove(*key)
        if source is not None:
            self.sources[key] = source
        if caches:
            self.caches[key] = caches
        self._changed.set()

    def remove(self, namespace: str, name: str) -> None:
        """Forget a pod."""
        source = self.sources.pop((namespace, name), None)
        if self.caches.pop((namespace, name), None) is not None or source is not None:
            self._changed.set()


def _source_of(pod: _OwnPod) -> ModelSource | None:
    """Return the model of a pod that may load it from a folder of the node; None: there is none."""
    try:
        annotations = _ANNOTATIONS.decode(pod.metadata.annotations) or {}
    except UNREADABLE:
        annotations = {}
    texts = {name: value for name, value in annotations.items() if isinstance(value, str)}
    mounts = any(volume.host_path is not None for volume in pod.spec.volumes or ())
    return read_model_source(pod.spec, texts) if mounts else annotated_source(texts)


def _caches_of(pod: _OwnPod) -> frozenset[str]:
    """Return the compile caches that a pod mounts."""
    paths = (volume.host_path.path for volume in pod.spec.volumes or () if volume.host_path is not None)
    return frozenset(cache for path in paths if (cache := cache_of(path)))


class KubeNode:
    """A node of a cluster, as its agent needs it: `run` it in a task."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        node: str,
        namespace: str,
        wish_file: Callable[[asyncio.Event], tuple[Wishes, str]] | None = None,
        times: WatchTimes | None = None,
        serves: Callable[[ModelSource, str], bool] = lambda source, namespace: True,
        as_node: bool = False,
    ) -> None:
        """namespace: of the daemon's ConfigMaps. wish_file: returns wishes and their problem, instead of these.

        serves: tells whether pods of a namespace may have a source fetched. Those of others count as without one.
        as_node: read pods as the node's own user, to which the API server shows the pods of this node alone.
        """
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._wish_file = wish_file
        self._wishes = _WishStore(node, self.changed)
        self._pods = _PodStore(self.changed, serves)
        pods = Resource("/api/v1", "pods", _OwnPod, selector=f"spec.nodeName={node}")
        reader = kube.impersonating(f"system:node:{node}") if as_node else kube
        self._pod_watch = Reflector(reader, pods, self._pods, clock, "", times, self.changed.set)
        only = (namespace, config_map_of(node))
        maps = Resource("/api/v1", "configmaps", ConfigMap, only=only)
        self._wish_watch = Reflector(kube, maps, self._wishes, clock, namespace, times, self.changed.set)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pod_watch.run(), name="watch pods")
            if self._wish_file is None:
                tasks.create_task(self._wish_watch.run(), name="watch wishes")

    @property
    def synced(self) -> bool:
        """Whether pods and wishes were listed once."""
        return self._pod_watch.synced and (self._wish_watch.synced or self._wish_file is not None)

    def wishes(self) -> Wishes | None:
        """Return the wishes for this node; None: they are not known."""
        return self._wish_file(self.changed)[0] if self._wish_file is not None else self._wishes.wishes

    def used(self) -> Sequence[ModelSource] | None:
        """Return the models that pods of this node load, in a lasting order; None: the pods are not known.

        Namespaces take turns, so that one with many models neither delays others nor takes all labels.
        """
        if not self._pod_watch.synced:
            return None
        turns: list[tuple[int, ModelSource]] = []
        of_namespace: dict[str, dict[ModelSource, None]] = {}
        for (namespace, _), source in self._pods.sources.items():
            own = of_namespace.setdefault(namespace, {})
            if source not in own:
                turns.append((len(own), source))
                own[source] = None
        return list(dict.fromkeys(source for _, source in sorted(turns, key=lambda each: each[0])))

    def namespaces_of(self, source: ModelSource) -> Collection[str]:
        """Return the namespaces whose pods load a model."""
        return {namespace for (namespace, _), found in self._pods.sources.items() if found == source}

    def used_caches(self) -> Collection[str]:
        """Return the compile caches that pods of this node mount."""
        return frozenset[str]().union(*self._pods.caches.values())

    def problem(self) -> str:
        """Return why the wishes cannot be used; "": they can."""
        return self._wish_file(self.changed)[1] if self._wish_file is not None else self._wishes.problem

    def outage(self) -> str:
        """Return why pods or wishes may be old; "": they are not. The report, which no one could get, leaves it out."""
        return self._pod_watch.problem or ("" if self._wish_file is not None else self._wish_watch.problem)

    async def publish(self, report: Report) -> None:
        """Replace the labels and the annotation of the node that this agent owns. Raises Unavailable."""
        metadata = {"name": self._node, "labels": labels(report), "annotations": {ANNOTATION: encode(report)}}
        await self._kube.request(
            "PATCH",
            object_path("/api/v1", "", "nodes", self._node),
            {"apiVersion": "v1", "kind": "Node", "metadata": metadata},
            query=[("fieldManager", FIELD_MANAGER), ("force", "true")],
            content_type=APPLY_PATCH,
        )
