"""The source of the weights that a pod loads: as an annotation states it, else as its engine's command line does.

`template.read_model_source` joins both, for templates and for pods. The input is untrusted: every user who may edit
a workload writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.command_line import CommandFacts
from autoscaler.catalog.weights import DEFAULT_REVISION, KSERVE_SOURCES, STORAGE_INITIALIZER
from autoscaler.config.annotations import WEIGHTS
from autoscaler.config.weights.report import LABEL_PREFIX
from autoscaler.config.weights.source import COMMIT, InvalidSourceError, ModelSource, parse

FLUID_LABEL = "fluid.io/s-"  # prefix of the labels of nodes with the cache of a Dataset of Fluid 1.0
_STEERING = (LABEL_PREFIX, FLUID_LABEL)


def annotated_source(annotations: Mapping[str, str]) -> ModelSource | None:
    """Return the source that annotations of a pod or template state: ours, else those of KServe."""
    ours = parsed_source(annotations.get(WEIGHTS, ""))
    return ours or next((found for name in KSERVE_SOURCES if (found := kserve_source(annotations.get(name, "")))), None)


def stated_source(spec: PodSpec, stated: CommandFacts) -> ModelSource | None:
    """Return the source that the containers of a pod state: KServe's storage initializer, else the engine.

    stated: by the command line of the engine. A model without a revision follows a branch.
    """
    for container in spec.init_containers or ():
        if container.name == STORAGE_INITIALIZER and container.args:
            return kserve_source(container.args[0])
    if "://" in stated.loads:
        return parsed_source(stated.loads)
    if snapshot := _read_snapshot(stated.loads):
        return parsed_source(snapshot)
    if "/" not in stated.loads:  # the name of a folder in the image, or of an old model of the hub
        return None
    return parsed_source(f"hf://{stated.loads}@{stated.revision or DEFAULT_REVISION}")


def _read_snapshot(path: str) -> str:
    """Return the source of a folder of a hub's cache, `…/models--ORG--NAME/snapshots/COMMIT`; "": it is none."""
    *parents, repository, snapshots, commit = ("", "", *path.removesuffix("/").split("/"))
    kind, *names = repository.split("--")
    is_one = parents[2:] and kind == "models" and len(names) == 2 and snapshots == "snapshots"
    return "hf://{}/{}@{}".format(*names, commit) if is_one and COMMIT.fullmatch(commit) else ""


def is_steered(spec: PodSpec) -> bool:
    """Return whether the scheduler prefers, or requires, nodes that hold the weights: by affinity for their label.

    Fluid's webhook writes such an affinity too.
    """
    if any(key.startswith(_STEERING) for key in spec.node_selector or ()):
        return True
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None:
        return False
    required = affinity.required.node_selector_terms if affinity.required is not None else None
    terms = [*(required or ()), *(each.preference for each in affinity.preferred or ())]
    return any(each.key.startswith(_STEERING) for term in terms for each in term.match_expressions or ())


def kserve_source(uri: str) -> ModelSource | None:
    """Return the source of a storageUri, in which a colon separates the revision of a hub's model."""
    if uri.startswith("hf://"):
        location, _, revision = uri.partition("://")[2].partition(":")
        return parsed_source(f"hf://{location}@{revision or DEFAULT_REVISION}")
    return parsed_source(uri)


def parsed_source(text: str) -> ModelSource | None:
    """Return the source that a text states; None: it states none."""
    try:
        return parse(text)
    except InvalidSourceError:
        return None
