"""The chain of a window: what begins when, and that nothing stays when the need goes away."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.chain.links import LOOKAHEAD_S, ChainState, Leads, plan_links
from autoscaler.core.model.chain import Cause, Chain, Link
from autoscaler.core.model.fleet import NodeGroups, Pool
from autoscaler.core.model.forecast import BIN_S, BINS, Forecast
from autoscaler.core.model.quotas import Allowance, Quotas
from autoscaler.core.model.types import TickInput
from autoscaler.core.snapshot import restore, take
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.chain.clusters import GPU, cluster, look, windows
from tests.core.world import fleet, quotas

NAN = np.nan
DUE_S = 10_000.0
LEADS = {Link.NODE: 240.0, Link.WEIGHTS: 360.0, Link.REPLICA: 600.0}


def plan(
    inp: TickInput,
    before: ChainState | None = None,
    decided: list[float] | None = None,
    leads: dict[Link, float] = LEADS,
    requested: dict[Link, float] | None = None,
    forecast: Forecast | None = None,
    planner_s: float = 0.0,
) -> tuple[Chain, ChainState]:
    rows = len(inp.fleet.workloads)
    lead_s = np.array([np.full(rows, leads.get(link, 0.0)) for link in Link])
    requested_s = lead_s if requested is None else np.array([np.full(rows, requested.get(link, 0.0)) for link in Link])
    counts = inp.fleet.replicas if decided is None else np.array(decided)
    leading = Leads(lead_s, requested_s, np.full(rows, planner_s))
    return plan_links(inp, counts, forecast or Forecast.blank(rows), leading, before or ChainState.blank(rows))


def starts(chain: Chain, row: int = 0) -> list[float]:
    return chain.starts_s[:, row].tolist()


def test_each_link_starts_one_lead_before_the_next():
    chain, _ = plan(look(8000.0, cluster([1], free=0), windows([(DUE_S, 3)])))
    assert starts(chain) == [DUE_S - 1200, DUE_S - 960, DUE_S - 600]
    assert (chain.due_s[0], chain.replicas[0], chain.lacking[0], chain.places[0]) == (DUE_S, 3, 2, 0)
    assert chain.window[0] == 0


def test_a_request_counts_the_free_place_that_it_takes_itself():
    """A placeholder is scheduled to the free place first: one alone would create no node."""
    chain, _ = plan(look(DUE_S - 1200, cluster([1], free=1), windows([(DUE_S, 3)])))
    assert (chain.lacking[0], chain.places[0]) == (1, 2)


def test_no_node_is_requested_when_all_replicas_have_a_place():
    chain, _ = plan(look(DUE_S - 1200, cluster([1], free=2), windows([(DUE_S, 3)])))
    assert chain.places[0] == 0
    assert np.isnan(chain.starts_s[Link.NODE, 0]) and chain.starts_s[Link.REPLICA, 0] == DUE_S - 600


def test_window_without_a_node_counts_with_a_requested_one():
    """The next replica finds a node with image and weights, those after it find an empty one."""
    here, schedule = {Link.REPLICA: 60.0}, windows([(DUE_S, 3)])
    first, state = plan(look(DUE_S - 1200, cluster([1], free=1), schedule), leads=here, requested=LEADS)
    assert starts(first) == [DUE_S - 1200, DUE_S - 960, DUE_S - 600] and first.lead_s[:, 0].tolist() == [240, 360, 600]
    came, _ = plan(look(DUE_S - 900, cluster([1], free=2), schedule), state, leads=here, requested=LEADS)
    assert starts(came) == starts(first)
    fits, _ = plan(look(DUE_S - 100, cluster([1], free=2), schedule), leads=here, requested=LEADS)
    assert starts(fits)[Link.REPLICA] == DUE_S - 60


def test_a_link_without_lead_is_left_out():
    chain, _ = plan(look(DUE_S - 800, cluster([1], free=0), windows([(DUE_S, 2)])), leads={**LEADS, Link.WEIGHTS: 0.0})
    assert starts(chain)[1:] == [pytest.approx(NAN, nan_ok=True), DUE_S - 600]
    assert starts(chain)[0] == DUE_S - 840


def test_a_stated_lead_moves_the_links_before_it():
    chain, _ = plan(look(DUE_S - 2000, cluster([1], free=0), windows([(DUE_S, 2)], lead_s=900.0)))
    assert starts(chain) == [DUE_S - 1500, DUE_S - 1260, DUE_S - 900]


def test_no_node_is_requested_unless_the_setting_says_so():
    chain, _ = plan(look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 3)]), requests_nodes=False))
    assert chain.places[0] == 0 and np.isnan(chain.starts_s[Link.NODE, 0])
    assert chain.starts_s[Link.REPLICA, 0] == DUE_S - 600


@pytest.mark.parametrize(("can_add", "places"), [(0.0, 0), (1.0, 1), (2.0, 2), (np.inf, 3)])
def test_no_more_is_requested_than_the_autoscaler_may_add(can_add: float, places: int):
    chain, _ = plan(look(DUE_S - 1000, cluster([1], free=0, can_add=can_add), windows([(DUE_S, 4)])))
    assert chain.places[0] == places


def test_a_pool_that_grows_without_a_known_limit_gets_nodes():
    seen = cluster([1], free=0, can_add=0)
    seen = replace(seen, pools=(Pool(GPU, "H100", grows="pool=gpu"),))
    chain, _ = plan(look(DUE_S - 1000, seen, windows([(DUE_S, 4)])))
    assert chain.places[0] == 3


@pytest.mark.parametrize(
    ("ready", "kinds", "places"),
    [
        ([0, 0, 0], (quotas([0, 0, 0], [6]),), 6),  # one namespace, one ResourceQuota
        ([1, 2, 0], (quotas([0, 0, 0], [6]),), 3),  # beside replicas that are decided
        ([2, 2, 2], (quotas([0, 0, 0], [6]),), 0),
        ([3, 3, 3], (quotas([0, 0, 0], [6]),), 0),  # the quota was lowered
        ([0, 0, 0], (quotas([0, 0, 0], [6], others=4),), 2),
        ([0, 0, 0], (quotas([0, 1, 1], [1, 2]),), 3),  # two tenants
        ([0, 0, 0], (quotas([0, 1, 1], [1, 2], cohort="all"),), 3),  # who lend each other
        ([0, 0, 0], (quotas([0, 0, 0], [6]), quotas([0, 1, 0], [1, 0])), 1),  # two kinds, the last by one alone
        ([0, 0, 0], (quotas([0, 0, -1], [2]),), 102),  # the third has no quota
        ([0, 0, 0], (quotas([0, 0, 0], [NAN]),), 300),  # unknown
    ],
)
def test_requested_places_keep_within_quotas(ready: list[int], kinds: tuple[Quotas, ...], places: int):
    seen = cluster(ready, free=0, quotas=kinds)
    inp = look(DUE_S - 1000, seen, windows(*[[(DUE_S, 200)]] * 3), max_replicas=200.0)
    chain, state = plan(inp)
    assert chain.places.sum() == chain.lacking.sum() == places
    assert plan(inp, state)[0].places.tolist() == chain.places.tolist()
    none = replace(inp, fleet=replace(seen, quotas=(quotas([0, 0, 0], [0]),)))
    assert plan(none, state)[0].places.sum() == 0


def test_quotas_of_pods_and_memory_count_beside_those_of_gpus():
    """Two replicas of the first are decided and have no pod yet; what is left is beside the present pods."""
    pods = Allowance(np.array([0, 0, -1]), np.ones(3), np.array([5.0]))
    memory = Allowance(np.array([0, 1, -1]), np.array([8e9, 8e9, 8e9]), np.array([32e9, 9e9]))
    seen = cluster([1, 1, 1], free=0, allowances=(pods, memory))
    inp = look(DUE_S - 1000, seen, windows(*[[(DUE_S, 50)]] * 3), max_replicas=200.0)
    assert plan(inp)[0].places.tolist() == [4, 1, 49]
    assert plan(inp, decided=[3, 1, 1])[0].places.tolist() == [2, 1, 49]
    beside = replace(inp, fleet=replace(seen, quotas=(quotas([0, 0, 0], [7]),)))
    assert plan(beside)[0].places.sum() == 4


def test_free_places_beyond_a_quota_are_not_requested():
    seen = cluster([1, 1], free=5, quotas=(quotas([0, 1], [2, 9]),))
    chain, _ = plan(look(DUE_S - 1000, seen, windows([(DUE_S, 9)], [(DUE_S, 9)])))
    assert chain.places.tolist() == [1, 8] and chain.lacking.tolist() == [0, 4]


@pytest.mark.parametrize("why", ["creation_failed", "refused_replicas"])
def test_refused_workload_gets_no_node_requested(why: str):
    """Such as beyond a quota of pods, of memory, or by an admission policy."""
    seen = cluster([1], free=0)
    refused = replace(seen.obstacles, **{why: np.array([True if why == "creation_failed" else 2.0])})
    chain, _ = plan(look(DUE_S - 1000, replace(seen, obstacles=refused), windows([(DUE_S, 3)])))
    assert chain.places[0] == 0


def test_the_higher_priority_gets_the_free_place():
    schedule = windows([(DUE_S, 2)], [(DUE_S, 2)])
    inp = look(DUE_S - 1000, cluster([1, 1], free=1), schedule)
    inp = replace(inp, spec=replace(inp.spec, priority=np.array([1.0, 2.0])))
    assert plan(inp)[0].lacking.tolist() == [1, 0]


def test_the_earlier_window_gets_the_free_place():
    schedule = windows([(DUE_S + 60, 2)], [(DUE_S, 2)])
    assert plan(look(DUE_S - 1000, cluster([1, 1], free=1), schedule))[0].lacking.tolist() == [1, 0]


def test_places_that_other_windows_count_on_are_requested_too():
    """Otherwise the placeholder of the first workload would take the free place of the second."""
    chain, _ = plan(look(DUE_S - 1000, cluster([1, 1], free=1), windows([(DUE_S + 60, 2)], [(DUE_S, 2)])))
    assert chain.places.tolist() == [1, 1]
    later = windows([(DUE_S, 3)], [(DUE_S + 60, 2)])  # the second one lacks a place, but its link has not begun
    leads = {**LEADS, Link.NODE: 30.0}
    chain, _ = plan(look(DUE_S - 990, cluster([1, 1], free=1), later), leads=leads)
    assert (chain.lacking.tolist(), chain.places.tolist()) == ([1, 1], [2, 0])


def test_a_request_for_the_sake_of_another_window_ends_with_it():
    schedule = windows([(DUE_S, 2)], [(DUE_S, 2)])
    inp = look(DUE_S - 1000, cluster([1, 1], free=1), schedule)
    chain, state = plan(inp)
    assert chain.places.tolist() == [1, 1]
    alone = replace(inp, schedule=windows([(DUE_S, 2)], [(NAN, NAN)]))
    assert plan(alone, state)[0].places.tolist() == [0, 0]


def test_windows_of_other_pools_request_nothing():
    groups = NodeGroups.of_pools((Pool(GPU, "H100"), Pool(GPU, "A100")), np.array([1.0, 2.0]))
    groups = replace(groups, can_add=np.array([np.inf, np.inf]))
    pools = (Pool(GPU, "H100"), Pool(GPU, "A100"))
    seen = fleet([1, 1], pools=pools, pool=np.array([0, 1]), groups=groups)
    assert plan(look(DUE_S - 1000, seen, windows([(DUE_S, 2)], [(DUE_S, 2)])))[0].places.tolist() == [1, 0]


def test_replicas_that_are_decided_need_no_node():
    """Pods that cannot be scheduled make their autoscaler create a node anyway."""
    inp = look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 3)]))
    assert plan(inp, decided=[2])[0].places[0] == 1
    assert plan(inp, decided=[3])[0].places[0] == 0


def test_overlapping_windows_need_the_larger_count_once():
    schedule = windows([(DUE_S, 3), (DUE_S + 60, 5), (DUE_S + 120, 4)])
    chain, _ = plan(look(DUE_S - 1000, cluster([1], free=1), schedule))
    assert (chain.due_s[0], chain.replicas[0], chain.places[0]) == (DUE_S, 3, 4)


def test_a_window_is_limited_by_the_maximum():
    chain, _ = plan(look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 9)]), max_replicas=2.0))
    assert (chain.replicas[0], chain.places[0]) == (2, 1)


def test_places_stay_when_the_new_node_has_room():
    """Without them the autoscaler would remove the empty node again."""
    schedule = windows([(DUE_S, 3)])
    _, state = plan(look(DUE_S - 1190, cluster([1], free=0), schedule))
    chain, state = plan(look(DUE_S - 1000, cluster([1], free=2), schedule), state)
    assert (chain.lacking[0], chain.places[0]) == (0, 2)
    assert starts(chain)[0] == DUE_S - 1200
    chain, _ = plan(look(DUE_S - 900, cluster([1], free=2), schedule), state, decided=[3])
    assert chain.places[0] == 0


def test_a_lead_that_shrinks_does_not_cancel_a_started_link():
    schedule = windows([(DUE_S, 3)])
    _, state = plan(look(DUE_S - 1200, cluster([1], free=0), schedule))
    shorter = {**LEADS, Link.NODE: 100.0}
    assert plan(look(DUE_S - 1195, cluster([1], free=0), schedule), leads=shorter)[0].places[0] == 0
    assert plan(look(DUE_S - 1195, cluster([1], free=0), schedule), state, leads=shorter)[0].places[0] == 2


CANCELLED = {
    "nodes cannot be requested": lambda inp: replace(inp, requests_nodes=np.array([False])),
    "no node can be requested": lambda inp: replace(inp, requests_nodes=None),
    "the window is removed": lambda inp: replace(inp, schedule=windows([])),
    "it is empty": lambda inp: replace(inp, schedule=windows([(NAN, NAN)])),
    "it begins": lambda inp: replace(inp, now_s=DUE_S),
    "it is put off": lambda inp: replace(inp, schedule=windows([(DUE_S + LOOKAHEAD_S * 3, 3)])),
    "the workload is paused": lambda inp: replace(inp, fleet=replace(inp.fleet, paused=np.array([True]))),
    "another owner sets the count": lambda inp: replace(inp, fleet=replace(inp.fleet, other_owner=("HPA/x",))),
    "its policy is invalid": lambda inp: replace(inp, spec=replace(inp.spec, max_replicas=np.array([NAN]))),
}


@pytest.mark.parametrize("why", CANCELLED)
def test_nothing_remains_when_the_need_goes_away(why: str):
    inp = look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 3)]))
    chain, state = plan(inp)
    assert chain.places[0] == 2
    chain, state = plan(CANCELLED[why](inp), state)
    assert chain.places[0] == 0
    assert not (state.places > 0).any() and np.isnan(state.until_s).all()


def test_a_smaller_window_keeps_fewer_places():
    inp = look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 4)]))
    _, state = plan(inp)
    assert plan(replace(inp, schedule=windows([(DUE_S, 2)])), state)[0].places[0] == 1


def test_places_of_a_past_window_do_not_count_for_a_later_one():
    first, second = windows([(DUE_S, 3)]), windows([(DUE_S + 5000, 3)])
    _, state = plan(look(DUE_S - 1000, cluster([1], free=0), first))
    assert plan(look(DUE_S + 10, cluster([1], free=0), second), state)[0].places[0] == 0


leads = st.fixed_dictionaries({link: st.floats(0, 3000) for link in Link})


@given(leads, st.integers(1, 6), st.integers(0, 6), st.floats(0, 1), st.integers(1, 6))
def test_a_link_never_starts_later_than_due_minus_its_leads(
    lead_s: dict[Link, float], wanted: int, free: int, moment: float, present: int
):
    total_s = sum(lead_s.values())
    now_s = DUE_S - moment * min(total_s + 100, LOOKAHEAD_S)
    chain, _ = plan(look(now_s, cluster([present], free), windows([(DUE_S, wanted)])), leads=lead_s)
    lacking = max(wanted - present - free, 0)
    if now_s >= DUE_S or wanted <= present:
        assert chain.places[0] == 0 and np.isnan(chain.due_s[0])
        return
    assert chain.starts_s[Link.REPLICA, 0] == DUE_S - lead_s[Link.REPLICA]
    assert not chain.starts_s[Link.WEIGHTS, 0] > DUE_S - lead_s[Link.REPLICA] - lead_s[Link.WEIGHTS] + 1e-6
    assert not chain.starts_s[Link.NODE, 0] > DUE_S - total_s + 1e-6
    begun = now_s >= DUE_S - lead_s[Link.REPLICA] - lead_s[Link.WEIGHTS] - lead_s[Link.NODE]
    assert chain.places[0] == (wanted - present if begun and lacking else 0)


events = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 5), st.booleans(), st.integers(0, 5)), min_size=1, max_size=30
)


@given(events)
def test_places_never_exceed_the_need_and_end_with_it(history: list[tuple[int, int, bool, int]]):
    """Free GPUs, decided replicas and the window change at random."""
    state = ChainState.blank(1)
    for turn, (free, decided, exists, wanted) in enumerate(history):
        schedule = windows([(DUE_S, wanted)] if exists and wanted else [(NAN, NAN)])
        inp = look(DUE_S - 1200 + 30 * turn, cluster([1], free), schedule)
        chain, state = plan(inp, state, decided=[decided])
        assert 0 <= chain.places[0] <= (max(wanted - decided, 0) if exists else 0)
        assert np.array_equal(chain.places, np.nan_to_num(state.places))
    chain, state = plan(look(DUE_S, cluster([1], 0), windows([(DUE_S, 5)])), state)
    assert chain.places[0] == 0 and np.isnan(state.until_s[0])


# --- forecasts

NOTHING = windows([])
SINCE_S = DUE_S - BIN_S  # the bins of a forecast: what the third one needs is due at DUE_S


def expect(*replicas: float, since_s: float = SINCE_S, weekly: bool = False) -> Forecast:
    """Return a forecast of one workload, the present bin first; those that are left out need as much as the last."""
    column = np.array([*replicas, *[replicas[-1]] * (BINS - len(replicas))])[:, None]
    return Forecast(column, np.full((BINS, 1), weekly), np.array([since_s]))


def test_a_rise_starts_the_links_of_node_and_weights():
    inp = look(SINCE_S + 60, cluster([1], free=0), NOTHING)
    chain, _ = plan(inp, forecast=expect(1, 1, 3))
    assert starts(chain)[:2] == [DUE_S - 1200, DUE_S - 960]
    assert np.isnan(chain.starts_s[Link.REPLICA, 0])  # the planner recommends them
    assert (chain.due_s[0], chain.replicas[0], chain.lacking[0], chain.places[0]) == (DUE_S, 3, 2, 2)
    assert (chain.cause[0], chain.window[0]) == (Cause.DAY_AGO, -1)
    assert plan(inp, forecast=expect(1, 1, 3, weekly=True))[0].cause[0] == Cause.WEEK_AGO


def test_a_rise_waits_for_its_link():
    inp = look(SINCE_S + 60, cluster([1], free=0), NOTHING)
    chain, _ = plan(inp, forecast=expect(1, 1, 3), leads={Link.NODE: 100.0, Link.REPLICA: 60.0})
    assert (chain.due_s[0], chain.places[0]) == (DUE_S, 0)


def test_nodes_stand_before_the_planner_recommends_the_replicas():
    """The planner looks one mean start ahead, which may be longer than a start on a node that has the weights."""
    inp = look(SINCE_S, cluster([1], free=0), NOTHING)
    leads = {Link.NODE: 240.0, Link.REPLICA: 60.0}
    chain, _ = plan(inp, forecast=expect(1, 1, 3), leads=leads, planner_s=400.0)
    assert chain.starts_s[Link.NODE, 0] == DUE_S - 640


def test_each_step_of_a_rise_has_links_of_its_own():
    def at(now_s: float) -> float:
        chain, _ = plan(look(now_s, cluster([1], free=0), NOTHING), forecast=expect(1, 1, 3, 3, 3, 6, 2), leads=leads)
        return float(chain.places[0])

    leads = {Link.NODE: 300.0, Link.REPLICA: 60.0}
    assert [at(DUE_S + BIN_S * bins - 360 + after) for bins, after in ((0, -1), (0, 0), (2, 0))] == [0, 2, 2]
    assert at(DUE_S + 3 * BIN_S - 361) == 2  # until the end of the bin that needs them
    assert at(DUE_S + 3 * BIN_S - 360) == 5


def test_a_load_that_was_no_higher_starts_nothing():
    inp = look(DUE_S, cluster([3], free=0), NOTHING)
    chain, _ = plan(inp, forecast=expect(3, 3, 2, 3))
    assert chain.places[0] == 0 and np.isnan(chain.due_s[0])


def test_a_rise_with_a_place_for_all_starts_nothing():
    inp = look(DUE_S, cluster([1], free=4), NOTHING)
    chain, _ = plan(inp, forecast=expect(1, 3), leads={Link.NODE: 240.0, Link.REPLICA: 60.0})
    assert chain.places[0] == 0 and np.isnan(chain.due_s[0])
    fetched, _ = plan(inp, forecast=expect(1, 3), leads={Link.WEIGHTS: 300.0, Link.REPLICA: 60.0})
    assert starts(fetched)[1] == DUE_S - BIN_S - 360 and fetched.places[0] == 0


def test_a_rise_is_limited_by_the_maximum():
    inp = look(DUE_S, cluster([1], free=0), NOTHING, max_replicas=2.0)
    assert plan(inp, forecast=expect(1, 9))[0].places[0] == 1


def test_window_and_rise_need_the_larger_count_once():
    inp = look(DUE_S - 1000, cluster([1], free=0), windows([(DUE_S, 3)]))
    chain, _ = plan(inp, forecast=expect(1, 1, 5))
    assert (chain.cause[0], chain.replicas[0], chain.places[0]) == (Cause.WINDOW, 3, 4)


RISE_CANCELLED = {
    why: CANCELLED[why]
    for why in (
        "nodes cannot be requested",
        "no node can be requested",
        "the workload is paused",
        "another owner sets the count",
        "its policy is invalid",
    )
} | {
    "its bin ends": lambda inp: replace(inp, now_s=DUE_S + 2 * BIN_S),
    "the policy states a capacity": lambda inp: replace(inp, spec=replace(inp.spec, concurrency=np.array([8.0]))),
}


@pytest.mark.parametrize("why", RISE_CANCELLED)
def test_nothing_remains_when_the_rise_goes_away(why: str):
    inp, forecast = look(DUE_S - 1000, cluster([1], free=0), NOTHING), expect(1, 1, 3, 1)
    chain, state = plan(inp, forecast=forecast)
    assert chain.places[0] == 2
    chain, state = plan(RISE_CANCELLED[why](inp), state, forecast=forecast)
    assert chain.places[0] == 0
    assert not (state.places > 0).any() and np.isnan(state.until_s).all()


def test_places_stay_until_replicas_take_them_or_the_bin_ends():
    """The load may come late, and the new node has room meanwhile."""
    forecast = expect(1, 1, 3)
    _, state = plan(look(DUE_S - 1000, cluster([1], free=0), NOTHING), forecast=forecast)
    for now_s in np.arange(DUE_S - 900, DUE_S + 2 * BIN_S, 100.0).tolist():
        since_s = SINCE_S + (now_s - SINCE_S) // BIN_S * BIN_S
        shifted = replace(forecast, replicas=np.roll(forecast.replicas, -round((since_s - SINCE_S) / BIN_S), axis=0))
        seen = look(now_s, cluster([1], free=2), NOTHING)
        chain, state = plan(seen, state, forecast=replace(shifted, since_s=np.array([since_s])))
        assert chain.places[0] == 2 and chain.due_s[0] == DUE_S
    assert plan(seen, state, forecast=shifted, decided=[3])[0].places[0] == 0


turns = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 1)), min_size=4, max_size=30)


@given(turns, st.lists(st.integers(0, 6), min_size=1, max_size=BINS - 1), leads)
def test_places_of_a_forecast_never_exceed_its_need(
    history: list[tuple[int, int, int]], replicas: list[int], lead_s: dict[Link, float]
):
    """Free GPUs and decided replicas change at random, and the planner is late with its next turn."""
    state, now_s = ChainState.blank(1), SINCE_S
    forecast = expect(*replicas, 0)
    for free, decided, passed in history:
        now_s += 300.0 * passed
        chain, state = plan(look(now_s, cluster([1], free), NOTHING), state, [decided], lead_s, forecast=forecast)
        later = replicas[max(int((now_s - SINCE_S) // BIN_S), 0) :]
        assert 0 <= chain.places[0] <= max(max(later, default=0) - decided, 0)
        assert np.array_equal(chain.places, np.nan_to_num(state.places))
        if not np.isnan(chain.due_s[0]):
            assert chain.due_s[0] + 2 * BIN_S > now_s
    chain, state = plan(look(SINCE_S + BINS * BIN_S, cluster([1], 0), NOTHING), state, forecast=forecast)
    assert chain.places[0] == 0 and np.isnan(state.until_s[0])


# --- in a tick


def test_replicas_are_requested_one_lead_before_the_window():
    """The tick orders them at the start of their link, and not earlier because their node is still to come."""
    schedule, state = windows([(DUE_S, 3)]), Memory.empty()
    ordered_s, requested_s = NAN, NAN
    for now_s in np.arange(DUE_S - 400, DUE_S, 5.0).tolist():
        inp = look(now_s, cluster([1], free=0), schedule)
        decision, state = tick(inp, state)
        if decision.chain.places[0] > 0:
            requested_s = np.fmin(requested_s, now_s)
        if decision.replicas[0] == 3:
            ordered_s = now_s
            break
    lead_s = decision.chain.lead_s[:, 0]
    assert 0 <= ordered_s - (DUE_S - lead_s[Link.REPLICA]) < 5
    assert 0 <= requested_s - (DUE_S - lead_s[Link.REPLICA] - lead_s[Link.WEIGHTS] - lead_s[Link.NODE]) < 5
    assert decision.chain.places[0] == 0


def test_a_restart_in_the_middle_of_a_chain_changes_nothing():
    """The new node has room already, so only what was saved says that places are on request."""
    schedule, clock_shift_s = windows([(DUE_S, 3)]), 50_000.0
    inp = look(DUE_S - 150, cluster([1], free=0), schedule)
    decision, memory = tick(inp, Memory.empty())
    assert decision.chain.places[0] == 2
    saved = take(memory, inp.fleet.workloads, inp.now_s, wall_s=1.7e9)

    later_s = 30.0  # the new process has another clock, and has seen nothing yet
    shifted = replace(schedule, start_s=schedule.start_s - clock_shift_s, until_s=schedule.until_s - clock_shift_s)
    now_s = inp.now_s + later_s - clock_shift_s
    after = look(now_s, cluster([1], free=2, created_s=now_s - 9000), shifted)
    restored, _ = restore(saved, Memory.empty(), after.fleet, now_s, wall_s=1.7e9 + later_s)
    decision, _ = tick(after, restored)
    assert decision.chain.places[0] == 2
    assert tick(after, Memory.empty())[0].chain.places[0] == 0
