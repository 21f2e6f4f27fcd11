"""An HPA that does not follow, end to end: the whole daemon in KEDA mode on a real API server.

KEDA and the HPA controller do not run. The tests scale as they would, or not.
"""

from typing import Any

import pytest

from autoscaler.config.settings import Mode
from tests.adapters.kubernetes.world import KEDA
from tests.integration.answers import TRIGGER, answers, scaled
from tests.integration.cluster import GPU, L4, SATURATED, Cluster, Daemon, Run

pytestmark = pytest.mark.integration


async def follow(cluster: Cluster, daemon: Daemon, turns: int, *names: str) -> None:
    """Pass time while the HPAs of these workloads follow the answers."""
    for _ in range(turns):
        await cluster.turn()
        for name, answer in zip(names, answers(daemon, *names), strict=True):
            await cluster.site.scale(name, answer, by="kube-controller-manager")


async def follow_until_warned(cluster: Cluster, daemon: Daemon, warning: str, workload: str, *names: str) -> None:
    """As `follow`, until the workload has a warning with this text; on a busy machine watches tell of changes later."""
    for _ in range(20):
        if warning in daemon.warnings(workload):
            return
        await follow(cluster, daemon, 1, *names)
    pytest.fail(f"no warning of {workload} has {warning!r}: {daemon.warnings(workload)!r}")


async def test_replicas_that_an_hpa_keeps_hold_their_gpus(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 8}, L4)
    await scaled(cluster, "kept", replicas=6)
    await scaled(cluster, "busy", replicas=1)
    cluster.load = {("kept",): 9, ("busy",): 9}
    async with run(mode=Mode.KEDA) as daemon:
        await follow(cluster, daemon, 20, "busy")
        await follow_until_warned(cluster, daemon, "KEDA's HPA has kept 6 replicas for ", "kept", "busy")
        assert (answers(daemon, "kept", "busy"), await cluster.counts("kept")) == ([1, 1], [6])
        cluster.load["busy",] = SATURATED
        await follow(cluster, daemon, 4, "busy")
        assert answers(daemon, "kept", "busy") == [1, 2]
        assert "the pool of 8 NVIDIA-L4 allocates 2 of 4" in daemon.sentence("busy")
        await follow(cluster, daemon, 4, "kept", "busy")
        assert await cluster.counts("kept", "busy") == [1, 4]
        assert "HPA" not in daemon.warnings("kept")


NOTE = "autoscaling.keda.sh/"
OFF = {"scaleDown": {"selectPolicy": "Disabled"}}
HOLDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paused": ({"metadata": {"annotations": {f"{NOTE}paused": "true"}}}, {}),
    "paused at its count": ({"metadata": {"annotations": {f"{NOTE}paused-replicas": "6"}}}, {}),
    "paused in one direction": ({"metadata": {"annotations": {f"{NOTE}paused-scale-in": "true"}}}, {"behavior": OFF}),
    "direction disabled": ({}, {"behavior": OFF}),
    "another trigger": ({"spec": {"triggers": [TRIGGER, {"type": "cron", "metadata": {"desiredReplicas": "6"}}]}}, {}),
    "a formula": ({"spec": {"advanced": {"scalingModifiers": {"formula": "a * 6", "target": "1"}}}}, {}),
}
"""What holds a count in KEDA, by changes of the ScaledObject and of its HPA."""


@pytest.mark.parametrize(
    "hold",
    [
        hold if hold in ("paused", "direction disabled") else pytest.param(hold, marks=pytest.mark.long)
        for hold in HOLDS
    ],
)
async def test_count_that_keda_holds_keeps_its_gpus_at_once(cluster: Cluster, run: Run, hold: str):
    scaled_object, hpa = HOLDS[hold]
    await cluster.node("a", {GPU: 8}, L4)
    await scaled(cluster, "kept", replicas=6)
    await scaled(cluster, "busy", replicas=1)
    await cluster.site.patch("ScaledObject", "kept", scaled_object)
    await cluster.site.patch("HorizontalPodAutoscaler", "keda-hpa-kept", {"spec": hpa}, "autoscaling/v2")
    cluster.load = {("kept",): 9, ("busy",): SATURATED}
    async with run(mode=Mode.KEDA) as daemon:
        for _ in range(6):
            await follow(cluster, daemon, 1, "busy")
            assert answers(daemon, "busy")[0] <= 2
        assert await cluster.counts("kept", "busy") == [6, 2]
        if not hold.startswith("a"):  # with another trigger or a formula, KEDA is told the daemon's own wish
            assert answers(daemon, "kept") == [6]


async def test_a_count_that_a_fallback_holds_keeps_its_gpus(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 8}, L4)
    await scaled(cluster, "kept", replicas=6)
    await scaled(cluster, "busy", replicas=1)
    condition = {"type": "Fallback", "status": "True", "reason": "FallbackExists", "message": "m"}
    await cluster.api.set_status(KEDA, "ScaledObject", cluster.namespace, "kept", {"conditions": [condition]})
    cluster.load = {("kept",): 9, ("busy",): SATURATED}
    async with run(mode=Mode.KEDA) as daemon:
        await follow(cluster, daemon, 6, "busy")
        assert await cluster.counts("kept", "busy") == [6, 2]
        assert "uses its fallback, because KEDA got no answer" in daemon.sentence("kept")
