"""A report from a record has the figures of the ticks that were recorded."""

import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import RecordFile
from autoscaler.adapters.record.reader import Record
from autoscaler.app.report import make_report, record_options
from autoscaler.cli.main import main
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.variants import Variants
from autoscaler.core.tally import COUNTED, Tally, TallyState, advance
from autoscaler.lab.replay.case import Goal
from autoscaler.ports import Unavailable
from autoscaler.report.gpu_use import USE_OF_DAEMON, say_use
from autoscaler.report.last_tick import LastTick
from autoscaler.report.past import past_of_record
from autoscaler.report.recorded import read_record
from tests.adapters.record.test_record import write
from tests.adapters.record.ticks import START_S, at, records, without_second
from tests.core.world import fleet, spec, world

pytestmark = pytest.mark.slow

STEP_S = 300.0
SPAN_S = 14 * 86_400.0


def spread(count: int = 80, apart_s: float = 60.0):
    """Ticks a minute apart on both clocks, so that they fill more than an hour."""
    ticks = []
    for number, tick in enumerate(records(count)):
        variants = Variants(np.full(2, -1), np.array([4.0, np.nan]))
        pools = tuple(pool._replace(product="NVIDIA-L4") for pool in tick.input.fleet.pools)
        named = zip(tick.input.fleet.workloads, ("ads" if number < 40 else "search", ""), strict=True)
        workloads = tuple(each._replace(model="meta-llama/Llama-3.1-8B", team=team) for each, team in named)
        fleet = replace(tick.input.fleet, pools=pools, workloads=workloads)
        inp = replace(tick.input, now_s=1000.0 + apart_s * number, variants=variants, fleet=fleet)
        ticks.append(at(replace(tick, input=inp), START_S + apart_s * number))
    return ticks


def test_columns_are_the_sums_of_the_ticks(tmp_path):
    ticks = spread()
    write(tmp_path / "record", ticks)
    with Record(tmp_path / "record") as record:
        recorded = read_record(record, -math.inf, math.inf, ())
    history = recorded.history
    state: TallyState | None = None
    sums = {name: np.zeros((history.span.steps, 2)) for name in ("finished", "gap_s", "prompt_tokens")}
    for tick in ticks:
        state, since = advance(state, tick.input, tick.decision)
        step = int((tick.wall_s - history.span.start_s) // STEP_S)
        if step < history.span.steps:
            for name, column in sums.items():
                column[step] += getattr(since, name)
    assert [str(name) for name in history.services] == ["ns/w0", "ns/w1"]
    assert history.span.steps == 15
    for name, column in sums.items():
        assert np.nan_to_num(history.column(name)) == pytest.approx(column, abs=0.51), name
    assert recorded.facts.usd_per_hour.tolist() == pytest.approx([4.0, math.nan], nan_ok=True)
    ready = [tick.decision.observation.ready[0] for tick in ticks]
    assert history.column("pods")[:, 0] == pytest.approx(np.reshape(ready[:75], (15, 5)).mean(axis=1), abs=0.01)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_deleted_workload_is_charged_until_it_left(tmp_path, restarts):
    """Also when it left while nothing recorded: the new process, or the new file, finds it gone."""
    ticks = spread()
    ticks[40:] = map(without_second, ticks[40:])
    for part in (ticks[:40], ticks[40:]) if restarts else (ticks,):
        write(tmp_path / "record", part)
    report = make_report(record_options(tmp_path / "record", SPAN_S), Console(quiet=True))
    actual, policy = (report.entry(name).outcome.mean_replicas for name in ("actual", "policy"))
    assert report.load.seen.mean(axis=0) == pytest.approx([1.0, 8 / 15])
    assert report.entry("actual").outcome.gpu_hours[1] == pytest.approx(40 / 60)
    assert (actual[1], policy[1]) == (1.0, 1.0)
    assert any("nothing tells of 'ns/w1' at the end of the span" in note for note in report.notes)


def test_a_report_is_made_of_a_record_alone(tmp_path):
    write(tmp_path / "record", spread())
    report = make_report(record_options(tmp_path / "record", SPAN_S), Console(quiet=True))
    assert [str(name) for name in report.services] == ["ns/w0", "ns/w1"]
    assert report.policies == ("interactive", "batch")
    assert report.teams == ("search", "")
    assert "'ns/w0': the team changed within the span, and its whole span counts for its last one" in report.notes
    assert report.facts.model == ("meta-llama/Llama-3.1-8B",) * 2


def test_a_report_of_a_record_has_the_chosen_teams(tmp_path):
    write(tmp_path / "record", spread())
    options = record_options(tmp_path / "record", SPAN_S)
    report = make_report(replace(options, teams=("search",)), Console(quiet=True))
    assert ([str(name) for name in report.services], report.teams) == (["ns/w0"], ("search",))
    assert report.policies == ("interactive",)
    assert {row.workload for row in report.gpu_use} <= {"w0"}
    with pytest.raises(ValueError, match="no service of team nobody; found: search"):
        make_report(replace(options, teams=("nobody",)), Console(quiet=True))


def test_an_hour_of_a_record_has_its_sums_and_counts(tmp_path):
    ticks = spread()
    write(tmp_path / "record", ticks)
    name, goal = ServiceName("", "ns", "w0"), Goal(1.0, 0.1, 0.99)
    past = past_of_record(tmp_path / "record")(name, START_S, START_S + 3600, goal)
    with Record(tmp_path / "record") as record:
        history = read_record(record, START_S, START_S + 3600, ()).history
    assert len(past.pods) == 240
    for column in ("finished", "prompt_tokens", "running"):
        by_step = getattr(past, column).reshape(12, 20)
        summed = by_step.mean(axis=1) if column == "running" else by_step.sum(axis=1)
        assert summed == pytest.approx(history.column(column)[:, 0], rel=1e-5)
    assert past.pods[::4].tolist() == [tick.decision.observation.ready[0] for tick in ticks[:60]]
    assert past.ttft.bounds.tolist() == [goal.ttft_s, math.inf]
    other = past_of_record(tmp_path / "record")(name, START_S, START_S + 3600, replace(goal, ttft_s=9.0))
    assert other.ttft.bounds.tolist() == [math.inf]  # how many met another objective is not recorded
    with pytest.raises(Unavailable, match="its counts are not recorded"):
        past_of_record(tmp_path / "record")(ServiceName("", "ns", "w9"), START_S, START_S + 3600, goal)


def test_an_hour_of_a_record_is_replayed_request_by_request(tmp_path):
    sample = pytest.importorskip("autoscaler.report.sample").sample
    write(tmp_path / "record", spread(apart_s=90.0))
    options = replace(record_options(tmp_path / "record", SPAN_S), sample=sample)
    report = make_report(options, Console(quiet=True))
    assert {(hour.row, hour.requests > 0) for hour in report.sampled} == {(0, True), (1, True)}
    assert any("came evenly within five minutes" in note for note in report.notes)


def test_idle_gpus_of_a_record_are_told_by_namespace(tmp_path):
    ticks = spread()
    for place in range(-10, 0):
        left = without_second(ticks[place])
        ticks[place] = replace(left, input=replace(left.input, variants=Variants(np.full(1, -1), np.array([4.0]))))
    write(tmp_path / "record", ticks)
    totals = GpuTotals[str]()
    for tick in ticks:
        totals.add(tick.use, np.ones(1), 1, lambda row, _: str(row))
    sums = totals.by_name(lambda row, _: str(row))[1]
    with Record(tmp_path / "record") as record:
        found = list(record.query("SELECT sum(gpu_s) FROM gpu_use GROUP BY kind ORDER BY kind"))
        recorded = read_record(record, -math.inf, math.inf, ())
        nobody = read_record(record, -math.inf, math.inf, ("other",))
    assert [row[0] for _, row in found] == pytest.approx([sums.idle_gpu_s.sum(), sums.gpu_s.sum()], abs=20)
    total_h = sums.gpu_s[: GpuState.ORDERED].sum() / 3600
    (said,) = say_use(recorded.gpu_use, USE_OF_DAEMON)
    assert said.startswith(f"GPUs of ns: {total_h:.1f} GPU-hours, of which {sums.idle_gpu_s.sum() / 3600:.1f} idle, ")
    assert "1 without a price: ns/w1" in said
    assert "; kept by: " in said
    assert nobody.gpu_use == ()


def test_less_than_an_hour_is_refused_with_what_there_is(tmp_path):
    write(tmp_path / "record", records(20))
    with pytest.raises(Unavailable, match=r"it has 2026-06-01T08:00:00Z to .*; needed: an hour in whole steps of five"):
        make_report(record_options(tmp_path / "record", SPAN_S), Console(quiet=True))


def test_a_request_that_nobody_judged_has_not_missed():
    """Readings without the count of those in time leave it open, and so does a policy without objectives."""
    first, second = (tick.input for tick in spread(2))
    _, since = advance(TallyState(first, np.ones(2), Tally.blank(2)), second, records(2)[1].decision)
    assert since.first_tokens[0] > 0
    assert since.ttft_judged.tolist() == [0.0, 0.0]
    assert since.breach_s.tolist() == [0.0, 0.0]
    assert set(COUNTED) <= set(vars(since))


def test_a_namespace_that_is_not_recorded_is_named(tmp_path):
    write(tmp_path / "record", spread())
    options = replace(record_options(tmp_path / "record", SPAN_S), namespaces=("other",))
    with pytest.raises(Unavailable, match="no service of namespace other in it"):
        make_report(options, Console(quiet=True))


def test_stated_price_and_policy_stand_in_for_the_recorded_ones(tmp_path):
    write(tmp_path / "record", spread())
    policy = tmp_path / "slow.yaml"
    policy.write_text(
        "apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata:\n  name: slow\nspec:\n  objective:\n    ttft: 5s\n"
    )
    asked = replace(record_options(tmp_path / "record", SPAN_S), prices={"NVIDIA-L4": 1.5}, policies=(policy,))
    report = make_report(asked, Console(quiet=True))
    assert report.policies == ("slow", "slow")
    assert report.facts.usd_per_hour.tolist() == [1.5, 1.5]


def test_what_a_workload_overrides_and_its_slots_count(tmp_path):
    """As of the last tick; a policy that somebody states for the report has neither override."""
    ticks = spread()
    last = ticks[-1].input
    spec = replace(last.spec, max_replicas=np.array([2.0, 5.0]), sleep_replicas=np.array([1.0, np.nan]))
    fleet = replace(last.fleet, pod_slots=np.full(len(last.fleet.pods), 7.0))
    busy = replace(last.samples.pods, running=np.where(last.fleet.pod_workload == 1, 9.0, 1.0))
    ticks[-1] = replace(
        ticks[-1], input=replace(last, spec=spec, fleet=fleet, samples=replace(last.samples, pods=busy))
    )
    write(tmp_path / "record", ticks)
    options = record_options(tmp_path / "record", SPAN_S)
    report = make_report(options, Console(quiet=True))
    assert report.spec.max_replicas.tolist() == [2.0, 5.0]
    assert report.spec.sleep_replicas.tolist() == pytest.approx([1.0, math.nan], nan_ok=True)
    assert report.profiles.slots[0] == 7.0
    assert report.profiles.slots[1] != 7.0  # its pods run more, so another command line started them
    stated = make_report(replace(options, default_policy="batch"), Console(quiet=True))
    assert stated.spec.max_replicas.tolist() == [8.0, 8.0]
    assert stated.profiles.slots[0] == 7.0


def test_last_tick_tells_nothing_of_services_when_all_are_gone():
    last = LastTick(world(1000.0, fleet([]), spec(0)), "", np.array([-1, -1]))
    today = Spec.filled(2, 3.0)
    assert last.in_force(today).max_replicas.tolist() == [3.0, 3.0]
    assert np.isnan(last.slots).tolist() == [True, True]


def test_recorded_prices_stand_when_inputs_are_gone(tmp_path):
    write(tmp_path / "record", spread())
    file = RecordFile.open(folders.files(tmp_path / "record")[0], write=True)
    file.connection.execute("UPDATE blocks SET inputs = NULL")
    file.close()
    report = make_report(
        replace(record_options(tmp_path / "record", SPAN_S), prices={"NVIDIA-L4": 1.5}), Console(quiet=True)
    )
    assert report.facts.usd_per_hour.tolist() == pytest.approx([4.0, math.nan], nan_ok=True)
    assert any("stated prices are not used" in note for note in report.notes)


RULE = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: w0, namespace: ns}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: w0}
  minReplicas: 1
  maxReplicas: 8
  metrics:
  - type: Pods
    pods:
      metric: {name: "vllm:num_requests_running"}
      target: {type: AverageValue, averageValue: "5"}
"""


def test_own_rule_is_evaluated_on_a_record(tmp_path):
    write(tmp_path / "record", spread())
    (tmp_path / "hpa.yaml").write_text(RULE)
    report = make_report(
        replace(record_options(tmp_path / "record", SPAN_S), against=(tmp_path / "hpa.yaml",)), Console(quiet=True)
    )
    hours = report.entry("rule").outcome.gpu_hours
    assert hours[0] > 0 and math.isnan(hours[1])
    assert any("no server is asked" in note for note in report.notes)


def test_policies_are_the_recorded_ones_when_inputs_are_gone(tmp_path):
    """One that this version cannot read is named."""
    write(tmp_path / "record", spread())
    file = RecordFile.open(folders.files(tmp_path / "record")[0], write=True)
    text = "objective:\n  ttft: 7s\n"
    file.add("policies", [(1, 0, "interactive", "", text), (1, 0, "batch", "", "objective: 3\n")])
    file.connection.execute("UPDATE blocks SET inputs = NULL")
    file.close()
    report = make_report(record_options(tmp_path / "record", SPAN_S), Console(quiet=True))
    assert report.policies == ("interactive", "batch")
    assert report.spec.ttft_objective_s[0] == 7.0
    assert any("what single workloads override is not known" in note for note in report.notes)
    assert any("policy 'batch' of the record cannot be read" in note for note in report.notes)


def test_label_of_teams_is_refused_for_a_record(tmp_path):
    arguments = ["report", "--record", str(tmp_path), "--team", "a", "--team-label", "owner"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--team-label has no effect with --record: it has the teams of the label that its daemon" in result.output
