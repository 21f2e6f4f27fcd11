"""Histories that tell less than one would like: what is unknown is said, in one model of a poor history."""

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.demand.document import document
from autoscaler.demand.model import model_demand
from autoscaler.demand.renames import say_renames
from autoscaler.demand.words import answers, verdict
from autoscaler.report.history import FleetHistory
from autoscaler.report.report import compute
from tests.report.loads import facts_of, interactive, load_of, profiles_of

OLD, NEW, LATE = (ServiceName("", "team", name) for name in ("chat", "chat-v2", "late"))
STEPS = 1800  # 30 hours


@pytest.fixture(scope="module")
def poor():
    """`chat` becomes `chat-v2` after 25 hours, `late` came 10 hours ago, nobody knows a price, and DCGM is missing."""
    seen = np.zeros((STEPS, 3), bool)
    seen[:1500, 0] = seen[1510:, 1] = seen[1200:, 2] = True
    seen[300:360] = False  # a hole
    demand = np.where(seen, 2.0, 0.0)
    load = load_of(demand, np.where(seen, 4.0, 0.0), seen=seen, missed_share=np.full((STEPS, 3), np.nan, np.float32))
    facts = replace(facts_of(usd=np.nan, services=3), reasons=("no list price",) * 3, products=("Own-1",) * 3)
    history = FleetHistory(load.span._replace(steps=10), (OLD, NEW, LATE), {})
    tiers = ("interactive", "interactive", "gone")
    report = compute("a server", history, load, profiles_of(3), facts, interactive(3), tiers)
    latencies = {"ttft": {}, "itl": {}, "request": {}}
    return model_demand(report, history, latencies, load_policies(()).policies["interactive"], ZoneInfo("UTC"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "words"),
    [
        (2, "hours were seen, and it needs 24"),
        (0, "No histogram shows what users waited for"),
        ("notes", "team/chat ended at 2026-"),
        ("notes", "and team/chat-v2 began then: if it was renamed"),
        ("notes", "judged by the objectives of today's policies"),
        ("notes", "less than a day of history: no draft"),
        ("verdict", "In 1.21 days seen"),
        ("tiers", "gone"),
    ],
)
def test_what_a_poor_history_cannot_tell_is_said(poor, of, words):
    texts = {
        "notes": " ".join(poor.notes),
        "verdict": verdict(poor),
        "tiers": " ".join(tier.policy for tier in poor.tiers),
    }
    assert words in (texts[of] if of in texts else " ".join(answers(poor, of)))


@pytest.mark.slow
def test_unknown_prices_and_dcgm_are_null(poor):
    service = document(poor)["services"][0]
    assert service["gpus"] is None
    assert service["draft"] is None
    assert service["duration"]["p50_s"] is None
    assert np.isnan(poor.report.entry("actual").outcome.usd).all()


@pytest.mark.parametrize(
    ("end", "begin", "names", "models", "said"),
    [
        (900, 900, (OLD, NEW), ("m", "m"), 1),
        (900, 850, (OLD, NEW), ("m", "m"), 1),  # both served for a while
        (900, 955, (OLD, NEW), ("m", "m"), 1),
        (900, 965, (OLD, NEW), ("m", "m"), 0),
        (900, 900, (OLD, NEW), ("m", "another"), 0),
        (900, 900, (OLD, NEW._replace(namespace="b")), ("m", "m"), 0),
        (1790, 1790, (OLD, NEW), ("m", "m"), 0),  # it may be a hole that has not ended
        (30, 30, (OLD, NEW), ("m", "m"), 0),
    ],
)
def test_a_rename_is_guessed_where_one_name_ends_and_another_begins(end, begin, names, models, said):
    seen = np.zeros((STEPS, 2), bool)
    seen[:end, 0] = seen[begin:, 1] = True
    load = load_of(np.ones((STEPS, 2)), np.ones((STEPS, 2)), seen=seen)
    assert len(say_renames(load, names, models)) == said
