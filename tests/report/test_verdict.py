"""The sentence on top, compared with counts that are known."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.model.money import Money
from autoscaler.report.history import FleetHistory
from autoscaler.report.report import FleetReport, compute
from autoscaler.report.verdict import judge, sentence
from tests.report.loads import facts_of, interactive, load_of, profiles_of

STEPS = 600
NAMES = tuple(ServiceName("", "team", name) for name in ("generous", "right", "short", "strange"))


@pytest.fixture(scope="module")
def report() -> FleetReport:
    """A report of four services of ten hours; the last two missed half of their requests."""
    demand = np.tile([0.5, 1.2, 3.0, 0.5], (STEPS, 1))
    counts = np.tile([6.0, 3.0, 2.0, 2.0], (STEPS, 1))
    missed = np.tile(np.float32([0.0, 0.0, 0.5, 0.5]), (STEPS, 1))
    load = load_of(demand, counts, missed_share=missed)
    history = FleetHistory(load.span, NAMES, {})
    services = len(NAMES)
    return compute(
        "here",
        history,
        load,
        profiles_of(services),
        facts_of(services=services),
        interactive(services),
        ("interactive",) * services,
    )


def doubted(report: FleetReport, *rows: int) -> FleetReport:
    return replace(report, modelled=np.array([row not in rows for row in range(len(NAMES))]))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), "; 2 services missed their objective and would need "),
        ((3,), "; 2 services missed their objective and 1 of them would need "),
        (
            (2, 3),
            "; 2 services missed their objective; what they would need is not known. This policy would have ",
        ),
        ((0, 1, 2, 3), "none of 4 services can be judged; 2 services missed their objective; what they would need"),
    ],
)
def test_measured_miss_counts_when_the_service_is_badly_modelled(report, rows, said):
    verdict = judge(doubted(report, *rows))
    assert (verdict.missing, verdict.missing_unmodelled) == (2, len({2, 3} & {*rows}))
    assert verdict.judged == len(NAMES) - len(rows)
    assert said in sentence(verdict)
    assert ("what 1 of them would need is not known" in sentence(verdict)) == (rows == (3,))


def test_sentence_compares_this_policy_with_the_real_counts(report):
    verdict, (was, ours) = judge(doubted(report, 1, 3)), (report.entry(name).outcome for name in ("actual", "policy"))
    judged = [0, 2]
    assert verdict.policy_gpu_hours == pytest.approx(ours.gpu_hours[judged].sum())
    assert verdict.breach_min == pytest.approx(was.breach_min[judged].sum()) and verdict.breach_min > 0
    usd = ((was.gpu_hours - ours.gpu_hours) * report.facts.usd_per_hour / report.facts.gpus)[judged].sum()
    assert verdict.policy_saved.usd == pytest.approx(usd)
    figures = replace(verdict, policy_gpu_hours=50.0, gpu_hours=40.0, breach_min=600.0, policy_breach_min=3.0)
    for money, said in (
        (Money(20.0, 2), " ($20.00 less)"),
        (Money(-20.0, 2, (("a", "no price"),)), " ($20.00 more for the 1 with a price)"),
        (Money(0.0, 2, (("a", "no price"), ("b", "no price"))), ""),
    ):
        assert sentence(replace(figures, policy_saved=money)).endswith(
            f". This policy would have used 50 GPU-hours in place of 40{said}, with 3 min in breach in place of 10.0 h."
            " 2 services could not be judged."
        )


def test_miss_of_the_model_does_not_count_when_the_model_is_wrong(report):
    unmeasured = replace(report.profiles, assumed_misses=np.array([False, False, False, True]))
    assert judge(replace(doubted(report, 3), profiles=unmeasured)).missing == 1
