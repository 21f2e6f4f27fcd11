"""`demand` on a real Prometheus with what a daemon would have exported: when to buy, and what to do before."""

import asyncio
import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from autoscaler.app.purchase import read_capacity
from autoscaler.cli.main import main
from autoscaler.config.settings import PrometheusSettings
from autoscaler.demand.capacity import BuyLimits, find_shortage, find_triggers
from tests.report.generated import HOUR_S, Service, day, filled_prometheus, generate, merged

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_S = 24 * HOUR_S
DAYS = 2
SCRAPE_S = 180.0
POOL = 'resource="nvidia.com/gpu",product="NVIDIA-L4",nodes=""'
HELD = {"office": 8, "steady": 1}
POOL_GPUS, BUSY_GPUS, LACKING_S = 10, 8.5, 1080.0


def exported(start_s, end_s):
    """Return the metrics of a daemon: `steady` lacks one GPU twice a night; `office` is at its ceiling for 20 min."""
    labels = {name: f'namespace="team",workload="{name}",kind="Deployment"' for name in HELD}
    rates = {f'gpu_seconds_total{{{labels[name]},state="serving"': gpus for name, gpus in HELD.items()}
    rates |= {f"needed_gpu_seconds_total{{{labels[name]},{POOL}": gpus for name, gpus in HELD.items()}
    rates |= {f'pool_gpu_seconds_total{{{POOL},state="serving"': BUSY_GPUS}
    rates |= {f'pool_gpu_seconds_total{{{POOL},state="free"': POOL_GPUS - BUSY_GPUS}
    lines = {}
    for at_s in np.arange(start_s, end_s, SCRAPE_S).tolist():
        days, of_day_s = divmod(at_s, DAY_S)
        nights = sum(np.clip(of_day_s - begin, 0, LACKING_S) for begin in (HOUR_S, 23 * HOUR_S - LACKING_S))
        lacked_s = (days - start_s // DAY_S) * 2 * LACKING_S + nights
        values = {name: rate * (at_s - start_s) for name, rate in rates.items()}
        values |= {f"lacking_gpu_seconds_total{{{labels['steady']},{POOL}": lacked_s}
        values |= {f"lacking_gpus_duration_seconds_total{{{labels['steady']},{POOL}": lacked_s}
        at_ceiling_s = (days - start_s // DAY_S) * 1200 + np.clip(of_day_s - 12 * HOUR_S, 0, 1200)
        values |= {f"ceiling_duration_seconds_total{{{labels['office']},{POOL}": at_ceiling_s}
        for name, value in values.items():
            family = "vllm_autoscaler_" + name.partition("{")[0]
            lines.setdefault(family, []).append(f'vllm_autoscaler_{name},pod="daemon-0"}} {value:.10g} {at_s:.3f}')
    return lines


async def test_triggers_are_those_of_what_the_daemon_exported(tmp_path):
    end_s = time.time() // HOUR_S * HOUR_S
    span_s = end_s - DAYS * DAY_S, end_s
    async with filled_prometheus(tmp_path, merged([exported(*span_s)])) as server:
        settings = PrometheusSettings(url=server.url)
        found, problem = await asyncio.to_thread(read_capacity, settings, None, span_s, Console(stderr=True))
    assert problem == ""
    assert found.known_h == pytest.approx(DAYS * 24, abs=2)
    triggers = find_triggers(found, BuyLimits())
    values = {(each.kind, each.subject): each.value for each in triggers if each.reached}
    assert values == {
        ("queued", "team/steady"): pytest.approx(2 * LACKING_S, rel=0.05),
        ("pool_full", "NVIDIA-L4"): pytest.approx(BUSY_GPUS / POOL_GPUS, rel=0.01),
    }
    (pool,) = found.pools
    assert find_shortage(found, pool, triggers) == 1


@pytest.mark.long
async def test_pool_is_short_and_idle_gpus_elsewhere_are_enough(tmp_path):
    end_s = time.time() // HOUR_S * HOUR_S
    start_s = end_s - DAYS * DAY_S
    office = Service("office", day(4, 40), lambda _: 4, gpus=2)
    services = (office, Service("steady", day(15, 17), lambda _: 1))
    text = merged([*(generate(each, start_s, end_s, SCRAPE_S)[1] for each in services), exported(start_s, end_s)])
    file = tmp_path / "demand.json"
    arguments = ["demand", "--since", f"{DAYS}d", "--json", str(file), "--price", "NVIDIA-L4=1"]
    async with filled_prometheus(tmp_path, text) as server:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--prometheus", server.url])
    assert result.exit_code == 0, result.output
    purchase = json.loads(file.read_text())["purchase"]
    assert purchase["hours"] == pytest.approx(DAYS * 24, abs=2)
    triggers = {(each["kind"], each["subject"]): each for each in purchase["triggers"]}
    assert triggers.keys() == {("queued", "team/steady"), ("pool_full", "NVIDIA-L4")}
    assert triggers["queued", "team/steady"]["value"] == pytest.approx(2 * LACKING_S, rel=0.05)
    full = triggers["pool_full", "NVIDIA-L4"]
    assert full["reached"]
    assert full["value"] == pytest.approx(BUSY_GPUS / POOL_GPUS, rel=0.01)
    assert "history reaches no further" in full["sentence"]
    (pool,) = purchase["pools"]
    assert pool["shortage_gpus"] == 1
    advice = {each["kind"]: each for each in pool["advice"]}
    idle = advice["idle_elsewhere"]
    assert idle["offered"] and idle["covers"], idle
    assert idle["gpus"] >= 2
    assert idle["usd_per_month"] == pytest.approx(idle["gpus"] * 730)
    assert "team/office" in idle["sentence"] and "team/steady" not in idle["sentence"]
    assert not advice["layout"]["offered"] and not advice["lend"]["offered"] and not advice["buy"]["offered"]
    assert pool["devices"][0]["offered"] and pool["devices"][0]["usd_per_million_tokens"] > 0
    assert "then" not in purchase["sentence"] and "idle elsewhere" in purchase["sentence"]
    assert "When to buy: In 4" in " ".join(result.output.split())
