"""The kinds that an API server serves, their versions, and whether they have a scale subresource.

Every authenticated client may read this (`system:discovery`), so no role needs to name it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.config.findings import UNREADABLE

ROOT = "/apis"
NOT_FOUND = 404


class ServedKind(NamedTuple):
    """A kind as the API server serves it."""

    resource: str  # "rollouts.argoproj.io"
    kind: str
    version: str
    scalable: bool


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_Version]
    preferred_version: _Version | None = None


class _Groups(msgspec.Struct):
    groups: list[_Group]


class _ApiResource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _Resources(msgspec.Struct):
    resources: list[_ApiResource]


_GROUPS, _RESOURCES = msgspec.json.Decoder(_Groups), msgspec.json.Decoder(_Resources)
Decoded = TypeVar("Decoded")
Read = Callable[[str], Awaitable[dict[str, _ApiResource]]]


async def discover(
    kube: Kube, preferred: Mapping[str, str], cluster_scoped: Container[str] = ()
) -> dict[str, ServedKind | None]:
    """Return how some kinds are served; None: not at all. Raises ApiError if the server refuses or does not answer.

    preferred: the version to use where it is served, by resource ("rollouts.argoproj.io"). A group whose versions
    cannot be read, as that of an aggregated server that is down, is left out of the result.
    cluster_scoped: those whose objects are in no namespace.
    """
    documents: dict[str, dict[str, _ApiResource]] = {}

    async def read(path: str) -> dict[str, _ApiResource]:
        if path not in documents:
            listed = await _get(kube, path, _RESOURCES)
            documents[path] = {each.name: each for each in listed.resources} if listed is not None else {}
        return documents[path]

    found: dict[str, ServedKind | None] = dict.fromkeys(preferred)
    listed = await _get(kube, ROOT, _GROUPS)
    groups = {group.name: group for group in listed.groups} if listed is not None else {}
    for resource, version in preferred.items():
        group = groups.get(resource.partition(".")[2])
        if group is None:
            continue
        try:
            found[resource] = await _find(read, group, resource, version, resource not in cluster_scoped)
        except ApiError:
            del found[resource]
    return found


async def _find(read: Read, group: _Group, resource: str, preferred: str, namespaced: bool) -> ServedKind | None:
    """Return how a kind is served: in the version to use, else in that which the server prefers."""
    versions = [each.version for each in group.versions]
    first = [preferred, group.preferred_version.version if group.preferred_version is not None else ""]
    plural = resource.partition(".")[0]
    for version in dict.fromkeys([each for each in first if each in versions] + versions):
        listed = await read(f"{ROOT}/{group.name}/{version}")
        if plural in listed and listed[plural].namespaced is namespaced:
            return ServedKind(resource, listed[plural].kind, version, f"{plural}/scale" in listed)
    return None


async def _get(kube: Kube, path: str, decoder: msgspec.json.Decoder[Decoded]) -> Decoded | None:
    """Return a description of the API; None: it does not exist."""
    try:
        return decoder.decode(await kube.request("GET", path))
    except ApiError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    except UNREADABLE as error:
        raise ApiError(f"GET {path}", 0, f"not a description of the API: {error}") from error
