"""Discovery on a real Prometheus and a real VictoriaMetrics, with and without kube-state-metrics."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.discovery.discovered_fleet import NO_PODS, SILENT, DiscoveredFleet
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.promql.conventions import CONVENTIONS
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet, PendingCause, Pool, WorkloadRef
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.harness.exposition import exposition_server
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer, Target
from tests.harness.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SATURATED = (Path(__file__).parents[3] / "data/vllm/saturated.prom").read_text()
LLAMA = ("llama-7d9c5b6f4-x2x8k", "llama-7d9c5b6f4-b4b4b")
# Metrics of kube-state-metrics v2.20, by its reference: one Deployment of two pods, one of which is on its way,
# a StatefulSet that reports, and a database beside them.
KUBE_STATE = """\
kube_pod_owner{namespace="llm",pod="llama-7d9c5b6f4-x2x8k",owner_kind="ReplicaSet",owner_name="llama-7d9c5b6f4",owner_is_controller="true"} 1
kube_pod_owner{namespace="llm",pod="llama-7d9c5b6f4-b4b4b",owner_kind="ReplicaSet",owner_name="llama-7d9c5b6f4",owner_is_controller="true"} 1
kube_pod_owner{namespace="llm",pod="mixtral-0",owner_kind="StatefulSet",owner_name="mixtral",owner_is_controller="true"} 1
kube_pod_owner{namespace="llm",pod="postgres-0",owner_kind="StatefulSet",owner_name="postgres",owner_is_controller="true"} 1
kube_pod_owner{namespace="shop",pod="cart-0",owner_kind="StatefulSet",owner_name="cart",owner_is_controller="true"} 1
kube_replicaset_owner{namespace="llm",replicaset="llama-7d9c5b6f4",owner_kind="Deployment",owner_name="chat",owner_is_controller="true"} 1
kube_deployment_spec_replicas{namespace="llm",deployment="chat"} 3
kube_statefulset_replicas{namespace="llm",statefulset="mixtral"} 1
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-x2x8k",condition="true"} 1
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-x2x8k",condition="false"} 0
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-b4b4b",condition="true"} 0
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-b4b4b",condition="false"} 1
kube_pod_status_ready{namespace="llm",pod="mixtral-0",condition="true"} 1
kube_pod_created{namespace="llm",pod="llama-7d9c5b6f4-x2x8k"} 1.7e+09
kube_pod_status_ready_time{namespace="llm",pod="llama-7d9c5b6f4-x2x8k"} 1.70000006e+09
kube_pod_container_status_waiting_reason{namespace="llm",pod="llama-7d9c5b6f4-b4b4b",container="vllm",reason="CrashLoopBackOff"} 1
kube_pod_container_resource_requests{namespace="llm",pod="mixtral-0",container="vllm",resource="nvidia_com_mig_3g_40gb",unit="integer"} 1
kube_pod_container_resource_requests{namespace="llm",pod="mixtral-0",container="vllm",resource="memory",unit="byte"} 1e+10
"""  # noqa: E501  as exposed
DCGM = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",modelName="NVIDIA H100",namespace="llm",pod="llama-7d9c5b6f4-x2x8k"} 7
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",modelName="NVIDIA H100",namespace="llm",pod="llama-7d9c5b6f4-x2x8k"} 7
DCGM_FI_DEV_FB_USED{gpu="2",UUID="GPU-3",modelName="NVIDIA H100"} 4
"""
# One backend with several ways in: two jobs with addresses of their own read one pod, and each way names pods
# otherwise. kube-state-metrics keeps its labels nowhere, and two exporters report one device under different names of
# its host.
TWICE, FEDERATED, COLLECTED = "llama-7d9c5b6f4-x2x8k", "phi-6d5c4b7f9-b4b4b", "qwen-5c8d9f7b6-z8z8z"
MOVED = """\
kube_deployment_spec_replicas{namespace="llm",deployment="llama"} 3
kube_deployment_spec_replicas{namespace="monitoring",deployment="other"} 9
kube_replicaset_owner{namespace="llm",replicaset="llama-7d9c5b6f4",owner_kind="Deployment",owner_name="llama",owner_is_controller="true"} 1
kube_pod_owner{namespace="llm",pod="llama-7d9c5b6f4-x2x8k",owner_kind="ReplicaSet",owner_name="llama-7d9c5b6f4",owner_is_controller="true"} 1
kube_pod_owner{namespace="llm",pod="llama-7d9c5b6f4-c5c5c",owner_kind="ReplicaSet",owner_name="llama-7d9c5b6f4",owner_is_controller="true"} 1
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-x2x8k",condition="true"} 1
kube_pod_status_ready{namespace="llm",pod="llama-7d9c5b6f4-c5c5c",condition="true"} 0
"""  # noqa: E501  as exposed


def exporter(**labels: str) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f'DCGM_FI_DEV_FB_USED{{gpu="0",namespace="llm",pod="{TWICE}",{text}}} 7\n'


def labelled(page: str, namespace: str, pod: str) -> str:
    """Return the series of a page with the labels of a pod."""
    series = (line for line in page.splitlines() if "{" in line and not line.startswith("#"))
    return "".join(line.replace("{", f'{{namespace="{namespace}",pod="{pod}",', 1) + "\n" for line in series)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[prometheus, victoria_metrics])
async def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, PromqlServer]]:
    """Five servers: `cluster` scrapes all there is, `pods` the engines alone, `plain` does not know of pods.

    `federated` scrapes what another server knows, without `honor_labels`; `mixed` has a bit of everything.
    """
    async with exposition_server() as endpoints:
        federated = "".join(labelled(SATURATED, "llm", pod) for pod in LLAMA)
        pages = {
            "/moved": MOVED,
            "/dcgm-a": exporter(UUID="GPU-1", Hostname="node-1", modelName="NVIDIA H100"),
            "/dcgm-b": exporter(uuid="GPU-1", hostname="10.0.0.1", modelName="NVIDIA-H100"),
            "/phi": labelled(SATURATED, "edge", FEDERATED),
        }
        pages |= {"/vllm": SATURATED, "/federate": federated, "/kube-state": KUBE_STATE, "/dcgm": DCGM}
        for path, text in pages.items():
            endpoints.serve(path, text)

        def engine(pod: str) -> Target:
            return Target(endpoints.address, "/vllm", {"namespace": "llm", "pod": pod, "instance": pod})

        folder = tmp_path_factory.mktemp("servers")
        kube_state = Target(endpoints.address, "/kube-state", {"job": "kube-state-metrics"}, job="kube-state-metrics")
        dcgm = Target(endpoints.address, "/dcgm", {"namespace": "gpu", "pod": "dcgm-0"}, job="dcgm")
        targets = {
            "cluster": (engine(LLAMA[0]), engine("mixtral-0"), kube_state, dcgm),
            "pods": (engine(LLAMA[0]), engine(LLAMA[1])),
            "plain": (Target(endpoints.address, "/vllm", job="inference"),),
            "mixed": (
                Target(
                    endpoints.address, "/vllm", {"namespace": "llm", "pod": TWICE, "instance": "10.0.0.1:8000"}, "a"
                ),
                Target(endpoints.address, "/vllm", {"namespace": "llm", "pod": TWICE, "instance": "x:http"}, "b"),
                Target(endpoints.address, "/phi", {"namespace": "monitoring", "pod": "prometheus-0"}, "federate"),
                Target(
                    endpoints.address,
                    "/vllm",
                    {"k8s_namespace_name": "team", "k8s_pod_name": COLLECTED, "server": "gpu-node-7"},
                    "otel",
                ),
                Target(endpoints.address, "/moved", {"namespace": "monitoring", "pod": "kube-state-0"}, "state"),
                Target(endpoints.address, "/dcgm-a", {"namespace": "gpu", "pod": "dcgm-0"}, "dcgm-a"),
                Target(endpoints.address, "/dcgm-b", {}, "dcgm-b"),
            ),
            "federated": (Target(endpoints.address, "/federate", {"namespace": "monitoring", "pod": "prometheus-0"}),),
        }
        async with AsyncExitStack() as stack:
            running = {
                name: await stack.enter_async_context(request.param(folder, *scraped))
                for name, scraped in targets.items()
            }
            for name, server in running.items():
                await server.wait_for("up == 1", len(targets[name]))
            yield running


async def found(server: PromqlServer, *problems: str) -> Fleet:
    async def discovered() -> tuple[Fleet, tuple[str, ...]]:
        async with DiscoveredFleet(PrometheusSettings(url=server.url), SystemClock()) as workloads:
            return workloads.fleet(), workloads.problems

    fleet, told = await undisturbed(server, discovered)
    assert told == problems
    return fleet


async def test_facts_come_from_kube_state_metrics_when_it_is_scraped(
    servers: dict[str, PromqlServer],
):
    fleet = await found(servers["cluster"])
    assert [each.ref for each in fleet.workloads] == [
        WorkloadRef("llm", "chat"),
        WorkloadRef("llm", "mixtral", "StatefulSet"),
    ]
    assert [each.model for each in fleet.workloads] == ["tiny", "tiny"]
    assert fleet.replicas.tolist() == [3, 1]
    by_name = {pod.name: row for row, pod in enumerate(fleet.pods)}
    assert set(by_name) == {*LLAMA, "mixtral-0"}
    assert fleet.pod_ready[[by_name[LLAMA[0]], by_name[LLAMA[1]], by_name["mixtral-0"]]].tolist() == [True, False, True]
    assert fleet.pod_pending[by_name[LLAMA[1]]] == PendingCause.CRASH_LOOP
    took_s = fleet.pod_ready_s - fleet.pod_created_s
    assert took_s[by_name[LLAMA[0]]] == pytest.approx(60)
    assert np.isnan(took_s[by_name["mixtral-0"]])


async def test_gpus_come_from_the_devices_and_else_from_the_requests(servers: dict[str, PromqlServer]):
    fleet = await found(servers["cluster"])
    pools = [fleet.pools[pool] for pool in fleet.pool]
    assert pools == [Pool("nvidia.com/gpu", "NVIDIA-H100"), Pool("nvidia.com/mig-3g.40gb")]
    assert fleet.gpus_per_replica.tolist() == [2, 1]


async def test_owners_are_inferred_without_kube_state_metrics(servers: dict[str, PromqlServer]):
    fleet = await found(servers["pods"])
    assert [each.ref for each in fleet.workloads] == [WorkloadRef("llm", "llama")]
    assert fleet.replicas.tolist() == [2]
    assert sorted(pod.name for pod in fleet.pods) == sorted(LLAMA)


async def test_targets_are_found_and_read_when_metrics_name_no_pods(servers: dict[str, PromqlServer]):
    settings = PrometheusSettings(url=servers["plain"].url)
    fleet = await found(servers["plain"], f"{CONVENTIONS}: {NO_PODS}")
    assert [str(each.ref) for each in fleet.workloads] == ["inference/tiny"]
    async with PrometheusSource(settings, SystemClock()) as source:
        samples = await undisturbed(servers["plain"], lambda: source.sample(fleet, objectives(fleet), 10))
    assert samples.pods.waiting.tolist() == [30]
    assert samples.pods.running.tolist() == [4]


async def test_moved_labels_name_the_pods_when_metrics_are_federated(
    servers: dict[str, PromqlServer],
):
    fleet = await found(servers["federated"])
    assert [each.ref for each in fleet.workloads] == [WorkloadRef("llm", "llama")]
    assert sorted(pod.name for pod in fleet.pods) == sorted(LLAMA)
    async with PrometheusSource(PrometheusSettings(url=servers["federated"].url), SystemClock()) as source:
        samples = await undisturbed(servers["federated"], lambda: source.sample(fleet, objectives(fleet), 10))
    assert samples.pods.waiting.tolist() == [30, 30]
    assert samples.reports[0].problems == ()


@pytest.mark.parametrize(
    ("others", "replicas", "pods", "problems"),
    [
        ({"/kube-state": KUBE_STATE}, [3], set(LLAMA), ()),
        ({}, [0], set(), (f"engines: {SILENT.format('llm/llama')}",)),
    ],
    ids=["with kube-state-metrics", "without"],
)
async def test_silent_engines_keep_pods_that_kubernetes_reports(
    tmp_path: Path, others: dict[str, str], replicas: list[int], pods: set[str], problems: tuple[str, ...]
):
    """As when an engine has renamed its metrics."""
    async with exposition_server() as endpoints:
        endpoints.serve("/vllm", SATURATED)
        targets = [Target(endpoints.address, "/vllm", {"namespace": "llm", "pod": LLAMA[0]})]
        for path, text in others.items():
            endpoints.serve(path, text)
            targets.append(Target(endpoints.address, path, {"job": "kube-state-metrics"}, job="kube-state-metrics"))
        async with prometheus(tmp_path, *targets) as server:
            await server.wait_for("up == 1", len(targets))
            async with DiscoveredFleet(PrometheusSettings(url=server.url), SystemClock()) as workloads:
                assert workloads.problems == ()
                endpoints.serve("/vllm", "some_other_metric 1\n")
                await server.wait_for("absent(vllm:num_requests_running)")
                await workloads.refresh(10)
                fleet = workloads.fleet()
                assert (fleet.replicas.tolist(), {pod.name for pod in fleet.pods}) == (replicas, pods)
                assert workloads.problems == problems


async def test_each_series_names_its_pod_when_conventions_are_mixed(
    servers: dict[str, PromqlServer],
):
    fleet = await found(servers["mixed"])
    assert {str(each.ref): replicas for each, replicas in zip(fleet.workloads, fleet.replicas, strict=True)} == {
        "llm/llama": 3,
        "edge/phi": 1,
        "team/qwen": 1,
    }
    row = [str(each.ref) for each in fleet.workloads].index("llm/llama")
    assert fleet.pod_ready[fleet.pod_workload == row].tolist() == [True, False]
    assert (fleet.pools[fleet.pool[row]], fleet.gpus_per_replica[row]) == (Pool("nvidia.com/gpu", "NVIDIA-H100"), 1)
    async with PrometheusSource(PrometheusSettings(url=servers["mixed"].url), SystemClock()) as source:
        samples = await undisturbed(servers["mixed"], lambda: source.sample(fleet, objectives(fleet), 10))
    read = {pod.name: value for pod, value in zip(fleet.pods, samples.pods.waiting, strict=True)}
    assert {name: value for name, value in read.items() if value > 0} == {TWICE: 30, FEDERATED: 30, COLLECTED: 30}
    assert samples.reports[0].problems == (
        f"running: pod llm/{TWICE} is read by 2 scrape jobs (a, b); it counts once, with the largest reading",
    )
