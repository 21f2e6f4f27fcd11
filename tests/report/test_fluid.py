"""The queue, the delay of a start and the figures of a course, compared with slow plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.measure.capacity import compute_carried_load
from autoscaler.report.columns import ConstantColumn, PolicyColumn, actual, find_constant_counts
from autoscaler.report.document import total
from autoscaler.report.fluid import FleetView, Reserve, follow
from autoscaler.report.history import FleetHistory
from autoscaler.report.outcome import sum_up
from autoscaler.report.report import compute, find_holding
from tests.report.loads import START_S, STEP_S, facts_of, interactive, load_of, profiles_of

pytestmark = pytest.mark.slow


class Scripted:
    """A column that orders what it is told, step by step."""

    name, title = "scripted", "as scripted"

    def __init__(self, counts):
        self.counts, self.views = counts, []

    def decide(self, view: FleetView):
        self.views.append(view)
        return np.array([self.counts[view.step]], np.float64)


demands = st.lists(st.floats(0, 8), min_size=3, max_size=40)


@given(demands, st.data())
def test_course_equals_plain_python_when_counts_are_scripted(demand, data):
    counts = data.draw(st.lists(st.integers(0, 8), min_size=len(demand), max_size=len(demand)))
    load, p = (
        load_of(np.array([demand]).T, np.full((len(demand), 1), 3)),
        profiles_of(steepness=0.02, unavoidable=0.001),
    )
    asleep = data.draw(st.integers(0, 3))
    course = follow(Scripted(counts), load, p, reserve=Reserve(np.array([float(asleep)]), np.array([15.0])))
    backlog, missed, delay = 0.0, [], 2
    ready = []
    for step, x in enumerate(np.float32(demand).astype(float)):
        recent = [counts[at] if at >= 0 else 3 for at in range(step - delay, step + 1)]
        now = max(min(recent), min(*recent[-2:], min(recent) + asleep))
        ready.append(now)
        carried = max(0.93 * now, now - 0.16 * math.sqrt(now))
        before, backlog = backlog, max(backlog + (x - carried) * STEP_S, 0.0)
        late_s = sum(before + (backlog - before) * (at + 0.5) / 6000 > 0.8 * carried for at in range(6000)) / 6000
        busy = min(x / now, 0.93) if now else 0.93
        beside = min(0.001 + 0.02 * busy**2 / (1 - busy), 1)
        missed.append(x * STEP_S / 0.1 * (late_s + (1 - late_s) * beside))
    assert course.ready[:, 0].tolist() == ready
    assert course.missed[:, 0] == pytest.approx(missed, abs=1.5, rel=1e-3)


def test_new_replica_serves_after_a_cold_start_when_ordered():
    counts = [1, 1, 4, 4, 4, 2, 2, 5, 5, 5]
    course = follow(Scripted(counts), load_of(np.ones((10, 1)), np.ones((10, 1))), profiles_of(cold_start_s=180.0))
    assert course.wanted[:, 0].tolist() == counts
    assert course.ready[:, 0].tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]


def test_column_sees_its_own_queue_when_it_orders_too_few():
    column = Scripted([1] * 8)
    follow(column, load_of(np.full((8, 1), 2.0), np.full((8, 1), 4)), profiles_of(slots=30.0), start=np.ones(1))
    carried = float(compute_carried_load(np.array([1.0]))[0])
    assert [view.waiting[0] for view in column.views] == pytest.approx([n * (2 - carried) * 60 / 0.1 for n in range(8)])
    assert column.views[3].missed_share[0] == 1.0
    assert column.views[3].running[0] == 30  # all slots are taken


def test_figures_equal_plain_python_when_counts_change():
    counts = [2] * 90 + [5] * 30 + [2] + [6] * 39 + [1] * 20
    demand = np.where(np.arange(180) % 60 < 20, 3.0, 0.5)[:, None]
    load, p = load_of(demand, np.full((180, 1), 2)), profiles_of(steepness=0.001)
    figures = sum_up(follow(Scripted(counts), load, p), load, p, facts_of(gpus=4.0, usd=10.0), interactive())
    assert figures.gpu_hours[0] == pytest.approx(sum(counts) / 60 * 4)
    assert figures.usd[0] == pytest.approx(sum(counts) / 60 * 10)
    assert figures.usd_per_thousand_requests[0] == pytest.approx(1e3 * figures.usd[0] / figures.requests[0])
    whole = total(figures)
    assert whole["usd_per_thousand_requests"] == pytest.approx(figures.usd_per_thousand_requests[0], rel=1e-5)
    assert (figures.changes[0], figures.flaps[0], figures.cold_starts[0]) == (4, 1, 7)
    missed = follow(Scripted(counts), load, p).missed[:, 0].astype(float)
    asked = demand[:, 0] * 600
    assert figures.attainment[0] == pytest.approx(1 - missed.sum() / asked.sum())
    assert figures.breach_min[0] == sum(m > 0.01 * a + 1e-6 for m, a in zip(missed, asked, strict=True))
    by_hour: dict[int, list[float]] = {}
    for step in range(180):
        hour = by_hour.setdefault(int((START_S + (step + 0.5) * 60) // 3600), [0.0, 0.0])
        hour[0] += missed[step]
        hour[1] += asked[step]
    worst = max(by_hour, key=lambda each: by_hour[each][0])
    assert figures.worst_s[0] == worst * 3600
    assert figures.worst_share[0] == pytest.approx(1 - by_hour[worst][0] / by_hour[worst][1])


def test_cost_of_tokens_leaves_out_services_without_them():
    """An engine that tells no tokens would make those of others dearer; one without requests costs what it costs."""
    demand = np.tile([0.5, 0.5, 0.0], (60, 1))
    tokens = np.tile(np.float32([1000, 0, 0]), (60, 1))
    load, p = load_of(demand, np.ones((60, 3)), output_tokens=tokens), profiles_of(3)
    figures = sum_up(actual(load, p), load, p, facts_of(services=3, usd=10.0), interactive(3))
    assert np.isnan(figures.output_tokens).tolist() == [False, True, False]
    whole = total(figures)
    assert (whole["usd"], whole["without_tokens"]) == (30.0, 1)
    assert whole["usd_per_million_tokens"] == pytest.approx(1e6 * 20.0 / 60_000)


@given(st.floats(0.2, 6), st.integers(1, 4))
def test_constant_count_is_least_when_it_meets_the_objective(high, period):
    steps = np.arange(240)
    demand = (high * (0.5 + 0.5 * np.sin(steps / 40 * period)))[:, None]
    load, p = load_of(demand, np.full((240, 1), 9)), profiles_of(steepness=0.005)
    (found,) = find_constant_counts(load, p, np.array([0.99])).tolist()

    def attainment(count: float) -> float:
        counts = np.array([count])
        return sum_up(
            follow(ConstantColumn(counts), load, p, start=counts), load, p, facts_of(), interactive()
        ).attainment[0]

    assert attainment(found) >= 0.99 - 1e-9
    assert found == 1 or attainment(found - 1) < 0.99


def test_policy_follows_the_day_and_keeps_its_objective():
    steps = np.arange(2 * 1440)
    demand = np.maximum(6 * np.sin(steps / 1440 * 2 * np.pi - 1.5), 0.3)[:, None]
    load, p, spec = load_of(demand, np.full((len(steps), 1), 8)), profiles_of(steepness=0.002), interactive()
    figures = sum_up(follow(PolicyColumn(load, p, spec), load, p), load, p, facts_of(), spec)
    assert figures.attainment[0] > 0.99
    assert figures.gpu_hours[0] < 0.75 * 8 * 48  # of the eight that ran
    assert figures.max_replicas[0] <= 16


def test_auto_rests_when_the_daemon_saw_a_gateway():
    spec = interactive(2).with_columns({"idle_after_s": np.full(2, np.inf), "attainment": np.full(2, 0.5)})
    demand = np.where(np.arange(400) < 60, 1.0, 0.0)[:, None] * np.ones(2)
    load, speed = load_of(demand, np.full((400, 2), 2)), profiles_of(2)
    services = tuple(ServiceName("", "team", f"{letter}-0") for letter in "ab")
    holds = find_holding(services, {("team", "b-0"), ("other", "a-0")})
    history = FleetHistory(load.span, services, {})
    made = compute("here", history, load, speed, facts_of(services=2), spec, ("p",) * 2, holds=holds)
    never, rests = made.entry("policy").course.wanted[-1].tolist()
    assert (never, rests) == (1, 0)
    assert [note for note in made.notes if "`idleAfter: auto` counts as never for 1 of 2 services" in note]


def test_policy_never_shrinks_when_nothing_is_seen():
    steps = 400
    seen = np.ones((steps, 1), bool)
    seen[200:300] = False
    demand = np.where(seen, 3.0, 0.0)
    load = load_of(demand, np.full((steps, 1), 5), seen=seen)
    course = follow(PolicyColumn(load, profiles_of(), interactive()), load, profiles_of())
    hidden = course.wanted[201:301, 0]
    assert (np.diff(hidden) >= 0).all()
    figures = sum_up(course, load, profiles_of(), facts_of(), interactive())
    assert figures.gpu_hours[0] == pytest.approx(course.wanted[seen].sum() / 60, rel=1e-6)


@pytest.mark.parametrize(("per_s", "after"), [(30.0, [4, 2, 1]), (60.0, [6, 5, 4]), (180.0, [6, 6, 6, 5, 5, 5, 4])])
def test_count_shrinks_by_one_step_in_each_period(per_s, after):
    spec = interactive().with_columns({"down_period_s": np.array([per_s]), "max_replicas": np.array([9.0])})
    column = PolicyColumn(load_of(np.ones((9, 1)), np.full((9, 1), 8)), profiles_of(), spec)
    wanted, found = np.array([8.0]), []
    for step in range(len(after)):
        view = FleetView(step, 0.0, STEP_S, wanted, *[np.zeros(1)] * 7)
        wanted = column._limit(np.ones(1), view)
        found.append(wanted[0])
    assert found == after


def test_column_without_a_rule_has_no_figures():
    load, p = load_of(np.ones((30, 2)), np.ones((30, 2))), profiles_of(2)

    class Half:
        name, title = "rule", "your rule"

        def decide(self, view):
            return np.array([2.0, np.nan])

    figures = sum_up(follow(Half(), load, p), load, p, facts_of(services=2), interactive(2))
    assert figures.gpu_hours[0] == pytest.approx(1.0)
    assert np.isnan(figures.gpu_hours[1])
