"""Fields of API objects that are read: what all kinds have, and the answers that carry them.

They are types for the JSON decoder, which skips all other fields. `pod_objects`, `target_objects`, `node_objects` and
`device_objects` have those of single kinds. The schema of a custom resource is the one installed in the cluster, so
such an object is untyped below its metadata.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Fields(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base: JSON names in camel case, unknown fields skipped."""


class OwnerReference(Fields, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Fields, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    def controller(self) -> OwnerReference | None:
        """Return the controller of the object."""
        for owner in self.owner_references or ():
            if owner.controller:
                return owner
        return None


class Object(Fields, frozen=True):
    """Any object with metadata; used for objects whose other fields cannot be read."""

    metadata: Metadata = Metadata()


class Condition(Fields, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class ManagedField(Fields, frozen=True):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="fieldsV1")


class TargetMetadata(Metadata, frozen=True):
    annotations: dict[str, str] | None = None
    managed_fields: list[ManagedField] | None = None


class Untyped(Object, frozen=True):
    """An object of a custom kind whose schema is the one installed in the cluster."""

    spec: Any = None
    status: Any = None


class AnnotatedObject(Object, frozen=True):
    """An object of which only metadata are read."""

    metadata: TargetMetadata = TargetMetadata()


class AnnotatedMetadata(Metadata, frozen=True):
    annotations: dict[str, str] | None = None


class Dataset(Object, frozen=True):
    """A Dataset of Fluid, of which also an annotation counts."""

    metadata: AnnotatedMetadata = AnnotatedMetadata()
    spec: Any = None
    status: Any = None


class ConfigMap(Object, frozen=True):
    data: dict[str, str] | None = None


class ListMetadata(Fields, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class Page(Fields, frozen=True):
    """One page of a list. Items are decoded one by one, so that an invalid item does not affect others."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class Event(Fields, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusObject(Fields, frozen=True):
    """The object of an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
