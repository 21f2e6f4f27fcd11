"""The buckets and queries for objectives. Tests on real servers check their meaning."""

import re

import numpy as np
import pytest

from autoscaler.adapters.prometheus.decode import decode_vector
from autoscaler.adapters.prometheus.promql.engines import PER_NAMESPACE
from autoscaler.adapters.prometheus.promql.labels import POD
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    MAX_OBJECTIVES,
    Bounds,
    most_common,
    read_bounds,
    rounded_up_expression,
    within_expression,
)
from autoscaler.catalog.engines import ENGINES, WITHIN
from tests.adapters.prometheus.responses import vector

TTFT = ENGINES["vllm"].readings["ttft_met"]
NAN = float("nan")
HISTOGRAMS = [(name, column) for name, engine in ENGINES.items() for column in WITHIN if column in engine.readings]


def bounds_of(*series: tuple[str, object], scale: float = 1.0) -> Bounds:
    return read_bounds(decode_vector(vector(*(({"le": le}, count) for le, count in series)).encode()), scale)


def queried(expression: str) -> set[str]:
    """The bounds that occur in an expression, as regular expressions or plainly."""
    found = re.findall(r'le=~?"([^"]*)"', expression)
    return {text.replace("[.]", ".").replace("[+]", "+") for each in found for text in each.split("|")}


def test_bounds_come_in_order_with_every_spelling_that_may_occur():
    bounds = bounds_of(("+Inf", 9), ("10.0", 9), ("1", 4), ("1.0", 5), ("0.5", 9))
    assert bounds.values_s.tolist() == [0.5, 1.0, 10.0]
    assert bounds.series.tolist() == [9, 9, 9]
    assert bounds.spellings == (("0.5",), ("1", "1.0"), ("10", "10.0"))
    assert bounds.histograms == 9


@pytest.mark.parametrize("le", ["", "much", "NaN", "-Inf", "1e999", '1"} or up', "1|2", ".*", "1" * 30, "--1"])
def test_a_bound_that_is_no_number_never_gets_into_a_query(le: str):
    bounds = bounds_of(("+Inf", 9), ("1.0", 9), (le, 3))
    assert bounds.values_s.tolist() == [1.0]
    assert queried(within_expression(TTFT, POD, 2.0, bounds)) == {"1", "1.0"}


def test_bounds_in_milliseconds_become_seconds():
    assert bounds_of(("100", 2), ("500", 2), ("+Inf", 2), scale=1e-3).values_s.tolist() == [0.1, 0.5]


def test_an_answer_without_bounds_leaves_nothing_to_ask():
    assert within_expression(TTFT, POD, 1.0, bounds_of()) == ""
    assert within_expression(TTFT, POD, 1.0, bounds_of(("+Inf", 3))) == ""
    assert within_expression(TTFT, POD, 1.0, Bounds.none()) == ""


@pytest.mark.parametrize(
    ("objective_s", "wanted"),
    [
        (1.0, {"1", "1.0"}),
        (0.75, {"0.5", "1", "1.0"}),
        (0.1, {"0.5"}),
        (60.0, {"2.5"}),
    ],
    ids=["on a bound", "between two", "below all", "beyond all"],
)
def test_only_buckets_around_an_objective_are_queried(objective_s: float, wanted: set[str]):
    bounds = bounds_of(("0.5", 3), ("1.0", 3), ("2.5", 3), ("+Inf", 3))
    assert queried(within_expression(TTFT, POD, objective_s, bounds)) == wanted


@pytest.mark.parametrize(("objective_s", "wanted"), [(0.2, "0.3"), (0.3, "0.3"), (1.2, "1.5"), (9.0, ""), (NAN, "")])
def test_rounded_up_counts_to_the_next_bound(objective_s: float, wanted: str):
    bounds = bounds_of(("0.3", 3), ("1.0", 3), ("1.5", 3), ("+Inf", 3))
    assert queried(rounded_up_expression(TTFT, POD, objective_s, bounds)) == set(filter(None, [wanted]))


def test_rounded_up_uses_the_next_bound_of_each_pod():
    bounds = bounds_of(("0.3", 3), ("0.8", 2), ("1.0", 3), *((str(bound), 1) for bound in range(2, 200)), ("+Inf", 3))
    expression = rounded_up_expression(TTFT, POD, 0.75, bounds)
    assert expression.index('le="0.8"') < expression.index('1[.]0"')
    assert queried(expression) == {"0.8", "1", "1.0", "2", "2.0"}


def test_a_pod_with_other_bounds_does_not_affect_others():
    usual = (("0.1", 50), ("0.25", 50), ("0.5", 50))
    alone = within_expression(TTFT, POD, 0.15, bounds_of(*usual, ("+Inf", 50)))
    beside = within_expression(TTFT, POD, 0.15, bounds_of(*usual, ("0.14", 1), ("0.16", 1), ("+Inf", 51)))
    assert f" or {alone} or " in beside
    assert beside.index('"0.14"') < beside.index('"0.1"')


@pytest.mark.parametrize("express", [within_expression, rounded_up_expression])
@pytest.mark.parametrize("objective_s", [0.75, 1.0])
def test_many_odd_bounds_of_a_tenant_displace_no_usual_one(express, objective_s):
    """Five namespaces have the usual bounds, and one of a thousand pods has dense ones of several kinds."""
    usual = [(str(bound), 5 * PER_NAMESPACE + 50) for bound in (0.25, 0.5, 1.0, 2.5)]
    odd = [(f"{0.5 + row / 251:.6f}", PER_NAMESPACE + 1000 + row // 40) for row in range(1, 250)]
    bounds = bounds_of(*usual, *odd, ("+Inf", 6 * PER_NAMESPACE + 1050))
    assert bounds.histograms == 1050
    below = {"0.5"} if express is within_expression and objective_s < 1 else set()
    assert {"1", "1.0"} | below <= queried(express(TTFT, POD, objective_s, bounds))


@pytest.mark.parametrize(("name", "column"), HISTOGRAMS)
def test_a_query_stays_short_with_many_bounds(name: str, column: str):
    random = np.random.default_rng(1)
    odd = [(f"{bound:.10g}", int(random.integers(1, 9))) for bound in random.random(MAX_BOUNDS)]
    expression = within_expression(ENGINES[name].readings[column], POD, 0.5, bounds_of(*odd, ("+Inf", 20)))
    assert len(expression) < 16_000  # VictoriaMetrics refuses queries of more than 16 KiB
    assert expression.count("(") == expression.count(")")
    assert expression.count('"') % 2 == 0


def test_most_common_objectives_are_chosen_and_others_counted():
    objectives_s = np.array([*np.repeat(1.0, 5), *np.repeat(0.15, 7), *np.linspace(2, 3, 20), np.nan])
    chosen, left_out = most_common(objectives_s, pods=100)
    assert chosen[:2] == [0.15, 1.0]
    assert (len(chosen), left_out) == (MAX_OBJECTIVES, 20 + 2 - MAX_OBJECTIVES)
    assert most_common(np.full(3, np.nan), 100) == ([], 0)


def test_a_large_fleet_is_counted_for_fewer_objectives():
    objectives_s = np.linspace(1, 2, 12)
    assert len(most_common(objectives_s, pods=80_000)[0]) == 4
    assert len(most_common(objectives_s, pods=10_000_000)[0]) == 1
