"""KServe's LocalModelCache: the models that its own agents keep on nodes, and the caches that the daemon asks for.

A LocalModelCache names one source and node groups of KServe, whose agents then fetch it on each of their nodes. The
daemon writes caches of its own only, for workloads of KServe, and leaves those of others alone.
Source: KServe 0.20, `pkg/apis/serving/v1alpha1/local_model_*_types.go`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Untyped
from autoscaler.adapters.kubernetes.api.pod_objects import NodeTerm
from autoscaler.adapters.kubernetes.inventory.node_admission import admits
from autoscaler.adapters.kubernetes.pods.model_source import kserve_source
from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, Needs, NodeExpression
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.catalog.weights import DEFAULT_REVISION
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.quantities import read_quantity
from autoscaler.config.weights.report import MAX_MODELS, ModelReport, State
from autoscaler.config.weights.source import ModelSource
from autoscaler.core.wishes.shares import NAMESPACE_SHARE

NODES = "localmodelnodes.serving.kserve.io"  # one object for each node, with the name of the node
GROUPS = "localmodelnodegroups.serving.kserve.io"
CACHES = "localmodelcaches.serving.kserve.io"
VERSION = "v1alpha1"
CACHE = "kserve"
KINDS = dict.fromkeys((NODES, GROUPS, CACHES), VERSION)
API_VERSION = f"serving.kserve.io/{VERSION}"
ROOT = f"/apis/{API_VERSION}"
SERVICE_LABEL = "serving.kserve.io/inferenceservice"  # of pods of an InferenceService
OWN_LABEL = "app.kubernetes.io/managed-by"
OWNER = "vllm-autoscaler"
STATES = {
    "ModelDownloaded": State.READY,
    "ModelDownloading": State.FETCHING,
    "ModelDownloadError": State.FAILED,
}


class CacheGroup(NamedTuple):
    """A node group of KServe."""

    needs: Needs  # what its nodes have
    limit_bytes: float  # for all models of a node; infinity: not stated


class Cache(NamedTuple):
    """A LocalModelCache."""

    uri: str
    groups: tuple[str, ...]
    size_bytes: float
    is_own: bool


class WantedModel(NamedTuple):
    """Weights that nodes should hold, in the order in which they get room."""

    source: ModelSource
    size_bytes: float  # NaN: unknown
    nodes: frozenset[str]  # that may run its pods
    namespaces: frozenset[str]  # of the workloads that want them


class LocalModels:
    """KServe's kinds, as far as they are served and may be read."""

    def __init__(self, reports: ReportStore) -> None:
        self.groups: dict[str, CacheGroup] = {}
        self.caches: dict[str, Cache] = {}
        self._nodes = LocalModelStore(reports)

    def store_of(self, resource: str) -> LocalModelStore | _Objects:
        if resource == NODES:
            return self._nodes
        return _Objects(self.groups, _read_group) if resource == GROUPS else _Objects(self.caches, _read_cache)

    def wanted(
        self, models: Sequence[WantedModel], labels: Mapping[str, Mapping[str, str]], excluded: frozenset[str]
    ) -> dict[str, Cache]:
        """Return the caches that should exist, by name. Models whose source another cache has are left out.

        labels: of nodes, by name. excluded: nodes with an agent of ours. A model gets each group with nodes that may
        run it and with room for it. Its size must be known: KServe reserves it. Models of one namespace alone get at
        most half of a group's room, where other namespaces have models for its nodes: everybody may annotate.
        """
        members = {
            name: {
                node
                for node, found in labels.items()
                if node not in excluded and admits({**found, NAME_FIELD: node}, (), group.needs)
            }
            for name, group in self.groups.items()
        }
        others = [cache for cache in self.caches.values() if not cache.is_own]
        taken = {kserve_source(cache.uri) for cache in others}
        used = dict.fromkeys(self.groups, 0.0)
        for cache in others:
            for name in cache.groups:
                used[name] = used.get(name, 0.0) + cache.size_bytes
        share = {
            name: NAMESPACE_SHARE if _have_several_namespaces(models, nodes) else 1.0 for name, nodes in members.items()
        }
        own: dict[tuple[str, str], float] = {}  # bytes by namespace and group
        found = {}
        for model in models:
            if model.source in taken or not model.size_bytes > 0:
                continue
            fitting = [
                name
                for name in sorted(members)
                if members[name] & model.nodes
                and used[name] + model.size_bytes <= (most := self.groups[name].limit_bytes)
                and any(
                    (held := own.get((each, name), 0.0)) == 0.0 or held + model.size_bytes <= share[name] * most
                    for each in model.namespaces
                )
            ]
            if fitting:
                found[cache_name(model.source)] = Cache(
                    uri_of(model.source), tuple(fitting), math.ceil(model.size_bytes), is_own=True
                )
                for name in fitting:
                    used[name] += model.size_bytes
                    for each in model.namespaces:
                        own[each, name] = own.get((each, name), 0.0) + model.size_bytes
        return found

    def own(self) -> dict[str, Cache]:
        """Return the caches that the daemon has written."""
        return {name: cache for name, cache in self.caches.items() if cache.is_own}


def _have_several_namespaces(models: Sequence[WantedModel], nodes: Set[str]) -> bool:
    """Return whether workloads of several namespaces want models that some of these nodes may run."""
    return len({each for model in models if model.nodes & nodes for each in model.namespaces}) > 1


def cache_name(source: ModelSource) -> str:
    return f"{OWNER}-{source.key}"


def uri_of(source: ModelSource) -> str:
    """Return a source as KServe writes it: a colon before the revision, and none for the usual branch."""
    if source.scheme != "hf":
        return str(source)
    return f"hf://{source.location}" + (f":{source.revision}" if source.revision != DEFAULT_REVISION else "")


def manifest(name: str, cache: Cache) -> dict[str, Any]:
    """Return the LocalModelCache to apply."""
    spec = {"sourceModelUri": cache.uri, "modelSize": str(int(cache.size_bytes)), "nodeGroups": list(cache.groups)}
    metadata = {"name": name, "labels": {OWN_LABEL: OWNER}}
    return {"apiVersion": API_VERSION, "kind": "LocalModelCache", "metadata": metadata, "spec": spec}


class _Objects:
    """Receives objects of a kind, and keeps what is read of each by name."""

    def __init__(self, found: dict[str, Any], read: Callable[[Untyped], Any]) -> None:
        self._found = found
        self._read = read

    def put(self, seen: Untyped, /) -> None:
        self._found[seen.metadata.name] = self._read(seen)

    def remove(self, namespace: str, name: str, /) -> None:
        self._found.pop(name, None)

    def clear(self) -> None:
        self._found.clear()


def _read_group(seen: Untyped) -> CacheGroup:
    terms = at(seen.spec, "persistentVolumeSpec", "nodeAffinity", "required", "nodeSelectorTerms")
    try:
        stated = msgspec.convert(terms, list[NodeTerm] | None) or []
    except UNREADABLE:
        stated = [NodeTerm()]  # matches no node
    expressions = tuple(
        tuple(
            NodeExpression(each.key, each.operator, tuple(each.values or ())) for each in term.match_expressions or ()
        )
        for term in stated
    )
    limit = read_quantity(str(at(seen.spec, "storageLimit") or ""))
    return CacheGroup(Needs(terms=expressions or None), math.inf if math.isnan(limit) else limit)


def _read_cache(seen: Untyped) -> Cache:
    groups = at(seen.spec, "nodeGroups")
    size = read_quantity(str(at(seen.spec, "modelSize") or ""))
    return Cache(
        text_at(seen.spec, "sourceModelUri"),
        tuple(each for each in groups if isinstance(each, str)) if isinstance(groups, list) else (),
        0.0 if math.isnan(size) else size,
        (seen.metadata.labels or {}).get(OWN_LABEL) == OWNER,
    )


class LocalModelStore:
    """Receives LocalModelNodes, and notes what they hold. Never raises, whatever the object holds."""

    def __init__(self, reports: ReportStore) -> None:
        self._reports = reports
        self._seen: set[str] = set()

    def put(self, seen: Untyped, /) -> None:
        name = seen.metadata.name
        listed, status = at(seen.spec, "localModels"), at(seen.status, "modelStatus")
        models: dict[str, ModelReport] = {}
        for each in listed[:MAX_MODELS] if isinstance(listed, list) else ():
            uri, model, namespace = (text_at(each, key) for key in ("sourceModelUri", "modelName", "namespace"))
            source = kserve_source(uri)
            if source is not None:
                stated = text_at(status, f"{namespace}/{model}") or text_at(status, model)
                state = STATES.get(stated, State.WAITING)
                cause = CACHE if state is State.FAILED else ""
                text = "see the job of KServe for this node" if cause else ""
                models[source.key] = ModelReport(str(source), state, cause=cause, text=text)
        self._seen.add(name)
        self._reports.put_cache(CACHE, name, models)

    def remove(self, namespace: str, name: str, /) -> None:
        self._seen.discard(name)
        self._reports.put_cache(CACHE, name, {})

    def clear(self) -> None:
        """Forget all nodes: the API server does not serve the kind any more."""
        for name in list(self._seen):
            self.remove("", name)
