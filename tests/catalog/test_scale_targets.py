"""The table of scale targets against resource definitions, rights, and documentation."""

from pathlib import Path

import pytest
import yaml

from autoscaler.catalog.scale_targets import BY_KIND, SCALED, TARGETS, ScaleTarget
from tests.adapters.kubernetes.test_target_kinds import SPECS
from tests.adapters.kubernetes.world import shipped_target_roles
from tests.harness.kube_api import CRDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "scale-targets.md").read_text()
WORDS = " ".join(PAGE.split())
CUSTOM = sorted(kind for kind, each in SCALED.items() if each.group not in ("apps", "leaderworkerset.x-k8s.io"))


def test_every_custom_kind_is_tried_on_an_api_server():
    assert sorted(SPECS) == CUSTOM


@pytest.mark.parametrize("kind", CUSTOM)
def test_paths_are_those_of_the_resource_definition(kind: str):
    crd = yaml.safe_load((CRDS / "targets" / f"{BY_KIND[kind].plural}.yaml").read_text())["spec"]
    scale = crd["versions"][0]["subresources"]["scale"]
    assert scale["specReplicasPath"] == "." + ".".join(BY_KIND[kind].replicas)
    assert scale["labelSelectorPath"] == "." + ".".join(BY_KIND[kind].selector)
    assert (crd["group"], crd["names"]["plural"]) == (BY_KIND[kind].group, BY_KIND[kind].plural)


def test_rights_name_every_custom_kind():
    read, scale = shipped_target_roles()
    custom = [each for each in TARGETS if each.group not in ("apps", "leaderworkerset.x-k8s.io")]
    listed = {f"{name}.{group}" for rule in read["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    assert listed == {each.resource for each in custom}
    scaled = {f"{name}.{group}" for rule in scale["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    assert scaled == {f"{each.plural}/scale.{each.group}" for each in custom if not each.refusal}


@pytest.mark.parametrize("row", TARGETS, ids=lambda row: row.kind)
def test_page_of_scale_targets_has_every_kind(row: ScaleTarget):
    (line,) = (each for each in PAGE.splitlines() if each.startswith(f"| {row.kind} |"))
    if row.refusal:
        assert line.endswith(f"{row.why_refused[0]}; scale {row.why_refused[1]} | `{row.resource}` |")
    else:
        assert line.startswith(f"| {row.kind} | {row.unit} | pods by ")
        assert f" | `.{'.'.join(row.replicas)}` | " in line
        assert not row.selector or f"`.{'.'.join(row.selector)}`" in line
        assert row.kind not in CUSTOM or line.endswith(f"| `{row.resource}` |")
    assert row.group == "apps" or f"{row.kind}: {row.source}" in WORDS
