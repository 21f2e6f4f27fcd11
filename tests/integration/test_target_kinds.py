"""Custom scale targets end to end: the command, a real API server with the shipped rights, recorded metrics."""

import pytest
import pytest_asyncio

from tests.adapters.kubernetes.conftest import in_namespace
from tests.adapters.kubernetes.world import READY_STATUS, annotated, shipped_roles, shipped_target_roles, template
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually
from tests.integration.site import Site
from tests.integration.test_direct import ticks

pytestmark = pytest.mark.integration

KINDS = ("rollouts", "rayservices")
ROLLOUT = ("Rollout", "argoproj.io/v1alpha1")
SERVING = READY_STATUS | {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}


@pytest_asyncio.fixture
async def kinds(kube_api: KubeApi) -> None:
    await kube_api.install_crds(*(f"targets/{name}" for name in KINDS))


async def test_rollout_is_scaled_and_its_template_is_not(site: Site, kinds: None):
    """As with `workloadRef` and `scaleDown: onsuccess`: both are annotated, and the Deployment is kept at zero."""
    stated = annotated(policy="quick", metrics_port=site.port)
    await site.deployment("llama", 0, stated)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}
    await site.target("Rollout", "llama", {"replicas": 1, "workloadRef": reference}, "app=llama", stated)
    await site.owned_pod("llama-a-1", "ReplicaSet/llama-a", {"app": "llama"}, SERVING)
    await site.target("RayService", "ray", {"template": template({})}, annotations=annotated(policy="quick"))
    roles = [*in_namespace(shipped_roles("direct"), site.namespace), *shipped_target_roles()]
    user = await site.api.service_account(site.namespace, "wide", *roles)
    async with site.daemon(user, "direct", "--scrape") as daemon:
        await ticks(daemon, 2)
        site.load("saturated")

        async def scaled() -> bool:
            return await site.replicas("llama", *ROLLOUT) == 4

        await eventually(scaled, "four replicas of the Rollout")
        await ticks(daemon, 2)
        assert await site.has(0)
        (owned,) = await eventually(lambda: site.events("OtherOwnerDetected"), "an Event")
        assert owned["note"] == "Rollout/llama owns the replica count; it is left alone."
        problems = (await daemon.readyz())["workload_problems"]
        assert problems[f"{site.namespace}/ray"].startswith("RayService cannot be scaled: it has no scale subresource")
    assert site.api.refused(user) == set()
