"""The tutorial as far as it goes without a container engine: its objects in a real API server, and a daemon on them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.adapters.kubernetes.world import LATER, RUNNING_STATUS, SCHEDULED, condition
from tests.harness.process import eventually
from tests.integration.site import Site

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials" / "kind"
TUTORIAL = FOLDER.with_suffix(".md").read_text()


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("name", ["model.yaml", "load.yaml"])
async def test_objects_are_taken_by_the_api_server(site: Site, name: str):
    assert f"kubectl apply -f docs/tutorials/kind/{name}" in TUTORIAL
    await site.api.apply(*manifests(name), namespace=site.namespace)


async def started(site: Site) -> None:
    """Do what controllers and kubelet do for the Deployment: one ReplicaSet, one ready pod of its template."""
    deployment = await site.api.get("apps/v1", "Deployment", site.namespace, "my-model")
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": deployment["spec"], "metadata": {}}
    replica_set["spec"] = {name: deployment["spec"][name] for name in ("replicas", "selector", "template")}
    replica_set["metadata"] = {"name": "my-model-1", "ownerReferences": [owned_by(deployment)]}
    (replica_set,) = await site.api.apply(replica_set, namespace=site.namespace)
    template = deployment["spec"]["template"]
    metadata = {"name": "my-model-1-0", **template["metadata"], "ownerReferences": [owned_by(replica_set)]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": "node-1"}}
    metadata.pop("creationTimestamp", None)
    await site.api.apply(pod, namespace=site.namespace)
    conditions = [SCHEDULED, condition("Ready", "True", LATER)]
    address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    await site.status("my-model-1-0", RUNNING_STATUS | address | {"conditions": conditions})


def owned_by(owner: dict[str, Any]) -> dict[str, object]:
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"]}
    return {**reference, "uid": metadata["uid"], "controller": True}


async def test_model_is_scaled_when_it_is_annotated_as_shown(site: Site):
    await site.api.apply(*manifests("model.yaml"), namespace=site.namespace)
    shown = "vllm-autoscaler.io/policy=interactive vllm-autoscaler.io/max-replicas=6"
    assert f"kubectl annotate --overwrite deployment my-model {shown}" in TUTORIAL
    notes = dict(each.split("=") for each in shown.split())
    notes["vllm-autoscaler.io/metrics-port"] = site.port  # of the server that stands for the pod's own port
    await site.patch("Deployment", "my-model", {"metadata": {"annotations": notes}}, "apps/v1")
    await started(site)
    site.load("saturated")
    policies = FOLDER.parents[2] / "policies"
    async with site.daemon(await site.user(), "direct", "--scrape", "--policies", policies) as daemon:
        await eventually(lambda: grown(site), "the queue orders replicas")
        answer = await daemon.workload(site.namespace, "my-model")
    assert answer["workload"]["policy"] == "interactive"
    assert answer["workload"]["wanted"] <= 6


async def grown(site: Site) -> bool:
    return await site.replicas("my-model") > 1
