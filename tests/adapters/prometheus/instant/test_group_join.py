"""The quantile of a workload, from the summed buckets of all its pods."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import MEAN_OF_PODS, PrometheusSource
from autoscaler.adapters.prometheus.owners import owner_of
from autoscaler.adapters.prometheus.promql.labels import POD, TARGET
from autoscaler.adapters.prometheus.promql.pod_groups import group_of, with_group_label
from autoscaler.catalog.series import POD_LABELS
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.instant.test_foreign_models import MODELS, reported, serving
from tests.adapters.prometheus.query_server import FLEET, Server, healthy
from tests.adapters.prometheus.responses import vector
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.harness.exposition import exposition_server
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer, Target
from tests.harness.ttft import POOLED_S, ttft_text
from tests.harness.victoria_metrics import victoria_metrics

LONG = "deepseek-r1-distill-qwen-32b-instruct-awq-prefill-of-the-team"  # its pods' names are cut
QUICK_S, SLOW_S = 2.425, 78.0
FIRST, SECOND = "7d9f8b6c5-xk2vz", "6c5d4f7b9-bq4mn"  # of two ReplicaSets
# Of each workload: its pods, the quick one first.
PODS = {
    "llm/chat": [f"chat-{FIRST}", f"chat-{SECOND}"],
    "llm/set": ["set-0", "set-11"],
    f"llm/{LONG}": [f"{LONG[:58]}bq4mn", f"{LONG[:58]}xk2vz"],
    "llm/small": ["small-xk2vz", "small-bq4mn"],
    "llm/twin": [f"twin-{FIRST}"],
    "llm/both": [f"both-{FIRST}"],
    "other/both": [],
    "llm/both-set": ["both-1"],
    "llm/bare": ["bare-one", "bare-two"],
}
QUICK = {members[0] for members in PODS.values() if members} - {"both-1"}


class Scene(NamedTuple):
    server: PromqlServer
    fleet: Fleet
    ttft_s: dict[str, float]  # by pod
    problems: tuple[str, ...]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[prometheus, victoria_metrics])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Return two readings, between which each pod answered 50 requests of its own kind."""
    async with exposition_server() as endpoints:
        texts: dict[str, bool] = {}

        def target(pod: str, quick: bool, **labels: str) -> Target:
            path = f"/{pod}"
            texts[path] = quick
            return Target(endpoints.address, path, {"namespace": "llm", "pod": pod, **labels})

        def serve(times: int) -> None:
            for path, quick in texts.items():
                endpoints.serve(path, ttft_text(50 * times, 0) if quick else ttft_text(0, 50 * times))

        targets = [target(pod, pod in QUICK) for members in PODS.values() for pod in members]
        targets += [target(f"chat-{SECOND[:-1]}z", quick=False, cluster="elsewhere")]
        targets += [target(f"twin-{SECOND}", quick=False)]  # of a cluster that adds no label
        serve(1)
        async with request.param(tmp_path_factory.mktemp("server"), *targets) as server:
            await server.wait_for("up == 1", len(targets))
            await asyncio.sleep(3)
            serve(2)
            fleet = fleet_of(PODS, engine="vllm")
            await server.wait_for("vllm:time_to_first_token_seconds_count == 100", len(targets))
            async with PrometheusSource(PrometheusSettings(url=server.url, rate_window_s=60), SystemClock()) as source:
                for _ in range(2):
                    samples = await undisturbed(server, lambda: source.sample(fleet, objectives(fleet), 10))
            ttft_s = dict(zip((pod.name for pod in fleet.pods), samples.pods.ttft_s.tolist(), strict=True))
            yield Scene(server, fleet, ttft_s, samples.reports[0].problems)


def of(scene: Scene, workload: str) -> list[float]:
    return [scene.ttft_s[pod] for pod in PODS[workload]]


@pytest.mark.integration
@pytest.mark.parametrize("workload", ["llm/chat", "llm/set", f"llm/{LONG}", "llm/small"])
@pytest.mark.asyncio(loop_scope="module")
async def test_quantile_is_that_of_all_pods_together(scene: Scene, workload: str):
    quick, slow = of(scene, workload)
    assert quick == slow == pytest.approx(POOLED_S, abs=1)


@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_pods_keep_own_quantiles_when_names_are_ambiguous(scene: Scene):
    assert of(scene, "llm/twin") == pytest.approx([QUICK_S], abs=0.1)
    assert of(scene, "llm/both") == pytest.approx([QUICK_S], abs=0.1)
    assert of(scene, "llm/both-set") == pytest.approx([SLOW_S], abs=1)


@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_mean_of_pods_is_reported_when_names_do_not_group_them(scene: Scene):
    assert of(scene, "llm/bare") == pytest.approx([QUICK_S, SLOW_S], abs=1)
    assert [line for line in scene.problems if "ttft_s" in line] == [f"ttft_s: llm/bare: {MEAN_OF_PODS}"]


async def test_own_quantiles_are_queried_only_while_groups_are_mixed():
    whole = vector(*(({"namespace": "llm", "group": name}, 9.0) for name in "ab"))
    server = Server(**{'time_to_first_token.*"group"': whole, "time_to_first_token_seconds_bucket": 5.0, **healthy()})

    async def queried(source: PrometheusSource, fleet: Fleet) -> tuple[int, list[float]]:
        server.queried.clear()
        ttft_s = (await source.sample(fleet, objectives(fleet), 60)).pods.ttft_s.tolist()
        return sum("time_to_first_token_seconds_bucket" in form["query"] for form in server.queried), ttft_s

    odd = fleet_of({"llm/a": ["a-0"], "llm/a-too": ["a-1"], "llm/b": ["b-0"]})
    async with server.source() as source:
        assert await queried(source, FLEET) == (1, [9.0, 9.0, 9.0])
        assert await queried(source, odd) == (1, pytest.approx([math.nan, math.nan, 9.0], nan_ok=True))
        assert await queried(source, odd) == (2, [5.0, 5.0, 9.0])
        await queried(source, FLEET)
        assert await queried(source, FLEET) == (1, [9.0, 9.0, 9.0])


async def test_pods_keep_own_quantiles_when_group_series_are_foreign():
    whole = vector(({"namespace": "llm", "group": "a"}, 9.0))
    answers = {'time_to_first_token.*"group"': whole, "time_to_first_token_seconds_bucket": 5.0, **healthy()}
    models = {MODELS: reported(a_0="a", a_1="other", b_0="a")}
    fleet = serving("a")
    async with Server(**models, **answers).source() as source:
        for _ in range(2):
            samples = await source.sample(fleet, objectives(fleet), 60)
    assert samples.pods.ttft_s[:2] == pytest.approx([5.0, math.nan], nan_ok=True)


async def test_a_pod_that_left_the_fleet_mixes_no_group():
    whole = vector(({"namespace": "llm", "group": "a"}, 9.0))
    server = Server(**{'time_to_first_token.*"group"': whole, **healthy()})
    async with server.source() as source:
        await source.sample(FLEET, objectives(FLEET), 60)
        fewer = fleet_of({"llm/a": ["a-0"]})
        assert (await source.sample(fewer, objectives(fewer), 60)).pods.ttft_s.tolist() == [9.0]


NAMES = [
    (f"chat-{FIRST}", "chat"),
    ("qwen-7b-7d9f8b6c5-xk2vz", "qwen-7b"),
    ("set-0", "set"),
    ("set-1-12", "set-1"),
    ("x-24-56789", "x"),
    (f"{LONG[:58]}bq4mn", LONG[:58]),
    ("small-xk2vz", "small"),
    ("router", "router"),
    ("Ü-0", "Ü"),
]


@pytest.mark.parametrize(("pod", "group"), NAMES)
def test_pods_are_grouped_without_controller_suffixes(pod: str, group: str):
    assert group_of({"namespace": "llm", "pod": pod}, POD, POD_LABELS)[0] == group
    by_name = owner_of("llm", pod, "", ("", ""), {})
    assert by_name.kind == "Model" or group.startswith(by_name.name)


def test_groups_are_separated_by_all_labels_but_the_pod():
    own_pods = {"namespace": "llm", "pod": "a-0", "job": "x"}
    other_groups = [{**own_pods, label: "other"} for label in ("namespace", "job", "cluster", "exported_namespace")]
    groups = {group_of(labels, POD, POD_LABELS) for labels in (own_pods, {**own_pods, "pod": "a-1"}, *other_groups)}
    assert len(groups) == 5
    moved = {"namespace": "llm", "pod": "collector-0", "exported_namespace": "llm", "exported_pod": "a-0"}
    assert group_of(moved, POD, POD_LABELS)[0] == "a"
    assert group_of({"job": "x", "instance": "1"}, TARGET, POD_LABELS)[0] == "targets"
    assert re.findall(r'"(\w+)", "\(', with_group_label("up", POD, POD_LABELS[2:4])) == ["pod", "k8s_pod_name"]


def test_the_server_and_the_client_name_groups_alike():
    pod = {"namespace": "llm", "pod": f"chat-{FIRST}", "job": "x"}
    whole = {"namespace": "llm", "group": "chat", "job": "x"}
    assert group_of(pod, POD, POD_LABELS) == group_of(whole, POD, POD_LABELS)
    assert np.unique([len(group_of(each, POD, POD_LABELS[:1])) for each in (pod, whole)]).tolist() == [len(POD)]
