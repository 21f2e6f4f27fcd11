"""When to buy, part by part: triggers, shortages, slices, and which advice is enough."""

import math
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.range.capacity_queries import QUERIES, ExportedUse, read_exported_use
from autoscaler.adapters.record.quarter_hours import HistoryWriter, UseName
from autoscaler.adapters.record.quarter_values import DAY_S, FIELDS
from autoscaler.catalog.devices import find_device
from autoscaler.cli.main import main
from autoscaler.core.supply.mig_layout import ONE, THREE, Cut, count_gpus
from autoscaler.demand.advice import BUY, KINDS, Advice, measure_slices
from autoscaler.demand.capacity import (
    BuyLimits,
    GpuHistory,
    capacity_of_exported,
    capacity_of_record,
    find_shortage,
    find_triggers,
)
from autoscaler.demand.device_choice import DeviceChoice
from autoscaler.demand.purchase import Purchase, _cover, is_same_kind
from autoscaler.ports import Unavailable

POOL = ("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3", "")
CHAT, BATCH = (UseName("team", name, "Deployment", POOL) for name in ("chat", "batch"))
HOURS = 48
MIDNIGHT_S = 1_780_272_000


def capacity(pools=(POOL,), names=(CHAT, BATCH), hours=HOURS, **columns):
    """Return a history in which workloads hold and need 4 GPUs each, of 16 in each pool; columns: [W] or [H, W]."""
    size, of_pools = (hours, len(names)), (hours, len(pools))
    values = {"gpus": 4.0, "idle": 0.0, "needed": 4.0, "lacking": 0.0, "beyond": 0.0, "lacking_s": 0.0, "beyond_s": 0.0}
    tables = {name: np.broadcast_to(columns.get(name, value), size).astype(float) for name, value in values.items()}
    of_pool = {"pool_gpus": 16.0, "pool_busy": 8.0}
    tables |= {
        name: np.broadcast_to(columns.get(name, value), of_pools).astype(float) for name, value in of_pool.items()
    }
    return GpuHistory(source="a test", start_s=0.0, workloads=names, pools=pools, **tables)


def in_hours(*of, value, column=0):
    found = np.zeros((HOURS, 2))
    found[list(of), column] = value
    return found


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ({}, set()),
        ({"lacking_s": in_hours(3, value=1800)}, set()),
        ({"lacking_s": in_hours(3, value=1801)}, {("queued", "team/chat")}),
        ({"lacking_s": in_hours(20, 28, value=1000)}, {("queued", "team/chat")}),  # one day, though not one date
        ({"lacking_s": in_hours(3, 30, value=1000)}, set()),
        ({"beyond_s": in_hours(3, value=3000, column=1)}, {("ceiling", "team/batch")}),
        ({"pool_busy": 12.8}, set()),
        ({"pool_busy": 13.0}, {("pool_full", "NVIDIA-H100-80GB-HBM3")}),
        ({"pool_busy": 13.0, "pool_gpus": np.nan}, set()),
    ],
)
def test_triggers_are_reached_beyond_their_limits(changed, reached):
    triggers = find_triggers(capacity(**changed), BuyLimits())
    assert {(each.kind, each.subject) for each in triggers if each.reached} == reached


def test_nothing_is_triggered_by_less_than_a_day():
    made = capacity(hours=23, lacking_s=np.full((23, 2), 3600.0), pool_busy=16.0)
    assert find_triggers(made, BuyLimits()) == ()
    said = Purchase("a test", made.known_h, BuyLimits(), (), (), ("the GPUs of 23 hours are known",)).sentence
    assert said == "Whether GPUs are short cannot be known: the GPUs of 23 hours are known."


def test_a_pool_is_judged_by_as_many_days_as_there_are():
    (trigger,) = find_triggers(capacity(pool_busy=15.0), BuyLimits())
    assert trigger.days == 2
    assert "history reaches no further than 2 days" in trigger.sentence
    (recent,) = find_triggers(capacity(pool_busy=np.repeat([[16.0], [1.0]], 24, axis=0)), BuyLimits(days=1))
    assert not recent.reached
    assert "no further" not in recent.sentence


@pytest.mark.parametrize(
    ("changed", "lacks"),
    [
        ({}, 0),
        ({"lacking": in_hours(3, value=1.0), "lacking_s": in_hours(3, value=1801)}, 2),  # two GPUs for half of the hour
        ({"lacking": np.full((HOURS, 2), 1.5), "lacking_s": np.full((HOURS, 2), 3600)}, 3),  # of both workloads
        ({"pool_busy": 16.0}, 4),  # 16 of 20 are 80 %
        (
            {"beyond": in_hours(3, value=6.0), "beyond_s": in_hours(3, value=3600)},
            0,
        ),  # 8 are free: its ceiling holds it
        ({"beyond": in_hours(3, value=6.0), "beyond_s": in_hours(3, value=3600), "pool_busy": 12.0}, 2),
    ],
)
def test_shortage_is_what_the_reached_triggers_lack(changed, lacks):
    made = capacity(**changed)
    assert find_shortage(made, POOL, find_triggers(made, BuyLimits())) == lacks


def test_history_of_a_record_is_summed_up_by_hours(tmp_path):
    writer = HistoryWriter(tmp_path, 10**9)
    names = [CHAT, UseName("", "", "", POOL)]
    for quarter in (*range(90, 100), 104):  # over midnight, with a hole of an hour
        writer._from_s = MIDNIGHT_S + quarter * 900
        values = np.full((len(FIELDS), 2), np.nan)
        values[:, 0] = [4, 3, 1, 3, 0.5, 0, 90, 0]
        values[:3, 1] = [16, 4, 1]
        writer._write(900, names, values)
    made = capacity_of_record(tmp_path, MIDNIGHT_S + 91 * 900)
    assert made.workloads == (CHAT,)
    assert made.pools == (POOL,)
    assert made.start_s == MIDNIGHT_S + 22 * 3600
    np.testing.assert_allclose(made.gpus[:, 0], [4, 4, 4, np.nan, 4])
    np.testing.assert_allclose(made.lacking_s[:, 0], [90, 360, 360, np.nan, 90], rtol=0.02)
    np.testing.assert_allclose(made.pool_gpus[:, 0], [16, 16, 16, np.nan, 16])
    assert made.known_h == 4
    with pytest.raises(Unavailable, match="no quarter hour of this span"):
        capacity_of_record(tmp_path, MIDNIGHT_S + 3 * DAY_S)


def test_absent_series_are_zero_while_others_are_there():
    key = ("team", "chat", "Deployment", *POOL)
    hours = np.array([3600.0, np.nan])
    columns = {name: {} for name in QUERIES} | {"needed": {key: hours}, "pool": {("", "", "", *POOL): 16 * hours}}
    made = capacity_of_exported(ExportedUse(0.0, 2, columns, ()), "a server")
    np.testing.assert_allclose(made.lacking_s[:, 0], [0, np.nan])
    np.testing.assert_allclose(made.needed[:, 0], [1, np.nan])
    np.testing.assert_allclose(made.pool_busy[:, 0], [0, np.nan])
    assert capacity_of_exported(ExportedUse(0.0, 2, {name: {} for name in QUERIES}, ()), "a server") is None


class Wide:
    """A server with these workloads, each of which needs a GPU; no real one is filled with a year for this."""

    left_out = ()

    def __init__(self, *labels):
        self.labels, self.asked = labels, 0

    def query(self, expression, start_s, end_s, step_s):
        self.asked += 1
        if "needed" not in expression:
            return []
        values = np.array([[at_s, 3600.0] for at_s in np.arange(start_s, end_s + 1, step_s)])
        return [{"metric": labels, "values": values} for labels in self.labels]


def workloads(count, namespace):
    return [{"workload": f"w{row}", "namespace": namespace} for row in range(count)]


@pytest.mark.parametrize(("number", "weeks"), [(2, 20), (30, 7)])
def test_the_newest_weeks_are_read_when_memory_has_no_room_for_all(number, weeks):
    server, end_s = Wide(*workloads(number, "team")), MIDNIGHT_S + 20 * 7 * 86_400.0
    found = read_exported_use(server, (MIDNIGHT_S, end_s), most_values=40_000)
    assert (found.start_s + found.hours * 3600, found.hours) == (end_s, weeks * 7 * 24)
    needed = found.columns["needed"]
    assert len(needed) == number and all((each == 3600).all() for each in needed.values())
    assert bool(found.problems) == (weeks < 20)
    assert server.asked == len(QUERIES) * min(weeks + 1, 20)


def test_what_a_crowd_lost_does_not_return_with_older_weeks():
    class Grown(Wide):
        def query(self, expression, start_s, end_s, step_s):
            rows = super().query(expression, start_s, end_s, step_s)
            return rows if start_s >= MIDNIGHT_S + 2 * 7 * 86_400 else rows[39:]  # one of the crowd is older

    server, end_s = Grown(*workloads(40, "crowd"), *workloads(2, "team")), MIDNIGHT_S + 12 * 7 * 86_400.0
    found = read_exported_use(server, (MIDNIGHT_S, end_s), most_values=70_000)
    assert found.hours == 12 * 7 * 24 and found.problems
    assert [key[:2] for key, hours in found.columns["needed"].items() if np.isnan(hours[-1])] == []


def test_a_crowded_namespace_shortens_no_history_of_others(tmp_path):
    server, end_s = Wide(*workloads(40, "crowd"), *workloads(2, "team")), MIDNIGHT_S + 20 * 7 * 86_400.0
    found = read_exported_use(server, (MIDNIGHT_S, end_s), most_values=40_000)
    assert found.hours == 20 * 7 * 24
    held = Counter(key[0] for key in found.columns["needed"])
    assert held["team"] == 2 and 7 <= held["crowd"] <= 10
    assert found.problems == ("of 'crowd' there are too many workloads for memory: some are left out",)

    writer, crowd = HistoryWriter(tmp_path, 10**9), [UseName("crowd", f"w{row}", "Job", POOL) for row in range(40)]
    for day in range(20):
        writer._from_s = MIDNIGHT_S + day * DAY_S
        rows = [*crowd, CHAT, UseName("", "", "", POOL)]
        writer._write(900, rows, np.ones((len(FIELDS), len(rows))))
    made = capacity_of_record(tmp_path, MIDNIGHT_S, 24 * 20 * 12)
    assert made.known_h == 20 and CHAT in made.workloads and 8 <= len(made.workloads) <= 12
    assert made.notes == ("of 'crowd' there are too many workloads for memory: some are left out",)


@pytest.mark.parametrize(
    ("resources", "product", "expected"),
    [
        (("nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"), "NVIDIA-H100-80GB-HBM3", (Cut.SEVENTHS, 14, 4)),
        (("nvidia.com/mig-1g.23gb", "nvidia.com/mig-3g.90gb"), "NVIDIA-B200", (Cut.SEVENTHS, 14, 4)),
        (("nvidia.com/mig-9g.99gb", "nvidia.com/mig-3g.90gb"), "NVIDIA-B200", None),
        (("nvidia.com/gpu", "nvidia.com/gpu"), "NVIDIA-L4", None),
    ],
)
def test_slices_that_were_needed_are_counted_by_profile(resources, product, expected):
    """Fourteen 1g and four 3g on four GPUs, of which one 1g and three 3g were needed."""
    pools = tuple((resource, product, "") for resource in resources)
    names = tuple(UseName("team", f"of-{row}", "Deployment", pool) for row, pool in enumerate(pools))
    made = capacity(pools, names, needed=[1 / 7, 1.5], pool_gpus=[2.0, 2.0])
    found = measure_slices(made, find_device(product))
    if expected is None:
        assert found is None
        return
    cut, today, needed = found
    assert (cut, today[ONE], today[THREE]) == expected
    assert needed == {ONE: 1, THREE: 3}
    assert (count_gpus(today, cut), count_gpus(needed, cut)) == (4, 2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (POOL, ("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3", "zone-b"), True),
        (POOL, ("", "H100-SXM5", ""), True),  # another name of it, of a service that no daemon manages
        (POOL, ("nvidia.com/mig-3g.40gb", "NVIDIA-H100-80GB-HBM3", ""), False),
        (POOL, ("nvidia.com/gpu", "NVIDIA-L4", ""), False),
        (("amd.com/gpu", "Own-1", ""), ("amd.com/gpu", "Own-2", ""), False),
        (("", "", ""), ("", "", ""), False),
    ],
)
def test_gpus_serve_in_place_of_others_of_the_same_kind(one, other, same):
    assert is_same_kind(one, other) == is_same_kind(other, one) == same


GAINS = st.lists(st.tuples(st.floats(0, 9), st.booleans()), max_size=5)
L4 = DeviceChoice("L4", 4, 0.8, 1.2, True, "")
UNPRICED = DeviceChoice("L40", math.nan, math.nan, math.nan, False, "no price is known")


@given(gains=GAINS, shortage=st.sampled_from([math.nan, 0.0, 1.0, 4.0, 12.0]), priced=st.booleans())
def test_the_first_advice_that_is_enough_is_marked(gains, shortage, priced):
    advice = [Advice(KINDS[0], gpus, 0.0, offered, "") for gpus, offered in gains]
    devices = (L4._replace(gpus=shortage), UNPRICED) if priced else (UNPRICED,)
    found = _cover(advice, shortage, devices, POOL)
    assert len(found) == len(advice) + 1
    assert found[-1].kind == BUY
    covering = [number for number, each in enumerate(found) if each.covers]
    offered = sum(gpus for gpus, is_offered in gains if is_offered)
    assert len(covering) == (shortage > 0)
    if covering:
        before = sum(gpus for gpus, is_offered in gains[: covering[0]] if is_offered)
        assert before < shortage
        assert found[covering[0]].offered
    assert found[-1].offered == (shortage > 0 and offered < shortage)
    if found[-1].offered:
        assert found[-1].gpus == math.ceil(shortage - offered)
        assert math.isnan(found[-1].usd_per_month) != priced


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--pool-over", "0"), "0<x<=1"),
        (("--pool-over", "nan"), "0<x<=1"),
        (("--pool-days", "0"), "1<=x<=366"),
        (("--queued-over", "2d"), "at most 24h"),
        (("--record", "absent"), "no such folder"),
    ],
)
def test_bad_limits_are_refused(option, words, tmp_path):
    result = CliRunner().invoke(main, ["demand", "--prometheus", "http://127.0.0.1:9", *option])
    assert result.exit_code == 2
    assert words in result.output
