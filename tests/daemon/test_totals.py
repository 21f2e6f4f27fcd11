"""Totals say what was there, what was decided, and what the sums leave out."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.record.quarter_hours import HistoryWriter, read_history
from autoscaler.adapters.record.quarter_values import FIELDS
from autoscaler.adapters.record.rows import TableRows
from autoscaler.adapters.record.tick_values import Decided
from autoscaler.adapters.web.gpu_use import GpuUseRecorder
from autoscaler.config.prices import Prices
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.variants import Variants
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick as decide
from autoscaler.daemon.totals import HourlyTotals
from tests.adapters.kubernetes.inventory.test_gpu_sums import A100, L4, OTHERS, Cluster, SeenPod, view
from tests.adapters.kubernetes.inventory.world import GPU, MIG
from tests.adapters.record.ticks import START_S, records
from tests.core.world import fleet as make_fleet
from tests.core.world import spec, world


def hold(tick, number: int, held: int, wanted: float, usd: float):
    """The tick with other pods, counts and prices, at its place on an even clock."""
    rows = len(tick.policies)
    fleet = make_fleet([held] * rows, gpus_per_replica=np.array([2.0, np.nan]))
    variants = Variants(np.full(rows, -1), np.array([usd, np.nan]))
    samples = replace(tick.input.samples, pods=PodSamples.blank(len(fleet.pods)))
    inp = replace(tick.input, now_s=150.0 * number, fleet=fleet, variants=variants, samples=samples)
    return replace(tick, input=inp, decision=replace(tick.decision, replicas=np.full(rows, wanted)))


@pytest.mark.parametrize(("acts", "words"), [(True, "decided"), (False, "this policy")])
def test_hours_and_the_run_are_summed_up_when_counts_are_held(acts, words):
    said = []
    totals = HourlyTotals(said.append, acts)
    (tick,) = records(1)
    for number in range(2 * 24 + 13):
        totals.record(hold(tick, number, 4, 3.0 if number <= 24 else 1.0, 5.0))
    totals.say_last()
    assert len(said) == 3
    unknown = "(without 1 workload whose GPUs are unknown)"
    assert "the last hour: 1.0 h, 2 workloads: GPU-hours actual 8.0" in said[0]
    assert " 6.0" in said[0] and unknown in said[0]
    assert "cost actual $20.00" in said[0] and "$15.00 (without 1 workload whose price is unknown)" in said[0]
    assert said[2].startswith("in all: 2.5 h, 2 workloads: GPU-hours actual 20.0")
    assert f"{words} {9.0:.1f}" in said[2] or f"{9.0:.1f} {words}" in said[2]
    assert "2 changes" in said[2] if acts else "2 proposed changes" in said[2]


def test_nothing_is_said_when_there_was_one_tick():
    said = []
    totals = HourlyTotals(said.append, acts=True)
    totals.record(records(1)[0])
    totals.say_last()
    assert said == []


def test_totals_are_those_of_api_and_record_while_templates_change(tmp_path):
    """One workload goes from 4 GPUs to 1, one has halves of a GPU and pods of an earlier template on whole GPUs."""
    pods = [SeenPod(0, 0, GPU, 4, True, False), SeenPod(0, 1, GPU, 1, False, False), SeenPod(1, 2, MIG, 2, True, False)]
    pods += [SeenPod(1, 2, GPU, 2, True, True), SeenPod(OTHERS, 0, GPU, 2, True, False)]
    fleet = view(Cluster([(GPU, 1.0, L4), (MIG, 2.0, A100)], pods))
    said, memory, api, rows = [], Memory.empty(), GpuUseRecorder(), TableRows()
    totals, history = HourlyTotals(said.append, acts=True), HistoryWriter(tmp_path, 10**9)
    (tick,) = records(1)
    for number in range(13):
        inp = replace(world(1000.0 + 300.0 * number, fleet, spec(2)), variants=Prices({"L4": 2.0}).variants(fleet))
        decision, memory = decide(inp, memory)
        seen = replace(tick, input=inp, decision=decision, number=number, wall_s=START_S + 300.0 * number, outcomes=())
        for recorder in (totals.record, api.record, history.take):
            recorder(seen)
        rows.note(seen, number, Decided.of(inp, decision, rows.number_workloads(fleet.workloads), seen.wall_s))
    history.close()
    rows.add_begun()
    gpu_h = 4 + 1 + 2 + 2 / 2
    assert f"GPU-hours actual {gpu_h:,.1f}, " in said[0]
    uses = api.answer("workload", 9)["uses"]
    assert sum(sum(use["gpu_hours"].values()) - use["gpu_hours"]["ordered"] for use in uses) == pytest.approx(gpu_h)
    by_state = [row for row in rows.pending["gpu_use"] if row[2:4] != ("state", "ordered") and row[2] == "state"]
    assert sum(row[4] for row in by_state) / 3600 == pytest.approx(gpu_h, abs=0.01)
    for day in read_history(tmp_path):
        of_workloads = [row for row, name in enumerate(day.names) if name.name]
        assert day.values[FIELDS.index("gpus"), of_workloads].sum() == pytest.approx(gpu_h, rel=1 / 64)
