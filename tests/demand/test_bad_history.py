"""Histories that tell less than one would like: what is unknown is said, in one model of a poor history."""

from dataclasses import replace
from io import StringIO
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from rich.console import Console

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import to_document
from autoscaler.demand.capacity import BuyLimits
from autoscaler.demand.document import document
from autoscaler.demand.draft import Draft, Line
from autoscaler.demand.model import DemandHistory, model_demand
from autoscaler.demand.policy_file import policy_document, policy_text
from autoscaler.demand.purchase import plan_purchase
from autoscaler.demand.purchase_document import print_purchase
from autoscaler.demand.renames import say_renames
from autoscaler.demand.table import INPUTS, print_demand
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
    tiers = ("realtime", "batch", "gone")
    report = compute("a server", history, load, profiles_of(3), facts, interactive(3), tiers)
    latencies = {"ttft": {}, "itl": {}, "request": {}}
    return model_demand(report, DemandHistory(history, latencies), load_policies(()), ZoneInfo("UTC"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "words"),
    [
        (2, "hours were seen, and it needs 24"),
        (0, "No histogram shows what users waited for"),
        ("notes", "team/chat had its last replica at 2026-"),
        ("notes", "and team/chat-v2 the first then: if it was renamed"),
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
def test_terminal_cuts_no_word_when_it_has_80_columns(poor):
    out = StringIO()
    console = Console(file=out, width=80)
    print_demand(poor, console)
    print_purchase(plan_purchase(poor, None, BuyLimits(), {}, "Prometheus has no metrics of the daemon"), console)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    head = " ".join(lines[: next(n for n, line in enumerate(lines) if line.startswith("1."))])
    assert all(word in head for name in INPUTS for word in name.split())
    assert "\nWhen to buy: Whether GPUs are short cannot be known: Prometheus has no metrics" in out.getvalue()
    assert out.getvalue().count("Prometheus has no metrics") == 1


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
    ran = np.zeros((STEPS, 2), bool)
    ran[:end, 0] = ran[begin:, 1] = True
    seen = ran.copy()
    seen[:, 0] = True  # as nobody knows that a name is gone
    load = load_of(np.ones((STEPS, 2)), ran, seen=seen)
    assert len(say_renames(load, names, models)) == said


@pytest.mark.slow
def test_draft_is_made_of_the_policy_that_its_service_names(poor):
    line = Line("replicas.max", "3", "16", "the highest 5 minutes", 1.0, 1.0)
    draft = Draft((line,), (), True, "", 2.0, 1.0, np.nan, 1.0, 1.0, None, None)
    book = load_policies(())
    demand = replace(poor, drafts=(draft,) * 3)
    for w, name in enumerate(("realtime", "batch", book.default)):
        found, today = policy_document(demand, w, "chat")["spec"], to_document(book.policies[name])["spec"]
        assert found == today | {"replicas": today["replicas"] | {"max": 3}}
        assert f"under the policy of today, {name}, 2.0" in policy_text(demand, w, "chat")
