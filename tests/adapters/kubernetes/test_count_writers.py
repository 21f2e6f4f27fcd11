"""What a foreign count means, by the managedFields that a real API server writes for requests like those of tools."""

from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.target_objects import TargetObject as Decoded
from autoscaler.adapters.kubernetes.count_writers import UNNAMED, Meaning, Writer, read_meaning
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT, Target, read_target
from tests.adapters.kubernetes.world import World
from tests.harness.kube_api import KubeApi

PERSON, CONTROLLER, MANIFEST, CARRIED = Meaning.PERSON, Meaning.CONTROLLER, Meaning.MANIFEST, Meaning.CARRIED
SCALE, WHOLE, APPLIED = ("Update", "scale"), ("Update", ""), ("Apply", "")


@pytest.mark.parametrize(
    ("manager", "how", "replicas", "redeployed", "declared", "meaning"),
    [
        ("kubectl", SCALE, 6, False, 1, PERSON),
        ("kubectl", ("Apply", "scale"), 6, False, 1, PERSON),
        ("kubectl-edit", WHOLE, 6, True, 1, PERSON),
        ("kubectl-patch", WHOLE, 0, False, 1, PERSON),
        ("argocd-server", WHOLE, 6, False, 1, PERSON),
        ("Mozilla", SCALE, 6, False, 1, PERSON),
        ("", ("", "scale"), 0, False, 1, PERSON),
        ("", ("", "scale"), 1, False, 4, CARRIED),  # a default
        ("", ("", "scale"), 7, False, 4, PERSON),
        ("kubectl", SCALE, 1, True, 1, PERSON),  # two writes that the watch has shown as one
        ("kube-controller-manager", SCALE, 6, False, 1, CONTROLLER),
        ("keda", SCALE, 6, False, 1, CONTROLLER),
        ("py-kube-downscaler", WHOLE, 0, False, 1, CONTROLLER),
        ("manager", WHOLE, 1, False, 1, CONTROLLER),
        ("my-operator", WHOLE, 1, True, 1, CARRIED),
        ("my-operator", APPLIED, 1, False, 1, CARRIED),
        ("my-pipeline", WHOLE, 1, True, None, CARRIED),
        ("my-pipeline", WHOLE, 1, False, None, PERSON),
        ("kubectl", APPLIED, 1, False, 1, CARRIED),
        ("kubectl-client-side-apply", WHOLE, 1, False, None, CARRIED),
        ("kubectl-replace", WHOLE, 1, False, 1, CARRIED),
        ("helm", WHOLE, 1, True, 1, CARRIED),
        ("helm", WHOLE, 3, True, 1, CARRIED),  # also a count that is new in the chart comes with a deployment
        ("helm", WHOLE, 3, False, 1, MANIFEST),
        ("helm", WHOLE, 0, True, 1, MANIFEST),
        ("helm", WHOLE, 0, False, None, MANIFEST),
        ("helm", WHOLE, 0, True, None, CARRIED),
        ("helm", WHOLE, 0, True, 0, CARRIED),  # the chart leaves the count to an autoscaler
        ("argocd-controller", APPLIED, 1, False, 1, CARRIED),
        ("kustomize-controller", SCALE, 1, False, 1, CARRIED),
        ("Terraform", APPLIED, 1, False, 1, CARRIED),
        ("HashiCorp", WHOLE, 1, False, 1, CARRIED),
        ("velero-server", WHOLE, 1, False, None, CARRIED),
    ],
)
def test_meaning_of_a_count(
    manager: str, how: tuple[str, str], replicas: int, redeployed: bool, declared: int | None, meaning: Meaning
):
    writer = Writer(manager, *how)
    assert read_meaning(writer, replicas, redeployed=redeployed, declared=declared, default=1) is meaning


STRATEGIC, MERGE = "application/strategic-merge-patch+json", "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Requests:
    """Requests about one Deployment like those of kubectl and of tools."""

    def __init__(self, api: KubeApi, world: World, path: str) -> None:
        self._api, self._world, self._path = api, world, path

    async def read(self) -> Target:
        answer = await self._api.request("GET", self._path)
        return read_target(DEPLOYMENT, msgspec.json.decode(msgspec.json.encode(answer), type=Decoded))

    async def patch(self, kind: str, by: str, image: str, where: str = "", **spec: Any) -> None:
        template = {"spec": {"containers": [{"name": "vllm", "image": image}]}}
        body: dict[str, Any] = {"spec": {**spec, **({"template": template} if image else {})}}
        options = {"fieldManager": by}
        if kind == APPLY:
            options["force"] = "true"
            about = ("autoscaling/v1", "Scale") if where else ("apps/v1", "Deployment")
            body |= {"apiVersion": about[0], "kind": about[1], "metadata": {"name": "llama"}}
        await self._api.request("PATCH", self._path + where, body, content_type=kind, **options)

    async def put(self, by: str, image: str, replicas: int | None) -> None:
        whole = await self._api.request("GET", self._path)
        whole["spec"].pop("replicas") if replicas is None else whole["spec"].update(replicas=replicas)
        if image:
            whole["spec"]["template"]["spec"]["containers"][1]["image"] = image
        await self._api.request("PUT", self._path, whole, fieldManager=by)


@pytest.mark.integration
async def test_writers_are_read_as_the_api_server_states_them(kube_api: KubeApi, world: World):
    await world.deployment("llama")
    path = await kube_api.path("apps/v1", "Deployment", world.namespace, "llama")
    requests = Requests(kube_api, world, path)
    patch, put = requests.patch, requests.put
    recorded = [
        (patch(MERGE, "kubectl", "", "/scale", replicas=6), Writer("kubectl", "Update", "scale"), False),
        (patch(APPLY, "kubectl", "", "/scale", replicas=5), Writer("kubectl", "Apply", "scale"), False),
        (patch(STRATEGIC, "helm", "b", replicas=1), Writer("helm", "Update"), True),
        (patch(STRATEGIC, "kubectl-edit", "", replicas=4), Writer("kubectl-edit", "Update"), False),
        (patch(APPLY, "argocd-controller", "c", replicas=2), Writer("argocd-controller", "Apply"), True),
        (patch(APPLY, "argocd-controller", "c", replicas=3), Writer("argocd-controller", "Apply"), False),
        (patch(APPLY, "argocd-controller", "c"), UNNAMED, False),  # the default came back
        (put("Terraform", "", 5), Writer("Terraform", "Update"), False),
        (patch(APPLY, "flux", "c", replicas=5), Writer("Terraform", "Update"), False),  # both own it now
        (put("my-pipeline", "d", None), Writer("my-pipeline", "Update"), True),
        (patch(MERGE, "kubectl", "", "/scale", replicas=0), UNNAMED, False),
        (patch(MERGE, "kubectl", "", "/scale", replicas=2), UNNAMED, False),  # nobody is named after such a zero
        (patch(STRATEGIC, "kubectl-rollout", "e"), UNNAMED, True),
    ]
    before = await requests.read()
    for request, writer, redeployed in recorded:
        await request
        now = await requests.read()
        assert (now.writer, now.template_digest != before.template_digest) == (writer, redeployed)
        before = now
