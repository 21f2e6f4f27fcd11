"""Kinds that may be scale targets: what their replicas are, and where their objects state counts, selectors and pods.

A kind is scaled only if the API server serves its scale subresource. Further kinds can be named by a setting; they are
read by `other_kind`. Each row names the project and the version whose CustomResourceDefinition was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

Place = tuple[str, ...]  # keys from the root of an object; "*" stands for each item of a list

EACH = "*"


class TemplatePart(NamedTuple):
    """Some pods of a replica, which have one template."""

    place: Place  # of the pod template
    counts: tuple[
        str, ...
    ] = ()  # fields in addition to the template: their product is the number of pods; an absent one is 1
    bare: bool = False  # the place holds a pod spec instead of a template


class BarringField(NamedTuple):
    """A field that makes an object impossible to scale by its replicas."""

    place: Place
    values: tuple[object, ...]
    words: str


class ScaleTarget(NamedTuple):
    """A kind of object, and how its scale is read and written."""

    kind: str
    group: str
    version: str  # preferred; any other version that the API server serves is read in the same way
    plural: str
    source: str  # project and version
    unit: str = "pod"  # what one replica is
    replicas: Place = ("spec", "replicas")
    unset: int = 1  # replicas if the object states none
    selector: Place = ()  # of a label selector as text; (): the pods are found by their owners
    pods: tuple[TemplatePart, ...] = ()  # the first serves requests; (): only live pods show what a replica needs
    roles: Place = ()  # a list that must have one item, with one replica: a replica of several engines has no one speed
    conditions: tuple[BarringField, ...] = ()
    refusal: str = ""  # why it is not scaled, and what is scaled instead; "": it is scaled
    passes_on: bool = False  # it passes its annotations on to an object that may be scaled

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def why_refused(self) -> tuple[str, str]:
        """Why it is not scaled, and what is scaled instead."""
        why, _, allowed = self.refusal.partition("; allowed: ")
        return why, allowed

    @property
    def resource(self) -> str:
        """The name that `kubectl api-resources` and roles use: "rollouts.argoproj.io"."""
        return f"{self.plural}.{self.group}"


_TEMPLATE = ("spec", "template")
_STATUS = ("status", "selector")
_ROLES = (*_TEMPLATE, "roles")
_ROLE_SET = (*_TEMPLATE, "spec", "roles")
_CLUSTER = (*_TEMPLATE, "spec")
_WITHOUT = "it has no scale subresource; allowed: "

TARGETS: tuple[ScaleTarget, ...] = (
    ScaleTarget("Deployment", "apps", "v1", "deployments", "Kubernetes 1.36", pods=(TemplatePart(_TEMPLATE),)),
    ScaleTarget("StatefulSet", "apps", "v1", "statefulsets", "Kubernetes 1.36", pods=(TemplatePart(_TEMPLATE),)),
    ScaleTarget(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        "v1",
        "leaderworkersets",
        "lws 0.10",
        unit="group of a leader and its workers",
        pods=(
            TemplatePart(("spec", "leaderWorkerTemplate", "leaderTemplate")),
            TemplatePart(("spec", "leaderWorkerTemplate", "workerTemplate")),
        ),
    ),
    ScaleTarget(
        "Rollout",
        "argoproj.io",
        "v1alpha1",
        "rollouts",
        "argo-rollouts, main of 2026",
        selector=_STATUS,
        pods=(TemplatePart(_TEMPLATE),),
    ),
    ScaleTarget(
        "DisaggregatedSetRoleScaler",
        "disaggregatedset.x-k8s.io",
        "v1",
        "disaggregatedsetrolescalers",
        "lws 0.10",
        unit="group of a leader and its workers, of one role",
        unset=0,  # until an autoscaler writes a count
        selector=_STATUS,
    ),
    ScaleTarget(
        "VLLMRuntime",
        "production-stack.vllm.ai",
        "v1alpha1",
        "vllmruntimes",
        "vLLM production-stack, with PR 903",
        replicas=("spec", "deploymentConfig", "replicas"),
        selector=_STATUS,
    ),
    ScaleTarget(
        "DynamoGraphDeploymentScalingAdapter",
        "nvidia.com",
        "v1alpha1",
        "dynamographdeploymentscalingadapters",
        "Dynamo 1.2",
        unit="worker of one component, or its group of nodes",
        selector=_STATUS,
    ),
    ScaleTarget(
        "ModelServing",
        "workload.serving.volcano.sh",
        "v1alpha1",
        "modelservings",
        "Kthena, main of 2026",
        unit="serving group of one role",
        selector=("status", "labelSelector"),
        pods=(
            TemplatePart((*_ROLES, EACH, "entryTemplate")),
            TemplatePart((*_ROLES, EACH, "workerTemplate"), ("workerReplicas",)),
        ),
        roles=_ROLES,
    ),
    ScaleTarget(
        "ModelServingRoleReplica",
        "workload.serving.volcano.sh",
        "v1alpha1",
        "modelservingrolereplicas",
        "Kthena, main of 2026",
        unit="entry pod and its workers, of one role",
        selector=("status", "labelSelector"),
    ),
    ScaleTarget(
        "StormService",
        "orchestration.aibrix.ai",
        "v1alpha1",
        "stormservices",
        "AIBrix 0.7",
        unit="role set of one role",
        selector=("status", "scalingTargetSelector"),
        pods=(TemplatePart((*_ROLE_SET, EACH, "template"), ("podGroupSize",)),),
        roles=_ROLE_SET,
        conditions=(
            BarringField(
                ("spec", "mode"),
                ("Pooled",),
                "spec.mode is Pooled, in which roles have counts of their own; allowed: Replica",
            ),
        ),
    ),
    ScaleTarget(
        "RayClusterFleet",
        "orchestration.aibrix.ai",
        "v1alpha1",
        "rayclusterfleets",
        "AIBrix 0.7",
        unit="Ray cluster",
        selector=("status", "scalingTargetSelector"),
        pods=(
            TemplatePart((*_CLUSTER, "headGroupSpec", "template")),
            TemplatePart((*_CLUSTER, "workerGroupSpecs", EACH, "template"), ("replicas", "numOfHosts")),
        ),
    ),
    ScaleTarget(
        "NodeSet",
        "slinky.slurm.net",
        "v1beta1",
        "nodesets",
        "Slinky slurm-operator, main of 2026",
        unit="pod, a node of Slurm",
        selector=_STATUS,
        conditions=(
            BarringField(
                ("spec", "scalingMode"),
                ("DaemonSet",),
                "spec.scalingMode is DaemonSet, which ignores spec.replicas; allowed: StatefulSet",
            ),
        ),
    ),
    ScaleTarget(
        "PodClique",
        "grove.io",
        "v1alpha1",
        "podcliques",
        "Grove, main of 2026",
        selector=("status", "hpaPodSelector"),
        pods=(TemplatePart(("spec", "podSpec"), bare=True),),
    ),
    ScaleTarget(
        "PodCliqueScalingGroup",
        "grove.io",
        "v1alpha1",
        "podcliquescalinggroups",
        "Grove, main of 2026",
        refusal="a replica is several PodCliques, and nothing tells which of them serve; allowed: the "
        "DynamoGraphDeploymentScalingAdapter of the component, or a PodClique outside of a scaling group",
    ),
    ScaleTarget(
        "DynamoGraphDeployment",
        "nvidia.com",
        "v1alpha1",
        "dynamographdeployments",
        "Dynamo 1.2",
        refusal=f"{_WITHOUT}the DynamoGraphDeploymentScalingAdapter of each component, which Dynamo creates if the "
        "component's scalingAdapter is enabled",
    ),
    ScaleTarget(
        "DisaggregatedSet",
        "disaggregatedset.x-k8s.io",
        "v1",
        "disaggregatedsets",
        "lws 0.10",
        refusal=f"{_WITHOUT}the DisaggregatedSetRoleScaler of each role, which exists if the role's scaling.mode is "
        "External",
    ),
    ScaleTarget(
        "RayCluster",
        "ray.io",
        "v1",
        "rayclusters",
        "KubeRay, main of 2026",
        refusal=f"{_WITHOUT}a RayClusterFleet of AIBrix, whose replicas are whole clusters, or the engine in a "
        "LeaderWorkerSet; the worker groups are scaled by Ray's own autoscaler",
    ),
    ScaleTarget(
        "RayService",
        "ray.io",
        "v1",
        "rayservices",
        "KubeRay, main of 2026",
        refusal=f"{_WITHOUT}a RayClusterFleet of AIBrix, whose replicas are whole clusters, or the engine in a "
        "LeaderWorkerSet; replicas of Ray Serve are scaled by its autoscaling_config",
    ),
    ScaleTarget(
        "LLMInferenceService",
        "serving.kserve.io",
        "v1alpha1",
        "llminferenceservices",
        "KServe 0.20",
        refusal=f"{_WITHOUT}the Deployment or LeaderWorkerSet that KServe creates for it, if neither spec.replicas nor "
        "spec.scaling is set, or put the trigger of KEDA into spec.scaling.keda.triggers",
        passes_on=True,
    ),
    ScaleTarget(
        "InferenceService",
        "serving.kserve.io",
        "v1beta1",
        "inferenceservices",
        "KServe 0.20",
        refusal=f"{_WITHOUT}the Deployment that KServe creates for its predictor, if the annotation "
        "serving.kserve.io/autoscalerClass is external or none",
        passes_on=True,
    ),
)

BY_KIND: Mapping[str, ScaleTarget] = MappingProxyType({row.kind: row for row in TARGETS})
BY_RESOURCE: Mapping[str, ScaleTarget] = MappingProxyType({row.resource: row for row in TARGETS})
SCALED: Mapping[str, ScaleTarget] = MappingProxyType({row.kind: row for row in TARGETS if not row.refusal})
GROUPS = frozenset(row.group for row in TARGETS)
NO_KINDS = "none"  # in place of names of kinds: only Deployments and StatefulSets
RESOURCE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")

OTHER_SELECTORS: tuple[Place, ...] = (
    _STATUS,
    ("status", "labelSelector"),
    ("status", "hpaPodSelector"),
    ("status", "scalingTargetSelector"),
)
"""Places of the label selector in kinds that have no row: the first that holds text counts."""


class PodGroups(NamedTuple):
    """Labels of pods that serve together as one replica. One of them answers requests and reports metrics."""

    same: tuple[str, ...]  # labels that pods of one group have in common
    leader: str  # label by which the leader is known
    leads: str  # regular expression of its value
    member: str = ".*"  # regular expression of the value that any pod of a group has


LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
POD_GROUPS: tuple[PodGroups, ...] = (
    PodGroups((LWS_NAME, "leaderworkerset.sigs.k8s.io/group-index"), "leaderworkerset.sigs.k8s.io/worker-index", "0"),
    PodGroups(("ray.io/cluster",), "ray.io/node-type", "head"),
    PodGroups(
        ("modelserving.volcano.sh/group-name", "modelserving.volcano.sh/role", "modelserving.volcano.sh/role-id"),
        "modelserving.volcano.sh/entry",
        "true",
    ),
    PodGroups(("roleset-name", "role-name"), "stormservice.orchestration.aibrix.ai/pod-group-index", "0"),
    # Dynamo's components on several nodes; other scaling groups may consist of independent pods.
    PodGroups(
        ("grove.io/podcliquescalinggroup", "grove.io/podcliquescalinggroup-replica-index"),
        "grove.io/podclique",
        ".*-ldr",
        ".*-(ldr|wkr)",
    ),
)


def other_kind(resource: str, kind: str, version: str) -> ScaleTarget:
    """Return the row of a kind that the table does not have: counts at spec.replicas, pods by a usual selector.

    resource: its plural and group, "foos.example.com". kind, version: as the API server names them.
    """
    plural, _, group = resource.partition(".")
    return ScaleTarget(kind, group, version, plural, "", selector=OTHER_SELECTORS[0])
