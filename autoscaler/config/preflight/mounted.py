"""What ConfigMaps give a container: variables, and files at the paths where they are mounted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.preflight.objects import Manifest, Manifests
from autoscaler.config.yaml import Loc

MAX_TEXT = 1 << 16  # of a file
_MAX_ITEMS = 64


@dataclass(frozen=True)
class PodInputs:
    """ConfigMaps of a pod, as far as they are among the objects."""

    objects: Manifests
    thing: Manifest
    spec: Loc  # of the pod

    def variables(self, container: object) -> dict[str, str]:
        """Return the environment of a container, as far as it is known."""
        known: dict[str, str] = {}
        for each in _items(at(container, "envFrom")):
            prefix = text_at(each, "prefix")
            for name, value in self._data(text_at(each, "configMapRef", "name")).items():
                known[f"{prefix}{name}"] = value
        for each in _items(at(container, "env")):
            stated, source = at(each, "value"), at(each, "valueFrom", "configMapKeyRef")
            if source is not None:
                stated = self._data(text_at(source, "name")).get(text_at(source, "key"))
            if isinstance(stated, str):
                known[text_at(each, "name")] = stated
        return known

    def file(self, container: object, path: str) -> str | None:
        """Return the text of a file that a ConfigMap gives; None: it is none."""
        volumes = {text_at(each, "name"): each for each in _items(self.thing.at(*self.spec, "volumes"))}
        for mount in _items(at(container, "volumeMounts")):
            place, inside = text_at(mount, "mountPath").rstrip("/"), text_at(mount, "subPath")
            name = inside if inside and path == place else path.removeprefix(f"{place}/")
            if not place or name == path:
                continue
            for source in _sources(volumes.get(text_at(mount, "name"))):
                keys = {text_at(each, "path"): text_at(each, "key") for each in _items(at(source, "items"))}
                text = self._data(text_at(source, "name")).get(keys.get(name, name))
                if text is not None and len(text) <= MAX_TEXT:
                    return text
        return None

    def _data(self, name: str) -> dict[str, str]:
        found = self.objects.get("ConfigMap", self.thing.namespace, name) if name else None
        return found.texts("data") if found is not None else {}


def _sources(volume: object) -> Iterator[object]:
    if at(volume, "configMap") is not None:
        yield at(volume, "configMap")
    for each in _items(at(volume, "projected", "sources")):
        if at(each, "configMap") is not None:
            yield at(each, "configMap")


def _items(value: object) -> list[object]:
    return value[:_MAX_ITEMS] if isinstance(value, list) else []
