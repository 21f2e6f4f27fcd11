"""DCGM exporters, as real servers on loopback. The texts are made from the exporter's labels and default counters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.scrape.gpus import WINDOW_S, DcgmScraper
from autoscaler.catalog import gpus
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples, Samples
from tests.adapters.scrape.support import SteppedClock, fleet_of
from tests.harness.dcgm_recordings import diagnoses, expected_diagnoses, page, recorded_fleet
from tests.harness.exposition import Answer, ExpositionServer
from tests.harness.exposition import exposition_server as another_server
from tests.harness.objectives import objectives
from tests.harness.process import free_port

FLEET = fleet_of("10.0.0.1:8000", "10.0.0.2:8000")  # pods llm/qwen-0 and llm/qwen-1; not read here


@asynccontextmanager
async def scraper(*urls: str, clock: SteppedClock | None = None) -> AsyncIterator[DcgmScraper]:
    async with DcgmScraper(ScrapeSettings(dcgm=urls, timeout_s=10.0), clock or SteppedClock()) as opened:
        yield opened


async def sample(server: ExpositionServer, *lines: str, fleet: Fleet = FLEET) -> PodSamples:
    server.serve("/metrics", "\n".join(lines) + "\n")
    async with scraper(f"{server.url}/metrics") as opened:
        samples: Samples = await opened.sample(fleet, objectives(fleet), deadline_s=20.0)
    assert samples.reports[0].source == "dcgm"
    assert samples.reports[0].failed == 0
    return samples.pods


def device(pod: str = "qwen-0", gpu: int = 0, **more: str) -> str:
    """Labels with honorLabels: true."""
    labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": "NVIDIA H100 80GB HBM3"}
    labels |= {"Hostname": "node-1", "container": "vllm", "namespace": "llm", "pod": pod} | more
    return "{" + ",".join(f'{label}="{value}"' for label, value in labels.items() if value) + "}"


async def test_framebuffer_and_activity_are_read_per_pod(exposition_server: ExpositionServer) -> None:
    labels = device()
    pods = await sample(
        exposition_server,
        f"DCGM_FI_DEV_FB_USED{labels} 72000",
        f"DCGM_FI_DEV_FB_FREE{labels} 8000",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{labels} 0.250000",
        f"DCGM_FI_PROF_SM_ACTIVE{labels} 0.750000",
        f"DCGM_FI_PROF_DRAM_ACTIVE{labels} 0.500000",
        f"DCGM_FI_DEV_GPU_UTIL{labels} 100",
    )
    assert (pods.fb_usage[0], pods.tensor_active[0], pods.sm_active[0], pods.dram_active[0]) == (0.9, 0.25, 0.75, 0.5)
    assert pods.gpu_time_s[0] == 1000.0
    assert np.isnan(pods.time_s).all()
    assert np.isnan([pods.fb_usage[1], pods.gpu_time_s[1]]).all()


@pytest.mark.parametrize(
    "labels",
    [
        {"namespace": "llm", "pod": "qwen-1"},
        {"exported_namespace": "llm", "exported_pod": "qwen-1", "namespace": "gpu-operator", "pod": "dcgm-exporter-x"},
        {"pod_namespace": "llm", "pod_name": "qwen-1", "container_name": "vllm", "namespace": "", "pod": ""},
    ],
    ids=["honorLabels", "exported", "old-namespace"],
)
async def test_a_pod_is_found_under_every_convention_of_labels(
    exposition_server: ExpositionServer, labels: dict[str, str]
) -> None:
    pods = await sample(exposition_server, f"DCGM_FI_PROF_DRAM_ACTIVE{device(**labels)} 0.5")
    assert np.isnan(pods.dram_active[0])
    assert pods.dram_active[1] == 0.5


async def test_names_of_dcgm_4_6_are_read_like_the_old_ones(exposition_server: ExpositionServer) -> None:
    labels = device(Hostname="", hostname="node-1")
    pods = await sample(
        exposition_server,
        f"DCGM_FI_DEV_FB_USED_RATIO{labels} 0.9",
        f"DCGM_FI_PROF_TENSOR_UTIL_RATIO{labels} 0.2",
        f"DCGM_FI_PROF_SM_UTIL_RATIO{labels} 0.7",
        f"DCGM_FI_PROF_DRAM_UTIL_RATIO{labels} 0.4",
        f"DCGM_FI_DEV_GPU_UTIL_RATIO{labels} 1",
    )
    assert (pods.fb_usage[0], pods.tensor_active[0], pods.sm_active[0], pods.dram_active[0]) == (0.9, 0.2, 0.7, 0.4)


async def test_old_and_new_gpu_names_are_one_reading(exposition_server: ExpositionServer) -> None:
    pods = await sample(
        exposition_server,
        f"DCGM_FI_PROF_TENSOR_UTIL_RATIO{device()} 0.9",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device()} 0.2",
    )
    assert pods.tensor_active[0] == 0.2


async def test_graphics_activity_stands_in_for_sm_active(exposition_server: ExpositionServer) -> None:
    pods = await sample(exposition_server, f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{device()} 0.8")
    assert pods.sm_active[0] == 0.8


async def test_mig_slices_with_one_uuid_are_separate(
    exposition_server: ExpositionServer,
) -> None:
    lines = []
    for index, (pod, used, free, active) in enumerate((("qwen-0", 30_000, 10_000, 0.1), ("qwen-1", 1_000, 9_000, 0.0))):
        labels = device(pod, GPU_I_ID=str(index + 1), GPU_I_PROFILE=("3g.40gb", "1g.10gb")[index])
        lines += [f"DCGM_FI_DEV_FB_USED{labels} {used}", f"DCGM_FI_DEV_FB_FREE{labels} {free}"]
        lines += [f"DCGM_FI_PROF_DRAM_ACTIVE{labels} {active}"]
    lines.append(f"DCGM_FI_DEV_FB_USED{device(pod='', namespace='')} 31000")  # the parent GPU, of no pod
    pods = await sample(exposition_server, *lines)
    assert pods.fb_usage.tolist() == [0.75, 0.1]
    assert pods.dram_active.tolist() == [0.1, 0.0]


async def test_two_mig_slices_of_one_pod_count_as_its_fullest(exposition_server: ExpositionServer) -> None:
    lines = []
    for index, (used, free) in enumerate(((1_000, 9_000), (9_000, 1_000))):
        labels = device(GPU_I_ID=str(index), GPU_I_PROFILE="1g.10gb")
        lines += [f"DCGM_FI_DEV_FB_USED{labels} {used}", f"DCGM_FI_DEV_FB_FREE{labels} {free}"]
    assert (await sample(exposition_server, *lines)).fb_usage[0] == 0.9


async def test_of_several_gpus_of_a_pod_the_largest_reading_counts(exposition_server: ExpositionServer) -> None:
    lines = [f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device(gpu=gpu)} 0.{gpu}" for gpu in (1, 4, 2)]
    assert (await sample(exposition_server, *lines)).tensor_active[0] == 0.4


async def test_a_ratio_above_one_is_one(exposition_server: ExpositionServer) -> None:
    labels = device(GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
    assert (await sample(exposition_server, f"DCGM_FI_PROF_SM_ACTIVE{labels} 1.3")).sm_active[0] == 1.0


BLANKS = ["NaN", "-1", "+Inf", "9223372036854775794x", "140737488355328", "140737488355330", "2147483632", "2.01"]


@pytest.mark.parametrize("value", BLANKS)
@pytest.mark.parametrize(
    ("name", "column"), [(row.name, column) for column, rows in gpus.ACTIVITY.items() for row in rows[:1]]
)
async def test_activity_is_unknown_when_dcgm_could_not_read_it(
    exposition_server: ExpositionServer, value: str, name: str, column: str
) -> None:
    pods = await sample(exposition_server, f"{name}{device()} {value}")
    assert np.isnan([getattr(pods, column)[0], pods.gpu_time_s[0]]).all()


@pytest.mark.parametrize("blank", ["9223372036854775794", "2147483632", "1.4e14", "3000000", "-2", "NaN"])
@pytest.mark.parametrize("used", [True, False])
async def test_framebuffer_is_unknown_when_no_gpu_has_so_much(
    exposition_server: ExpositionServer, blank: str, used: bool
) -> None:
    lines = f"DCGM_FI_DEV_FB_USED{device()} {blank if used else 500}", f"DCGM_FI_DEV_FB_FREE{device()} 80000"
    lines = lines if used else (lines[0], f"DCGM_FI_DEV_FB_FREE{device()} {blank}")
    assert np.isnan((await sample(exposition_server, *lines)).fb_usage[0])


async def test_other_gpus_of_a_pod_count_when_one_is_unknown(exposition_server: ExpositionServer) -> None:
    lines = [f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device(gpu=gpu)} {value}" for gpu, value in ((0, 0.2), (1, 2**47))]
    assert (await sample(exposition_server, *lines)).tensor_active[0] == 0.2


async def test_framebuffer_used_without_free_is_unknown(exposition_server: ExpositionServer) -> None:
    assert np.isnan((await sample(exposition_server, f"DCGM_FI_DEV_FB_USED{device()} 72000")).fb_usage[0])


async def test_a_short_burst_of_activity_lasts_for_minutes(exposition_server: ExpositionServer) -> None:
    clock = SteppedClock()
    async with scraper(f"{exposition_server.url}/metrics", clock=clock) as opened:

        async def tensor_active(value: float, after_s: float) -> float:
            clock.time_s += after_s
            exposition_server.serve("/metrics", f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device()} {value}\n")
            return float((await opened.sample(FLEET, objectives(FLEET), 20.0)).pods.tensor_active[0])

        assert await tensor_active(0.0, 0) == 0.0
        assert await tensor_active(0.3, 5) == 0.3
        assert await tensor_active(0.0, 30) == 0.3
        assert await tensor_active(0.0, WINDOW_S - 40) == 0.3
        assert await tensor_active(0.0, 40) == 0.0


async def test_activity_is_unknown_when_no_longer_reported(
    exposition_server: ExpositionServer,
) -> None:
    async with scraper(f"{exposition_server.url}/metrics") as opened:
        exposition_server.serve("/metrics", f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device()} 0.3\n")
        await opened.sample(FLEET, objectives(FLEET), 20.0)
        exposition_server.serve("/metrics", "# profiling is paused\n")
        assert np.isnan((await opened.sample(FLEET, objectives(FLEET), 20.0)).pods.tensor_active[0])


async def test_a_new_pod_has_nothing_of_the_one_that_had_its_name(exposition_server: ExpositionServer) -> None:
    async with scraper(f"{exposition_server.url}/metrics") as opened:
        exposition_server.serve("/metrics", f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device()} 0.3\n")
        await opened.sample(FLEET, objectives(FLEET), 20.0)
        exposition_server.serve("/metrics", f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{device()} 0.0\n")
        successor = replace(FLEET, pod_id=FLEET.pod_id + 10)
        assert (await opened.sample(successor, objectives(successor), 20.0)).pods.tensor_active[0] == 0.0


async def test_a_broken_exporter_is_named_and_others_are_read(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", f"DCGM_FI_PROF_DRAM_ACTIVE{device('qwen-0')} 0.1\n")
    async with another_server() as second, another_server() as broken:
        second.serve("/metrics", f"DCGM_FI_PROF_DRAM_ACTIVE{device('qwen-1', Hostname='node-2')} 0.2\n")
        broken.serve("/metrics", Answer(f"DCGM_FI_PROF_DRAM_ACTIVE{device('qwen-1')} 0.9"))
        closed = f"http://127.0.0.1:{free_port()}/metrics"
        urls = (f"{exposition_server.url}/metrics", f"{second.url}/metrics", f"{broken.url}/metrics", closed)
        async with scraper(*urls) as opened:
            samples = await opened.sample(FLEET, objectives(FLEET), deadline_s=20.0)
    assert samples.pods.dram_active.tolist() == [0.1, 0.2]
    assert samples.reports[0].failed == 2
    assert any("connection refused" in line for line in samples.reports[0].problems)
    assert any("cut off" in line for line in samples.reports[0].problems)


async def test_each_recording_is_read_as_the_diagnosis_it_was_written_for(exposition_server: ExpositionServer) -> None:
    pods = await sample(exposition_server, page(), fleet=recorded_fleet())
    assert diagnoses(pods, 1000.0) == expected_diagnoses()


def test_a_url_that_is_none_stops_the_start() -> None:
    with pytest.raises(ValueError, match="allowed: http://host:port/path"):
        DcgmScraper(ScrapeSettings(dcgm=("node-1:9400",)), SteppedClock())
