"""Rendering of the overlays in manifests/, for machines without kubectl: the part of kustomize that they use.

A test compares it with kubectl, if kubectl is installed.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "labels", "replicas", "patches"}
CLUSTER_SCOPED = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def render(directory: Path, onto: Sequence[Document] = ()) -> list[Document]:
    """Return the documents of an overlay, as `kubectl kustomize` prints them. Raises ValueError for unknown keys.

    onto: the documents that a component is added to.
    """
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - KNOWN:
        raise ValueError(f"{directory}: {unknown} is not rendered here")
    documents = list(copy.deepcopy(onto))
    for resource in kustomization.get("resources", ()):
        path = directory / resource
        if path.is_dir():
            documents += render(path)
        else:
            documents += [document for document in yaml.safe_load_all(path.read_text()) if document]
    documents += [_config_map(directory, generator) for generator in kustomization.get("configMapGenerator", ())]
    for document in documents:
        metadata = document["metadata"]
        if "namespace" in kustomization and document["kind"] not in CLUSTER_SCOPED:
            metadata["namespace"] = kustomization["namespace"]
        for labels in kustomization.get("labels", ()):
            metadata["labels"] = metadata.get("labels", {}) | labels["pairs"]
    for replicas in kustomization.get("replicas", ()):
        for document in documents:
            if document["metadata"]["name"] == replicas["name"] and document["kind"] == "Deployment":
                document["spec"]["replicas"] = replicas["count"]
    for patch in kustomization.get("patches", ()):
        for document in documents:
            if (document["kind"], document["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"]):
                for operation in yaml.safe_load(patch["patch"]):
                    _apply(document, operation)
    return documents


def _config_map(directory: Path, generator: dict[str, Any]) -> Document:
    options = generator["options"]
    assert options["disableNameSuffixHash"]
    metadata: dict[str, Any] = {"name": generator["name"]}
    if "labels" in options:
        metadata["labels"] = dict(options["labels"])
    data = {Path(file).name: (directory / file).read_text() for file in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _apply(document: Document, operation: dict[str, Any]) -> None:
    *way, last = [step.replace("~1", "/") for step in operation["path"].strip("/").split("/")]
    place: Any = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if operation["op"] == "remove":
        del place[int(last) if isinstance(place, list) else last]
        return
    value = copy.deepcopy(operation["value"])
    if isinstance(place, list) and last == "-" and operation["op"] == "add":
        place.append(value)
    elif isinstance(place, list) and operation["op"] == "replace":
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ValueError(f"{operation} is not rendered here")
