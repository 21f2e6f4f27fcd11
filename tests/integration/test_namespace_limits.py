"""Limits on what workloads claim, end to end: the whole daemon on a real API server, beside a small cluster."""

import pytest

from tests.harness.process import eventually
from tests.integration.cluster import GPU, L4, Cluster, Run
from tests.integration.site import POLICY

pytestmark = pytest.mark.integration


async def test_stated_priority_counts_up_to_the_limit_of_its_namespace(cluster: Cluster, run: Run):
    """Two workloads need four GPUs each, and there are five. The limit is raised while the daemon runs."""
    folder = cluster.site.directory / "policies"
    folder.mkdir()
    (folder / "quick.yaml").write_text(POLICY)

    def limit(priority: int) -> None:
        head = "apiVersion: vllm-autoscaler.io/v1\nkind: NamespaceLimits\nmetadata: {name: tenants}\n"
        entry = f"{{name: {cluster.namespace}, maxPriority: {priority}}}"
        (folder / "limits.yaml").write_text(f"{head}spec: {{namespaces: [{entry}]}}\n")

    limit(100)
    await cluster.node("a", {GPU: 5}, L4)
    await cluster.pressed("modest", 100)
    async with run(policy=folder) as daemon:
        await cluster.settle()
        await cluster.pressed("greedy", 5000)
        await cluster.settle()
        assert sorted(await cluster.counts("modest", "greedy")) == [2, 3]
        told = f"priority: too high for the namespace '{cluster.namespace}', so 100 counts, found 5000"
        assert daemon.sentence("greedy").endswith(f" But {told}; allowed: at most 100.")
        (event,) = await eventually(lambda: cluster.site.events("ProblemDetected"), "an Event")
        assert event["regarding"]["name"] == "greedy" and told in event["note"]
        limit(5000)
        await cluster.settle()
        assert await cluster.counts("modest", "greedy") == [1, 4]
        assert "too high" not in daemon.sentence("greedy")
