"""GPUs that owners lend, and take back: the whole daemon on a real API server, beside a small cluster.

Kueue does not run. Its queues have no pods but those of the daemon's workloads, so their status is that of idle queues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from autoscaler.adapters.kubernetes.quotas.kueue import QUEUE_LABEL
from tests.adapters.kubernetes.quotas.world import groups
from tests.harness.kube_api import KubeApi
from tests.integration.cluster import GPU, L4, SATURATED, Cluster, Run

pytestmark = pytest.mark.integration

KUEUE = "kueue.x-k8s.io/v1beta2"
IDLE = 2  # requests in flight, for which one replica suffices
OWNERS = ("prod", "research")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(shared_kube_api: KubeApi) -> AsyncIterator[None]:
    """A cluster with the kinds of Kueue."""
    await shared_kube_api.install_crds("quotas/kueue")
    yield
    await shared_kube_api.remove_crds("quotas/kueue")


async def write_queues(cluster: Cluster, nominal: int, **research: int) -> list[str]:
    """Create a ClusterQueue and a LocalQueue of each owner, in one cohort. Return the names of the ClusterQueues."""
    for owner in OWNERS:
        queue = f"{owner}-{cluster.namespace}"
        quota = {"nominalQuota": nominal, **(research if owner == "research" else {})}
        spec = {"cohortName": cluster.namespace, "resourceGroups": groups({"any": quota})}
        metadata = {"apiVersion": KUEUE, "metadata": {"name": queue}}
        await cluster.api.apply(metadata | {"kind": "ClusterQueue", "spec": spec})
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": owner}}
        await cluster.api.apply(local | {"spec": {"clusterQueue": queue}}, namespace=cluster.namespace)
    return [f"{owner}-{cluster.namespace}" for owner in OWNERS]


def write_file(cluster: Cluster, path: Path, nominal: int) -> Path:
    """Write a file with a quota of each owner, by a label of its workloads."""
    quotas = [
        {"name": owner, "namespaces": [cluster.namespace], "label": f"{QUEUE_LABEL}={owner}", "cohort": "all"}
        | {"resources": [{"name": GPU, "nominal": nominal}]}
        for owner in OWNERS
    ]
    path.write_text(yaml.safe_dump({"apiVersion": "vllm-autoscaler.io/v1", "kind": "Quotas", "quotas": quotas}))
    return path


async def owned(cluster: Cluster, name: str, owner: str, requests: float) -> None:
    await cluster.workload(name)
    await cluster.site.patch("Deployment", name, {"metadata": {"labels": {QUEUE_LABEL: owner}}}, "apps/v1")
    cluster.load[name,] = requests


@pytest.mark.parametrize("source", ["Kueue", pytest.param("file", marks=pytest.mark.long)])
async def test_lent_gpus_go_back_when_their_owner_needs_them(
    cluster: Cluster, run: Run, served: None, tmp_path: Path, source: str
):
    """Each owner has four of eight GPUs."""
    await cluster.node("a", {GPU: 8}, L4)
    await owned(cluster, "chat", "prod", IDLE)
    await owned(cluster, "batch", "research", 64)
    queues, path = [], None
    if source == "Kueue":
        queues = await write_queues(cluster, nominal=4)
    else:
        path = write_file(cluster, tmp_path / "quotas.yaml", nominal=4)
    try:
        async with run(quota_file=path) as daemon:
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [1, 7], "batch borrows three GPUs"
            cluster.load["chat",] = SATURATED
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [4, 4]
            assert cluster.pending() == []
            limiting = f"ClusterQueue/{queues[1]}" if queues else "quota research"
            assert limiting in daemon.sentence("batch")
            cluster.load["chat",] = IDLE
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [1, 7], "and again"
            assert daemon.readiness()["quota_problems"] == []
            if path is not None:
                path.write_text("{apiVersion: vllm-autoscaler.io/v1, kind: Quotas, quotas: 8}")
                await cluster.turn(3)
                (problem,) = daemon.readiness()["quota_problems"]
                assert problem.startswith(f"{path}:1: error: quotas: of the wrong type")
                assert await cluster.counts("chat", "batch") == [1, 7], "the last valid quotas hold"
    finally:
        for queue in queues:
            await cluster.api.delete(KUEUE, "ClusterQueue", None, queue)


async def test_borrowing_limit_leaves_gpus_idle(cluster: Cluster, run: Run, served: None):
    await cluster.node("a", {GPU: 8}, L4)
    await owned(cluster, "chat", "prod", IDLE)
    await owned(cluster, "batch", "research", 64)
    queues = await write_queues(cluster, nominal=4, borrowingLimit=1)
    try:
        async with run():
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [1, 5]
    finally:
        for queue in queues:
            await cluster.api.delete(KUEUE, "ClusterQueue", None, queue)


async def test_stopped_queue_keeps_its_replicas_until_it_drains(cluster: Cluster, run: Run, served: None):
    await cluster.node("a", {GPU: 8}, L4)
    await owned(cluster, "chat", "prod", SATURATED)
    await owned(cluster, "batch", "research", IDLE)
    queues = await write_queues(cluster, nominal=4)

    async def stop(policy: str) -> None:
        path = await cluster.api.path(KUEUE, "ClusterQueue", None, queues[0])
        patch = {"spec": {"stopPolicy": policy}}
        await cluster.api.request("PATCH", path, patch, content_type="application/merge-patch+json")

    try:
        async with run() as daemon:
            await cluster.settle()
            assert await cluster.counts("chat") == [4]
            await stop("Hold")
            cluster.load["chat",] = 64
            await cluster.settle()
            assert await cluster.counts("chat") == [4]
            assert "its queue is stopped (stopPolicy Hold)" in str(daemon.readiness()["workload_problems"])
            await stop("HoldAndDrain")
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [0, 1]
            await stop("None")
            await cluster.settle()
            assert await cluster.counts("chat", "batch") == [7, 1]
    finally:
        for queue in queues:
            await cluster.api.delete(KUEUE, "ClusterQueue", None, queue)
