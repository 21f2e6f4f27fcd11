"""SECURITY.md names each right of our accounts, and no other: as the manifests and the chart grant them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.harness.helm import template
from tests.kustomize import Document
from tests.test_manifests import MANIFESTS

ROOT = Path(__file__).parents[1]
ROW = re.compile(
    r"^\| `(vllm-autoscaler[a-z-]*)` \| ([^|]+) \| ([a-z:, -]+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE
)
READ_ONLY = MANIFESTS / "targets" / "read.yaml"


class Right(NamedTuple):
    account: str
    kind: str  # "apps/deployments/scale"
    verb: str
    where: str  # "cluster", or a namespace
    names: str  # of the only objects: the first, and the last two digits of the last; "": all


def stated() -> list[Right]:
    """Return the rights of the table."""
    found = []
    for account, kinds, verbs, place in ROW.findall((ROOT / "SECURITY.md").read_text()):
        where, _, names = place.strip().partition(", named ")
        for kind in re.findall(r"`([^`]+)`", kinds):
            rows = (Right(account, kind, verb, where, names.replace("`", "")) for verb in verbs.strip().split(", "))
            found += rows
    return found


def granted(documents: list[Document]) -> set[Right]:
    """Return the rights that bindings grant to accounts."""
    roles = {(each["kind"], each["metadata"]["name"]): each for each in documents if "rules" in each}
    return {
        Right(subject["name"], "/".join(filter(None, (group, kind))), verb, where, shown(rule.get("resourceNames", ())))
        for binding in documents
        if "roleRef" in binding
        for where in [binding["metadata"].get("namespace", "cluster")]
        for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]
        for subject in binding["subjects"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }


def shown(names: Sequence[str]) -> str:
    """Return names as the table does."""
    return f"{names[0]} to -{names[-1][-2:]}" if len(names) > 1 else "".join(names)


def of_file(path: Path) -> list[Document]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def of_manifests() -> set[Right]:
    """Return the rights of all files; each overlay has a ClusterRole of the same name."""
    found, common = set(), []
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        if path.parent.name == "base" and path.parent.parent.name == "weights":
            common += of_file(path)
        elif path.name != "kustomization.yaml":
            found |= granted(of_file(path))
    return found | granted(common)


def test_table_of_rights_is_that_of_the_manifests() -> None:
    assert len(stated()) == len(set(stated())), "a right is in two rows"
    assert set(stated()) == of_manifests()


@pytest.mark.integration
def test_table_of_rights_is_that_of_the_chart() -> None:
    scaled = [right.kind for right in granted(of_file(MANIFESTS / "targets" / "scale.yaml")) if right.verb == "patch"]
    kinds = {".".join(reversed(kind.removesuffix("/scale").split("/"))) for kind in scaled}
    values = {
        "targetKinds": sorted(kinds),
        "requestNodes": "auto",
        "weights": {"enabled": True},
        "rbac": {"kueue": True, "localModels": True, "datasets": True, "podDeletionCost": True},
    }
    variants = [("direct", "1.36.0"), ("keda", "1.35.0"), ("dry-run", "1.35.0")]
    rendered = [template({"mode": mode} | values, kubernetes=version) for mode, version in variants]
    rights = set[Right]().union(*map(granted, rendered))
    assert rights <= set(stated())
    others = {right.kind for right in set(stated()) - rights}
    assert others == {right.kind for right in granted(of_file(READ_ONLY))} - {
        each.removesuffix("/scale") for each in scaled
    }


def test_every_role_that_ships_is_bound() -> None:
    """A Role without a binding would be in no table."""
    for path in MANIFESTS.rglob("*.yaml"):
        documents = of_file(path) if path.name != "kustomization.yaml" else []
        bound = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in documents if "roleRef" in each}
        assert bound == {
            (each["kind"], each["metadata"]["name"])
            for each in documents
            if "rules" in each and "kind" in each and each["kind"] in ("Role", "ClusterRole")
        }, path
