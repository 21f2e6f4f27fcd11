"""The page of a simulated replica compared with the pages recorded from a real server."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.adapters.scrape import pod_columns
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.catalog.engines import ENGINES
from autoscaler.sim.demo.exposition import VllmExposition
from autoscaler.sim.engine.metrics import REQUEST_BOUNDS_S, TTFT_BOUNDS_S
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Request

RECORDED = Path(__file__).parents[2] / "data" / "vllm"
# The command of the recording: --max-num-seqs 4, a model of 2048 tokens, 24 KV blocks of 128 tokens.
PROFILE = Profile(0.009, 5e-4, 0.0, 3e-4, 3072, max_num_seqs=4, max_model_len=2048, block_size=128)


@dataclass
class Family:
    name: str
    kind: str
    help: str
    series: list[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=list)  # sample name, labels


# Labels whose values depend on the recording: requests, settings, Python version.
FREE = {"model_name", "implementation", "major", "minor", "patchlevel", "version"}


def families(text: str) -> list[Family]:
    """Read names, types, help, sample names and labels in their order; values are left out."""
    found: list[Family] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, *rest = line.split(" ", 3)
            found.append(Family(name, "", *rest))
        elif line.startswith("# TYPE "):
            assert line.split()[2] == found[-1].name
            found[-1].kind = line.split()[3]
        else:
            match = re.fullmatch(r"([^{ ]+)(?:\{(.*)\})? (\S+)", line)
            assert match, line
            labels = re.findall(r'(\w+)="([^"]*)"', match[2] or "")
            free = {name for name, _ in labels} if match[1] == "vllm:cache_config_info" else FREE
            found[-1].series.append((match[1], tuple((name, "" if name in free else v) for name, v in labels)))
    return found


def recorded(name: str) -> list[Family]:
    """Read a recording, and leave out calls of endpoints other than completions."""
    kept = families((RECORDED / name).read_text())
    for family in kept:
        family.series = [
            (sample, labels)
            for sample, labels in family.series
            if dict(labels).get("handler", "/v1/completions") == "/v1/completions"
        ]
    return kept


def page(replica: Replica) -> VllmExposition:
    return VllmExposition(replica, "tiny", 1.7952072794e9, 1.7952073176441696e9)


def saturated() -> Replica:
    replica = Replica(PROFILE, 0.0)
    for number in range(60):
        replica.advance(number * 0.1)
        replica.submit(Request(number * 0.1, 90, 300), number * 0.1)
    replica.advance(12.0)
    return replica


def assert_same(page_text: str, recording: str) -> None:
    simulated, real = families(page_text), recorded(recording)
    assert [family.name for family in simulated] == [family.name for family in real]
    for one, other in zip(simulated, real, strict=True):
        assert one == other


def test_idle_replica_matches_the_recorded_page() -> None:
    assert_same(page(Replica(PROFILE, 0.0)).render(), "idle.prom")


@pytest.mark.parametrize("recording", ["running.prom", "saturated.prom", "drained.prom", "kv-bound.prom"])
def test_busy_replica_matches_the_recordings_under_load(recording: str) -> None:
    assert_same(page(saturated()).render(), recording)


def test_woken_replica_shows_the_recorded_sleep_families() -> None:
    replica = saturated()
    exposition = page(replica)
    exposition.render()
    replica.pause("abort", 12.0)
    replica.release(1, 0.005)
    asleep = families(exposition.render())
    real = {family.name: family for family in recorded("sleeping.prom")}
    slept = [family for family in asleep if "sleep_mode" in family.name]
    assert len(slept) == 3
    assert slept == [real[family.name] for family in slept]
    replica.wake_up((), 13.0, 0.005)
    woken = {family.name: family for family in families(exposition.render())}
    for family in recorded("awake-again.prom"):
        if "sleep_mode" in family.name:
            assert woken[family.name] == family


def test_every_recorded_sample_has_a_parsable_value() -> None:
    replica = saturated()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(replica).render())
        for sample in family.samples
    }
    engine = (("engine", "0"), ("model_name", "tiny"))
    metrics = replica.metrics
    assert samples["vllm:num_requests_running", engine] == replica.running == 4
    assert samples["vllm:num_requests_waiting", engine] == replica.waiting > 0
    assert samples["vllm:kv_cache_usage_perc", engine] == pytest.approx(replica.kv_usage)
    assert samples["vllm:generation_tokens_total", engine] == metrics.generation_tokens > 0
    assert samples["vllm:time_to_first_token_seconds_count", engine] == metrics.ttft.count
    assert samples["vllm:time_to_first_token_seconds_sum", engine] == pytest.approx(metrics.ttft.total)
    assert samples["vllm:inter_token_latency_seconds_bucket", (*engine[:1], ("le", "+Inf"), *engine[1:])] == (
        metrics.token_gap.count
    )
    below = sum(metrics.token_gap.counts[:1])
    assert samples["vllm:inter_token_latency_seconds_bucket", (*engine[:1], ("le", "0.01"), *engine[1:])] == below
    assert samples["vllm:generation_tokens_created", engine] == 1.7952073176441696e9


def test_scraper_and_replica_agree_on_requests_within_a_goal() -> None:
    replica = saturated()
    vllm, metrics = ENGINES["vllm"], replica.metrics
    exposition = parse(page(replica).render().encode(), pod_columns.sample_names(vllm))
    values = pod_columns.gauges_and_counters(vllm, exposition)
    assert values["gap_s"] == pytest.approx(metrics.token_gap.total)
    assert (values["gaps"], values["itl_judged"]) == (metrics.token_gap.count, metrics.request_token_gap.count)
    assert metrics.request_token_gap.count > 0
    assert values["prefill_judged"] == metrics.prefill.count > 0
    within = pod_columns.count_within_objectives(
        pod_columns.histograms(vllm, exposition), {"ttft_s": 5.0, "itl_s": 0.01}
    )
    first, prompt = TTFT_BOUNDS_S.index(5.0) + 1, REQUEST_BOUNDS_S.index(5.0) + 1
    assert within == {
        "ttft_met": sum(metrics.ttft.counts[:first]),
        "itl_met": metrics.request_token_gap.counts[0],
        "prefill_met": sum(metrics.prefill.counts[:prompt]),
    }


def test_buckets_are_cumulative() -> None:
    text = page(saturated()).render()
    counts: dict[str, list[float]] = {}
    for line in text.splitlines():
        if "_bucket{" in line:
            counts.setdefault(line.split("_bucket{")[0], []).append(float(line.rsplit(" ", 1)[1]))
    assert len(counts) > 10
    assert all(column == sorted(column) for column in counts.values())


def test_sleeping_replica_shows_no_requests() -> None:
    replica = Replica(PROFILE, 0.0)
    replica.pause("abort", 1.0)
    replica.release(1, 0.005)
    for _ in range(6):
        replica.submit(Request(2.0, 10, 10), 2.0)
    text, real = page(replica).render(), (RECORDED / "sleeping-queued.prom").read_text()
    for line in (
        'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0',
        'vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0',
        'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 0.0',
        'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 1.0',
    ):
        assert line in text.splitlines()
        assert line in real.splitlines()


@pytest.mark.parametrize("name", ["100%s", 'a"b', "back\\slash", "two\nlines"])
def test_hostile_model_name_is_one_label_value(name: str) -> None:
    text = VllmExposition(saturated(), name, 0.0, 0.0).render()
    found = {
        sample.labels["model_name"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model_name" in sample.labels
    }
    assert found == {name}
