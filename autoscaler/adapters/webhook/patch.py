"""The patch of a pod: an affinity for nodes that hold its weights, and the mount with which its engine loads them.

A pod that has a part keeps it, so that a second call changes nothing. Pods come from users: one that cannot be read is
left as it is. A patch must never make a pod that the API server or the kubelet refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from posixpath import normpath
from typing import Any, NamedTuple

from autoscaler.config.weights.compile_cache import CACHES, is_cache
from autoscaler.config.weights.report import label_of
from autoscaler.config.weights.steering import (
    MOUNT_PATH,
    NAME,
    NODE,
    NODE_PATH,
    PodWeights,
    mounts,
    node_term,
    variables,
    volumes,
    wait_container,
)

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOME = "/root/.cache/huggingface"  # of the engines' images
CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
CREDENTIALS = ("HF_TOKEN", "HF_ENDPOINT", "AWS_", "AZURE_", "GOOGLE_")  # beginnings of the names of variables
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
FROM_OBJECTS = (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)
FORMER_TOKEN = "HUGGING_FACE_HUB_TOKEN"
SERVED_NAME = "--served-model-name"
COMPILE_CACHE, COMPILE_VARIABLE = "compile-cache", "VLLM_CACHE_ROOT"
SHARED_RESOURCES = ("cpu", "memory", "ephemeral-storage")  # not devices
_REFERENCE = re.compile(r"\$\(([-._a-zA-Z0-9]+)\)")
Operation = dict[str, Any]


class Folder(NamedTuple):
    """The folder of the nodes that is mounted."""

    host_path: str
    image: str  # of the container that waits
    compile_caches: bool = False  # what engines compile is kept in folders below it


class UnreadableError(ValueError):
    """A pod has a field of another type than the API server allows."""


def patch_of(pod: object, namespace: str, weights: PodWeights, folder: Folder | None) -> list[Operation]:
    """Return the operations of a JSON patch; []: the pod stays as it is. Raises UnreadableError.

    folder: None: only the affinity is added.
    """
    spec = _mapping(_mapping(pod).get("spec"))
    if spec.get("nodeName") or _mapping(spec.get("os")).get("name") == "windows":
        return []
    mounted = _mount(spec, namespace, weights, folder) if folder else []
    if folder and not mounted and not _has_folder(spec, folder.host_path):
        return []
    return _affinity(spec, weights) + mounted


def _affinity(spec: Mapping[str, Any], weights: PodWeights) -> list[Operation]:
    term = node_term(weights.source)
    path, node = "/spec/affinity", _mapping(spec.get("affinity"))
    if not node:
        return [_add(path, {"nodeAffinity": {PREFERRED: [term]}})]
    path, node = f"{path}/nodeAffinity", _mapping(node.get("nodeAffinity"))
    if not node:
        return [_add(path, {PREFERRED: [term]})]
    path, terms = f"{path}/{PREFERRED}", _items(node.get(PREFERRED))
    label = label_of(weights.source.key)
    for each in terms:
        expressions = _items(_mapping(each.get("preference")).get("matchExpressions"))
        if any(expression.get("key") == label for expression in expressions):
            return []
    return _append(path, terms, [term])


def _mount(spec: Mapping[str, Any], namespace: str, weights: PodWeights, folder: Folder) -> list[Operation]:
    """Mount the folder into the engine's container; []: it is not known, or has weights of its own."""
    containers, present = _items(spec.get("containers")), _items(spec.get("volumes"))
    first = _items(spec.get("initContainers"))
    taken = {_name(each) for each in (*containers, *first, *present)}
    index = next((index for index, each in enumerate(containers) if _name(each) == weights.engine), None)
    if not weights.engine or index is None or not taken.isdisjoint((NAME, NODE)):
        return []
    engine = containers[index]
    mounted, environment = _items(engine.get("volumeMounts")), _items(engine.get("env"))
    if _has_own_cache(mounted, environment, present):
        return []
    set_already = {_name(each) for each in environment}
    new = [each for each in variables(weights.source) if each["name"] not in set_already]
    credentials = _credentials(environment, _items(engine.get("envFrom")))
    waits = wait_container(weights.source, folder.image, credentials, _resources(engine))
    more_volumes, more_mounts = volumes(folder.host_path), mounts()
    cache = f"{CACHES}/{namespace}/{weights.compiled}"
    names = {*taken, *set_already, *map(_mounted_at, mounted)}
    free = names.isdisjoint((COMPILE_CACHE, COMPILE_VARIABLE, f"/{COMPILE_CACHE}"))
    if folder.compile_caches and weights.compiled and is_cache(cache) and free and _may_be_root(spec, engine):
        host_path = {"path": f"{folder.host_path}/{cache}", "type": "DirectoryOrCreate"}
        more_volumes.append({"name": COMPILE_CACHE, "hostPath": host_path})
        more_mounts.append({"name": COMPILE_CACHE, "mountPath": f"/{COMPILE_CACHE}"})
        new.append({"name": COMPILE_VARIABLE, "value": f"/{COMPILE_CACHE}"})
    path = f"/spec/containers/{index}"
    return [
        *_append("/spec/volumes", present, more_volumes),
        *_append(f"{path}/volumeMounts", mounted, more_mounts),
        *_append(f"{path}/env", environment, new),
        *_append(f"{path}/args", engine.get("args"), [SERVED_NAME, weights.served] if weights.served else ()),
        *_append("/spec/initContainers", first, [waits]),
    ]


def _may_be_root(spec: Mapping[str, Any], engine: Mapping[str, Any]) -> bool:
    """Return whether an engine may write a folder that the kubelet makes, which belongs to root."""
    pod, own = _mapping(spec.get("securityContext")), _mapping(engine.get("securityContext"))
    user, other = (own.get(field, pod.get(field)) for field in ("runAsUser", "runAsNonRoot"))
    return user in (None, 0) and not other


def _has_folder(spec: Mapping[str, Any], host_path: str) -> bool:
    """Return whether a pod has a volume in the folder already."""
    paths = (_mapping(each.get("hostPath")).get("path") for each in _items(spec.get("volumes")))
    return any(isinstance(path, str) and f"{path}/".startswith(f"{host_path}/") for path in paths)


def _has_own_cache(mounted: list[Operation], environment: list[Operation], present: list[Operation]) -> bool:
    """Return whether an engine has a cache that outlives it, or something else at one of our paths."""
    values = {_name(each): each.get("value") for each in environment}
    if any(name in values for name in CACHE_VARIABLES):
        return True
    lasting = {_name(each) for each in present if not ("emptyDir" in each or "ephemeral" in each)}
    home = str(values.get("HF_HOME") or HOME)
    for each in mounted:
        path = _mounted_at(each).rstrip("/")
        if f"{path}/".startswith((f"{MOUNT_PATH}/", f"{NODE_PATH}/")):
            return True
        if _name(each) in lasting and (f"{home}/".startswith(f"{path}/") or f"{path}/".startswith(f"{home}/")):
            return True
    return False


def _credentials(environment: list[Operation], env_from: list[Operation]) -> list[Operation]:
    """Return the variables of an engine that name hubs, stores and tokens for them. Secrets are not read.

    env_from: of these only some variables are taken. Others could keep the container that waits from its work.
    """
    found = [each for each in environment if _name(each).startswith(CREDENTIALS) or _name(each) in PROXIES]
    names = {_name(each) for each in found}
    if "HF_TOKEN" not in names:
        found += [each | {"name": "HF_TOKEN"} for each in environment if _name(each) == FORMER_TOKEN][:1]
    used = {name for each in found for name in _REFERENCE.findall(str(each.get("value")))} - names
    # A value may use variables that come before it: $(NAME).
    first = [each for each in environment if _name(each) in used]
    return [*(each for each in _taken_from(env_from) if each["name"] not in names), *first, *found]


def _taken_from(env_from: list[Operation]) -> Iterator[Operation]:
    """Yield credentials that Secrets and ConfigMaps may have, each if its key exists. The last one counts."""
    for each in env_from:
        prefix = str(each.get("prefix") or "")
        for kind, reference in (("secretRef", "secretKeyRef"), ("configMapRef", "configMapKeyRef")):
            name = _mapping(each.get(kind)).get("name")
            for variable in FROM_OBJECTS if name else ():
                if variable.startswith(prefix) and variable != prefix:  # no key is empty
                    key = {"name": name, "key": variable.removeprefix(prefix), "optional": True}
                    yield {"name": variable, "valueFrom": {reference: key}}


def _mounted_at(mount: Mapping[str, Any]) -> str:
    """Return where a volume is mounted, as the kubelet resolves its path."""
    return normpath("/" + str(mount.get("mountPath")).lstrip("/"))


def _resources(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's requests and limits without its devices.

    A quota or a limit range that allows the engine allows these too, and they add nothing to what the pod requests.
    """
    stated = _mapping(engine.get("resources"))
    found = {}
    for kind in ("requests", "limits"):
        amounts = {name: value for name, value in _mapping(stated.get(kind)).items() if name in SHARED_RESOURCES}
        if amounts:
            found[kind] = amounts
    return found


def _append(path: str, present: object, more: Iterable[object]) -> list[Operation]:
    """Append to a list, which is created if it is empty, because the API server leaves empty lists out."""
    added = list(more)
    if not present:
        return [_add(path, added)] if added else []
    return [_add(f"{path}/-", each) for each in added]


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _name(value: Mapping[str, Any]) -> str:
    return str(value.get("name"))


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableError(f"an object was expected, found {type(value).__name__}")
    return value


def _items(value: object) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UnreadableError(f"a list of objects was expected, found {type(value).__name__}")
    return value
