"""Rules of owners: the evaluator beside the real KEDA and HPA controller, on the same series in a real Prometheus."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.config.rules.read import read_objects
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually
from tests.harness.prometheus import prometheus
from tests.harness.promql import Target
from tests.keda.site import opened
from tests.lab.replay.synthetic import FakeView

pytestmark = pytest.mark.keda

SOON_S, STAYS_S = 120, 4  # a sync a second
SETTLED_S = 90  # of the evaluator, whose syncs are 15 s apart
WAITING, RUNNING = "sum(vllm:num_requests_waiting)", "sum(vllm:num_requests_running)"
HELD = "sum(inference_extension_flow_control_queue_size)"
QUICK = {
    "scaleUp": {"policies": [{"type": "Pods", "value": 50, "periodSeconds": 1}]},
    "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}]},
}
Phase = dict[str, float]


def trigger(query: str, threshold: str, metric_type: str = "AverageValue", name: str = "", **more: str) -> Any:
    metadata = {"query": query, "threshold": threshold, **more}
    found = {"type": "prometheus", "metricType": metric_type, "metadata": metadata}
    return {**found, "name": name} if name else found


RULES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[Phase]]] = {
    "two triggers and a tolerance": (
        [trigger(WAITING, "5"), trigger(RUNNING, "8")],
        {"minReplicaCount": 1, "maxReplicaCount": 12},
        [
            {"waiting": 12},
            {"waiting": 16.4},  # 1.09 of three times five
            {"waiting": 16.6},
            {"waiting": 3, "running": 50},
            {"running": 500},
            {"running": 76},
            {},
        ],
    ),
    "target of type Value": (
        [trigger(WAITING, "5", "Value")],
        {"minReplicaCount": 2, "maxReplicaCount": 12},
        [{"waiting": 5.4}, {"waiting": 30}, {"waiting": 5}, {"waiting": 1}],
    ),
    "formula": (
        [trigger(WAITING, "5", name="queue"), trigger(RUNNING, "8", name="busy")],
        {
            "minReplicaCount": 1,
            "maxReplicaCount": 12,
            "scalingModifiers": {"formula": "busy > 30 ? 6 : max([queue / 5, 1])", "target": "1"},
        },
        [{"waiting": 12}, {"waiting": 1, "running": 40}, {}],
    ),
    "fallback": (
        [trigger(f"{WAITING} > 3", "5", ignoreNullValues="false")],
        {"minReplicaCount": 1, "maxReplicaCount": 12, "fallback": {"failureThreshold": 2, "replicas": 6}},
        [{"waiting": 12}, {"waiting": 2}, {"waiting": 22}],
    ),
    "zero and back": (
        [trigger(HELD, "5", activationThreshold="2"), trigger(WAITING, "5")],
        {"minReplicaCount": 0, "maxReplicaCount": 12, "cooldownPeriod": 3},
        [{"waiting": 12}, {"held": 1}, {"held": 2}, {"held": 14}, {"waiting": 1}, {}],
    ),
}


def expose(phase: Phase) -> str:
    names = {
        "vllm:num_requests_waiting": "waiting",
        "vllm:num_requests_running": "running",
        "inference_extension_flow_control_queue_size": "held",
    }
    return "".join(f"# TYPE {name} gauge\n{name} {phase.get(key, 0)}\n" for name, key in names.items())


class Evaluated:
    """The evaluator with one series of each metric, as the Prometheus of this test has."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        (rule,), problems = read_objects([manifest])
        assert not problems
        self._rule = OwnRule(RuleSetting(rule, 0.0), 1)
        self._view = FakeView(desired=1, ready=1)

    def settle(self, phase: Phase) -> int:
        """Return the count at which this phase ends."""
        view = self._view
        for _ in range(SETTLED_S):
            view.scrape(
                view.now_s + 1.0,
                running=np.array([float(phase.get("running", 0))]),
                waiting=np.array([float(phase.get("waiting", 0))]),
                gateway_waiting=float(phase.get("held", 0)),
            )
            view.desired = view.ready = self._rule.step(view.now_s, view, view.desired)
        return view.desired


async def test_counts_are_those_of_keda(keda_api: KubeApi, tmp_path: Path) -> None:
    """All rules at the same time, each in a namespace of its own: nearly all of a phase is waiting."""
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(RULES):
            directory = tmp_path / str(number)
            directory.mkdir()
            group.create_task(follow(name, keda_api, directory))


async def follow(name: str, api: KubeApi, directory: Path) -> None:
    """Have KEDA and the evaluator scale by the same rule, and compare their counts after each phase."""
    triggers, given, phases = RULES[name]
    modifiers = {key: given[key] for key in given.keys() & {"scalingModifiers"}}
    spec = {key: value for key, value in given.items() if key not in modifiers}
    spec |= {"pollingInterval": 1, "advanced": {"horizontalPodAutoscalerConfig": {"behavior": QUICK}, **modifiers}}
    async with opened(api, directory) as site, prometheus(directory, Target(site.metrics.address)) as server:
        site.metrics.serve("/metrics", expose({}))
        await site.workload()
        await server.wait_for(WAITING, timeout_s=SOON_S)
        triggers = [{**each, "metadata": {**each["metadata"], "serverAddress": server.url}} for each in triggers]
        manifest = {
            "kind": "ScaledObject",
            "metadata": {"name": "llama"},
            "spec": {"scaleTargetRef": {"name": "llama"}, "triggers": triggers, **spec},
        }
        evaluated = Evaluated(manifest)
        site.metrics.serve("/metrics", expose(phases[0]))
        await site.scaled_object("llama", "llama", *triggers, **spec)
        for number, phase in enumerate(phases):
            site.metrics.serve("/metrics", expose(phase))
            expected = evaluated.settle(phase)
            where = f"{name}: {expected} replicas in phase {number}, {phase}"
            await eventually(lambda expected=expected: site.has(expected), where, SOON_S)
            await asyncio.sleep(STAYS_S)  # some syncs, after which it is still there
            assert await site.has(expected), where
