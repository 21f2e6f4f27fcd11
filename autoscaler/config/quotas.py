"""Quotas of GPUs that the operator states in a file: one document, with the manners of policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from autoscaler.config.findings import Finding, shown
from autoscaler.config.policy.parse import check_document, load_document
from autoscaler.config.policy.reload import Monotonic, ReloadedFiles
from autoscaler.config.policy.schema import API_VERSION, Section, fault
from autoscaler.config.values import NAME, NAMESPACES, FieldKind, Integer, OneOf, Pattern, namespace_pattern
from autoscaler.config.yaml import Document

KIND = "Quotas"
MAX_QUOTAS, MAX_RESOURCES, MAX_NAMESPACES = 1000, 64, 256
MAX_DEVICES = 1_000_000
DEVICES = Integer(0, MAX_DEVICES)
RESOURCE = Pattern(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "the full name of a resource, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
    "not the name of an extended resource",
)
LABEL = Pattern(
    r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}"
    r"[A-Za-z0-9])?)?",
    "a label as KEY=VALUE, such as team=a",
    "not a label",
)


@dataclass(frozen=True)
class Namespaces(FieldKind):
    """A list of namespaces, exact or with `*`."""

    allowed: str = f"a list of 1 to {MAX_NAMESPACES} namespaces, or patterns such as team-a-*"

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError("not a list")
        if not 0 < len(value) <= MAX_NAMESPACES:
            raise ValueError(f"{len(value)} namespaces")
        for each in value:
            try:
                NAMESPACES.read(each)
            except ValueError:
                raise ValueError(f"{shown(each)} is no namespace") from None
        return tuple(value)

    def show(self, value: tuple[str, ...]) -> str:
        return ", ".join(value)


class StatedResource(Section):
    """The devices of one resource."""

    name: Annotated[str, RESOURCE] = Field(description="Name of the resource.")
    nominal: Annotated[int, DEVICES] = Field(description="Devices that the owner may use at any time.")
    borrowing_limit: Annotated[int | None, DEVICES] = Field(
        default=None, description="Most devices beyond them that are borrowed in the cohort. Left out: no limit."
    )
    lending_limit: Annotated[int | None, DEVICES] = Field(
        default=None, description="Most of the nominal devices that are lent. Left out: all of them."
    )


class StatedQuota(Section):
    """The quota of one owner."""

    name: Annotated[str, NAME] = Field(description="Name of the owner.")
    namespaces: Annotated[tuple[str, ...], Namespaces()] = Field(
        description="Namespaces of its workloads; `*` stands for any characters."
    )
    label: Annotated[str | None, LABEL] = Field(
        default=None, description="Label that its workloads have. Left out: all workloads of the namespaces."
    )
    cohort: Annotated[str | None, NAME] = Field(
        default=None, description="Owners of one cohort lend each other what they do not use. Left out: none."
    )
    resources: Annotated[tuple[StatedResource, ...], Field(max_length=MAX_RESOURCES)] = Field(
        description="Its devices, by resource."
    )

    @model_validator(mode="after")
    def _consistent(self) -> StatedQuota:
        names = [each.name for each in self.resources]
        if not names:
            raise fault("resources", "empty", "at least one resource")
        if len(set(names)) < len(names):
            raise fault("resources", "a resource is given twice", "each resource once")
        if not self.cohort and any(each.borrowing_limit or each.lending_limit for each in self.resources):
            raise fault("resources", "a borrowing or lending limit without a cohort", "a cohort as well")
        return self

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a workload is charged to this quota."""
        if self.label is not None:
            key, _, value = self.label.partition("=")
            if labels.get(key) != value:
                return False
        return any(namespace_pattern(pattern).match(namespace) for pattern in self.namespaces)


class QuotaFile(Section):
    """The document."""

    api_version: Annotated[str, OneOf((API_VERSION,))] = Field(description="Version of this format.")
    kind: Annotated[str, OneOf((KIND,))] = Field(description="Kind of the document.")
    quotas: Annotated[tuple[StatedQuota, ...], Field(max_length=MAX_QUOTAS)] = Field(
        description="Quotas; the first that matches a workload charges it."
    )

    @model_validator(mode="after")
    def _unique(self) -> QuotaFile:
        names = [quota.name for quota in self.quotas]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise fault("quotas", f"two quotas are named {twice}", "each name once")
        return self


class QuotaFiles(ReloadedFiles[tuple[StatedQuota, ...]]):
    """Keeps the last valid quotas of a file."""

    def __init__(self, path: Path, clock: Monotonic) -> None:
        """Load the quotas. Raises PolicyError, which stops the start."""
        super().__init__((path,), clock, lambda: load_quotas(path))


def load_quotas(path: Path) -> tuple[StatedQuota, ...]:
    """Read the quotas of a file. Raises PolicyError with all findings; then nothing is loaded."""
    return load_document(path, QuotaFile, KIND).quotas


def check_quotas(document: Document, _book: object = None) -> Iterator[Finding]:
    """Find what is wrong with a document of quotas."""
    return check_document(document, QuotaFile, KIND)
