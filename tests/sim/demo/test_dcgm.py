import re
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from autoscaler.catalog import gpus
from autoscaler.catalog.series import pod_of
from autoscaler.core.model.fleet import Pool
from autoscaler.sim.demo.dcgm import COLLECT_S, DcgmExporter
from autoscaler.sim.demo.scenario import demo_scenario
from autoscaler.sim.demo.simulation import Simulation
from autoscaler.sim.engine.profiles import H100_3G
from tests.sim.demo.scenarios import CHAT, make_scenario, silent


def readings(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def of_pod(text: str, name: str, pod: str) -> list[float]:
    return [value for labels, value in readings(text, name) if labels.get("pod") == pod]


def test_device_is_labelled_with_the_pod_that_holds_it() -> None:
    simulation = Simulation(make_scenario(silent(devices=2)), 0.0)
    used = readings(DcgmExporter(simulation.cluster).render(0.0), gpus.FB_USED)
    (pod,) = simulation.fleet().pods
    assert [pod_of(labels) for labels, _ in used] == [("models", pod.name)] * 2 + [None] * 2
    assert used[0][1] > 70_000  # MiB: the engine holds the memory even without requests
    assert used[2][1] < 10
    assert {labels["modelName"] for labels, _ in used} == {"NVIDIA H100 80GB HBM3"}
    assert len({gpus.device_of(labels) for labels, _ in used}) == 4


def test_activity_shows_only_when_requests_are_served() -> None:
    simulation = Simulation(make_scenario(CHAT, silent(replace(CHAT, model="b"), name="b")), 0.0)
    exporter = DcgmExporter(simulation.cluster)
    exporter.render(0.0)
    simulation.advance(120.0)
    text = exporter.render(120.0)
    busy, idle = (pod.name for pod in simulation.fleet().pods)
    for names in gpus.ACTIVITY.values():
        (name,) = {row.name for row in names} & set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) - {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
        }
        assert of_pod(text, name, idle) == [0.0]
        assert 0.01 < of_pod(text, name, busy)[0] <= 1.0


def test_values_are_constant_between_collections() -> None:
    simulation = Simulation(make_scenario(), 0.0)
    exporter = DcgmExporter(simulation.cluster)
    exporter.render(0.0)
    simulation.advance(60.0)
    first = exporter.render(60.0)
    simulation.advance(60.0 + COLLECT_S - 1)
    assert exporter.render(60.0 + COLLECT_S - 1) == first
    simulation.advance(60.0 + COLLECT_S)
    assert exporter.render(60.0 + COLLECT_S) != first


def test_memory_fills_while_the_weights_load() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    simulation.cluster.scale(0, 2, 0.0)
    name, seen = simulation.cluster.pods[1].name, []
    for at_s in (0.5, 31.0, 62.0):
        simulation.advance(at_s)
        seen += of_pod(DcgmExporter(simulation.cluster).render(at_s), gpus.FB_USED, name)
    assert seen[0] < 10
    assert 5000 < seen[1] < 11_000
    assert seen[2] > 70_000


def test_sleeping_engine_gives_memory_back_by_its_level_and_tags() -> None:
    simulation = Simulation(make_scenario(silent()), 0.0)
    (pod,) = simulation.cluster.pods
    assert pod.replica is not None

    def used() -> float:
        return of_pod(DcgmExporter(simulation.cluster).render(0.0), gpus.FB_USED, pod.name)[0]

    pod.replica.pause("wait", 0.0)
    pod.replica.release(0, 0.0)
    assert used() > 70_000, "level 0 pauses the scheduler alone"
    pod.replica.release(1, 1.0)
    assert used() < 5000
    pod.replica.wake_up(["weights"], 0.0, 1.0)
    assert 10_000 < used() < 15_000
    pod.replica.wake_up(["kv_cache"], 0.0, 1.0)
    assert used() > 70_000


def test_slices_have_an_instance_label_and_no_gpu_util() -> None:
    small = make_scenario(silent())
    pools = (replace(small.pools[0], pool=Pool("nvidia.com/mig-3g.40gb", H100_3G.product), device=H100_3G),)
    simulation = Simulation(replace(small, pools=pools), 0.0)
    text = DcgmExporter(simulation.cluster).render(0.0)
    assert "DCGM_FI_DEV_GPU_UTIL" not in text
    devices = [labels for labels, _ in readings(text, gpus.FB_FREE)]
    assert {labels["GPU_I_PROFILE"] for labels in devices} == {"3g.40gb"}
    assert len({labels["UUID"] for labels in devices}) == 2
    assert len({(labels["UUID"], labels["GPU_I_ID"]) for labels in devices}) == 4


def test_whole_gpus_have_gpu_util_in_percent() -> None:
    simulation = Simulation(make_scenario(), 0.0)
    exporter = DcgmExporter(simulation.cluster)
    exporter.render(0.0)
    simulation.advance(60.0)
    found = [value for labels, value in readings(exporter.render(60.0), "DCGM_FI_DEV_GPU_UTIL") if "pod" in labels]
    assert 1 < found[0] <= 100


def test_sleeping_node_has_no_metrics() -> None:
    simulation = Simulation(demo_scenario(1), 0.0)
    hosts = {labels["Hostname"] for labels, _ in readings(DcgmExporter(simulation.cluster).render(0.0), gpus.FB_FREE)}
    asleep = {node.name for node in simulation.cluster.nodes if node.asleep}
    assert asleep
    assert hosts == {node.name for node in simulation.cluster.nodes} - asleep


def test_integers_are_bare_and_ratios_have_six_decimals() -> None:
    text = DcgmExporter(Simulation(make_scenario(), 0.0).cluster).render(0.0)
    assert "DCGM_FI_DEV_FB_USED{" in text
    assert "DCGM_FI_PROF_SM_ACTIVE{" in text
    for line in text.splitlines():
        if line.startswith("DCGM_FI_DEV"):
            assert re.search(r"} \d+$", line)
        elif line.startswith("DCGM_FI_PROF"):
            assert re.search(r"} \d\.\d{6}$", line)
        elif line.startswith("# TYPE"):
            assert line.endswith(" gauge")
