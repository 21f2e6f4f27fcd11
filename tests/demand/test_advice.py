"""Advice is judged by replay: what would cost attainment is told, and not offered."""

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.demand.advice import IDLE, QUANTIZE, SPOT_NODES, Shortage, advise, replay
from autoscaler.demand.model import DemandHistory, model_demand
from autoscaler.demand.purchase import BuyLimits, plan_purchase
from autoscaler.report.history import FleetHistory
from autoscaler.report.report import compute
from tests.report.loads import facts_of, interactive, load_of, profiles_of

pytestmark = pytest.mark.slow

STEPS = 600
POOL = ("nvidia.com/gpu", "NVIDIA-L4", "")
IDLE_ONE, LOST_ONE = range(2)


@pytest.fixture(scope="module")
def demand():
    """Two services that hold six GPUs for the work of one. The second meets its objective on no other count."""
    load = load_of(np.full((STEPS, 2), 1.0), np.full((STEPS, 2), 6.0))
    profiles = replace(profiles_of(2), unavoidable=np.array([0.0, 0.2]))
    facts = replace(facts_of(services=2), model=("meta-llama/Llama-3.1-8B", ""), products=("NVIDIA-L4",) * 2)
    names = (ServiceName("", "team", "idle"), ServiceName("", "team", "lost"))
    history = FleetHistory(load.span, names, {})
    report = compute("a server", history, load, profiles, facts, interactive(2), ("interactive",) * 2)
    book = load_policies(())
    return model_demand(report, DemandHistory(history, {"ttft": {}, "itl": {}, "request": {}}), book, ZoneInfo("UTC"))


def test_idle_gpus_are_offered_when_their_replay_keeps_the_promise(demand):
    replays = replay(demand)
    late = np.arange(len(replays.hour)) >= 5  # when the counts of the replay have left those that it began with
    short = Shortage(POOL, np.arange(2), np.ones(2, bool), 2.0, late)
    advice = advise(demand, None, short, replays, {})
    offered, refused = (each for each in advice if each.kind == IDLE)
    assert replays.keeps.tolist() == [True, False]
    assert offered.offered and 2 <= offered.gpus < 6
    assert "team/idle" in offered.sentence and "team/lost" not in offered.sentence
    assert not refused.offered and refused.gpus == 0
    assert "team/lost" in refused.sentence
    by_kind = {each.kind: each for each in advice}
    assert not by_kind[SPOT_NODES].offered  # `interactive` cannot wait for a cold start
    assert "cannot wait" in by_kind[SPOT_NODES].sentence or "can wait" in by_kind[SPOT_NODES].sentence
    assert by_kind[QUANTIZE].gpus >= 0
    assert (replays.quantized[:, 1] == replays.policy[:, 1]).all()  # no name tells its model


def test_nothing_is_short_when_no_daemon_exported_anything(demand):
    purchase = plan_purchase(demand, None, BuyLimits(), {}, "Prometheus has no metrics of the daemon")
    assert purchase.sentence == "Whether GPUs are short cannot be known: Prometheus has no metrics of the daemon."
    (pool,) = purchase.pools
    assert np.isnan(pool.shortage)
    assert not any(each.covers for each in pool.advice)
    assert pool.advice[-1].sentence == "What is lacking is not known."
    devices = {each.device: each for each in pool.devices}
    assert devices["L4"].offered and np.isnan(devices["L4"].gpus)
    assert not devices["T4"].offered  # 16 GB of weights do not fit
    assert np.isnan(devices["H20"].usd_per_million_tokens) and "--price H20" in devices["H20"].why_not
