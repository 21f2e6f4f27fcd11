"""`simulate`, `simulate fit` and `replay` as one types them: what they write, what they refuse before they begin."""

import asyncio
import gzip
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from autoscaler.adapters.terminal import JsonLines
from autoscaler.cli import main
from autoscaler.config.policy import load
from autoscaler.ports import TickRecord
from autoscaler.sim.study.case import Case, Goal, View
from autoscaler.sim.study.ours import Ours
from autoscaler.sim.study.run import run
from tests.adapters.prometheus.backfill import samples, witnessed
from tests.adapters.prometheus.test_history import load_into, prometheus_with
from tests.adapters.prometheus.test_history_refusals import serving
from tests.harness.fixtures import StartPromql
from tests.sim.study import small

RECORDING = Path(__file__).parents[1] / "data" / "vllm" / "load-timeseries.jsonl.gz"
PROFILE = ("--profile", "8b-h100", "--jobs", "1")  # in this process: a worker takes seconds to start
START = datetime(2026, 3, 1, 8, tzinfo=UTC)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_trace(file: Path, rows: Iterable[object] = (), header: str = "arrival_s,prompt_tokens,output_tokens") -> Path:
    text = "\n".join([header, *(str(row) for row in rows), ""])
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    times = np.sort(np.random.default_rng(5).uniform(0, 600, 900))
    return write_trace(tmp_path / "ten-minutes.csv.gz", (f"{time_s:.3f},500,80" for time_s in times))


def test_simulate_prints_the_table_and_writes_json_and_page(trace: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "proof.json", tmp_path / "proof.html"
    result = invoke(
        "simulate", "--trace", trace, *PROFILE, "--against", "keda-queue", "static", "--json", out, "--html", page
    )
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["planned"] is None
    assert (written["trace"], written["profile"], written["seed"]) == ("ten-minutes", "8b-h100", 1)
    assert [policy["name"] for policy in written["policies"]] == ["ours", "keda-queue", "static"]
    assert written["requests"] == 900
    assert 0 < written["clairvoyant"]["gpu_hours"] < written["policies"][0]["gpu_hours"]
    assert "ten-minutes: 900 requests" in result.output
    assert page.read_text().startswith("<!doctype html>")


def test_a_plan_is_shown_beside_the_bound(trace: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "proof.json", tmp_path / "proof.html"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--planned", "--json", out, "--html", page)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert set(written["planned"]) == {"gpu_hours", "attainment"}
    assert written["planned"]["attainment"] >= 0.99
    assert written["planned"]["gpu_hours"] >= written["clairvoyant"]["gpu_hours"]
    assert [policy["name"] for policy in written["policies"]] == ["ours"]
    assert "planned (knows the trace)" in result.output
    assert "planned (knows the trace)" in page.read_text()


def test_the_same_seed_writes_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        assert invoke("simulate", "--trace", trace, *PROFILE, "--seed", 3, "--json", file).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_larger_scale_has_more_requests_and_costs_more(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    written = []
    for scale in (1, 20):
        assert invoke("simulate", "--trace", trace, "--scale", scale, *PROFILE, "--json", out).exit_code == 0
        written.append(json.loads(out.read_text()))
    assert written[1]["requests"] == 20 * written[0]["requests"]
    assert written[1]["clairvoyant"]["gpu_hours"] > written[0]["clairvoyant"]["gpu_hours"]


def test_only_a_part_of_a_trace_is_run_and_told(tmp_path: Path) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,model"
    rows = [*(f"{at},100,10,early" for at in range(120)), *(f"{at},100,10,late" for at in range(120, 300))]
    file, out = write_trace(tmp_path / "two.csv", rows, header), tmp_path / "proof.json"
    result = invoke("simulate", "--trace", file, *PROFILE, "--start", "2m30s", "--end", "4m", "--json", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["requests"], written["duration_s"]) == (90, 90.0)
    assert written["models"] == 1  # as if the file held no more, so nobody serves the other one
    assert "two: only from 2m30s to 4m" in " ".join(written["notes"])
    assert invoke("simulate", "--trace", file, *PROFILE, "--start", "4m", "--json", out).exit_code == 0
    assert json.loads(out.read_text())["duration_s"] == 59.0


def test_figures_count_from_where_it_was_learned_until(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    options = ("--learn", "6m", "--against", "static", "keda-rps", "--json", out)
    result = invoke("simulate", "--trace", trace, *PROFILE, *options)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["learned_s"], written["duration_s"]) == (360.0, 240.0)
    assert 300 < written["requests"] < 420
    kinds = [(each["name"], each["default"], each["tuned"], bool(each["before"])) for each in written["policies"]]
    assert kinds == [
        ("ours", False, False, False),
        ("keda-rps", True, False, False),
        ("static", False, True, False),
        ("static", False, False, True),
        ("keda-rps", False, False, True),
    ]
    assert "in 4 min after 6 min to learn from" in " ".join(result.output.split())
    assert "Who chose by the first 6 min would have taken" in result.output


def test_fresh_nodes_are_slower_and_told(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    written = []
    for option in ((), ("--cold-start-uncached", "4m")):
        result = invoke("simulate", "--trace", trace, *PROFILE, "--start-replicas", 0, *option, "--json", out)
        assert result.exit_code == 0, result.output
        written.append(json.loads(out.read_text()))
    assert [each["cold_start_uncached_s"] for each in written] == [None, 240.0]
    cached, fresh = (each["policies"][0] for each in written)
    assert fresh["attainment"] < cached["attainment"] - 0.2  # three minutes of ten more without a replica
    assert "cold start 60 s, 4 min on a fresh node" in result.output


def test_several_files_make_several_proofs(trace: Path, tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other.csv", ["0,100,10", "59,100,10"])
    out = tmp_path / "proof.json"
    assert invoke("simulate", "--trace", trace, other, *PROFILE, "--json", out).exit_code == 0
    assert [each["trace"] for each in json.loads(out.read_text())] == ["ten-minutes", "other"]


def test_models_of_one_file_are_a_fleet(tmp_path: Path) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,model"
    file = write_trace(tmp_path / "fleet.csv", [f"{at},100,10,{'ab'[at % 2]}" for at in range(120)], header)
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", file, *PROFILE, "--json", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["requests"] == 120
    assert "2 models, each with replicas of its own" in result.output


def test_models_share_the_gpus_they_are_given(tmp_path: Path) -> None:
    rows = [f"{time_s:.3f},2000,20,m{number % 3}" for number, time_s in enumerate(np.arange(0.0, 300.0, 0.5))]
    file = write_trace(tmp_path / "fleet.csv", rows, "arrival_s,prompt_tokens,output_tokens,model")
    out = tmp_path / "proof.json"
    written = []
    for gpus in ((), ("--gpus", 2)):
        result = invoke("simulate", "--trace", file, *PROFILE, *gpus, "--json", out)
        assert result.exit_code == 0, result.output
        written.append(json.loads(out.read_text()))
    assert [(each["models"], each["gpus"]) for each in written] == [(3, None), (3, 2.0)]
    free, short = (each["policies"][0] for each in written)
    assert free["attainment"] == 1.0
    assert short["attainment"] < 0.8  # one model of three has no replica
    assert short["gpu_hours"] < free["gpu_hours"]
    assert "3 models on 2 GPUs" in result.output


def test_requests_too_long_for_the_profile_are_shortened_and_told(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "long.csv", ["0,200000,10", "10,100,10"])
    result = invoke("simulate", "--trace", file, *PROFILE)
    assert "1 requests were shortened to the 131,072 tokens" in result.output


POLICY = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: mine}
spec:
  objective: {ttft: 1s, itl: ITL, attainment: 0.99}
"""


def test_an_objective_no_replica_can_meet_is_said_before_the_run(trace: Path, tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(POLICY.replace("ITL", "5ms"))
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--policy", policy, "--json", out)
    assert result.exit_code == 2
    assert result.output == "error: ITL 5 ms is below the step time of this profile (7.92 ms)\n"
    assert not out.exists()


GOOD = ["0,100,10", "1,100,10"]


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        (["5,100,10", "4,100,10"], None, "line 3: arrival_s is 4, it must not be below the line before"),
        (["5,-1,10"], None, "line 2: prompt_tokens is -1, it must be a whole number from 1"),
        (["5,10"], None, "line 2: 2 fields, the header has 3"),
        (GOOD, "arrival_s,prompt_tokens", "line 1: no column output_tokens"),
        ([], None, "no request in it"),
    ],
)
def test_a_bad_trace_is_one_line_with_file_and_line(
    tmp_path: Path, rows: list[str], header: str | None, said: str
) -> None:
    file = write_trace(tmp_path / "bad.csv", rows, header or "arrival_s,prompt_tokens,output_tokens")
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", file, *PROFILE, "--json", out)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {file}")
    assert said in result.output
    assert result.output.count("\n") == 1
    assert not out.exists()


def test_a_gz_that_ends_early_is_told(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:2000])
    result = invoke("simulate", "--trace", trace, *PROFILE)
    assert result.exit_code == 2
    assert "the gzip data ends early, in line" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "8b-h10"), "no profile '8b-h10', there are: 8b-h100,"),
        ((*PROFILE, "--against", "kedda"), "no baseline 'kedda'; allowed: all, keda-queue,"),
        ((*PROFILE, "--json", "nowhere/proof.json"), "the folder nowhere does not exist"),
        ((), "--profile NAME is missing"),
        ((*PROFILE, "--scale", "0"), "--scale"),
        ((*PROFILE, "--start", "10m"), "ten-minutes.csv.gz: from 600 to 600 s: must be an interval within 0..600 s"),
        ((*PROFILE, "--start", "5m", "--end", "2m"), "from 300 to 120 s: must be an interval"),
        ((*PROFILE, "--end", "11m"), "from 0 to 660 s: must be an interval"),
        ((*PROFILE, "--end", "1ms"), "ten-minutes.csv.gz: no request from 0 to 0.001 s"),
        ((*PROFILE, "--learn", "10m"), "ten-minutes.csv.gz: 10m to learn from; allowed: less than its 10m"),
        ((*PROFILE, "--learn", "1ms"), "no request before 1ms, until which policies are to learn"),
        ((*PROFILE, "--learn", "599999ms"), "no request after 9m59s999ms, until which policies are to learn"),
        ((*PROFILE, "--learn", "6"), "--learn"),
        ((*PROFILE, "--cold-start", "60"), "--cold-start"),
        ((*PROFILE, "--cold-start-uncached", "30s"), "takes 30 s on a fresh node, it must be at least the 60 s of any"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_the_run(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    result = invoke("simulate", "--trace", trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--profile", "70b-4xh100", "--gpus", "2"),
            "2 GPUs are not enough for one replica of 70b-4xh100, which takes 4",
        ),
        ((*PROFILE, "--gpus", "2", "--start-replicas", "3"), "2 GPUs are not enough to start with 3 replicas"),
        ((*PROFILE, "--gpus", "0"), "0 is not in the range 0<x<=100000"),
    ],
)
def test_too_few_gpus_are_refused_before_the_run(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    result = invoke("simulate", "--trace", trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_without_a_trace_simulate_says_so() -> None:
    result = invoke("simulate", *PROFILE)
    assert result.exit_code == 2
    assert "--trace FILE is missing" in result.output


def test_without_the_extra_the_way_to_install_it_is_named(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as where it is not installed
    result = invoke("simulate", "--trace", trace, *PROFILE)
    assert result.exit_code == 2
    assert "pip install 'vllm-autoscaler[sim]'" in result.output


def test_a_fitted_profile_can_be_simulated(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    result = invoke("simulate", "fit", RECORDING, "--out", file)
    assert result.exit_code == 0, result.output
    assert "busy intervals, explained within" in result.output
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", trace, "--profile", file, "--jobs", 1, "--json", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["profile"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "nan"), "nan is not in the range 0<x<=1024"),
        (("--gpus", "1e-4"), "the profile: gpus is 0.0001, it must be a number from 0.001 to 1,024"),
        (("--max-num-seqs", "8192"), "8192 is not in the range 1<=x<=8191"),
    ],
)
def test_fit_writes_no_profile_that_cannot_be_simulated(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    file = tmp_path / "tiny.json"
    result = invoke("simulate", "fit", RECORDING, "--out", file, *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not file.exists()


def test_a_load_too_uniform_to_tell_the_step_writes_no_profile(tmp_path: Path) -> None:
    recording, file = tmp_path / "uniform.jsonl", tmp_path / "tiny.json"
    recording.write_bytes(b"".join(gzip.decompress(RECORDING.read_bytes()).splitlines(keepends=True)[:22]))
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 2
    assert "the load was too uniform to tell how long a step takes" in result.output
    assert not file.exists()


def test_a_bad_recording_writes_no_profile(tmp_path: Path) -> None:
    recording, file = tmp_path / "bad.jsonl", tmp_path / "tiny.json"
    recording.write_text('{"t": 1}\n')
    result = invoke("simulate", "fit", recording, "--out", file)
    assert result.exit_code == 2
    assert f"error: {recording}, line 1" in result.output
    assert not file.exists()


BACKWARDS = ("--start", "2026-03-01T09:00:00Z", "--end", "2026-03-01T08:30:00+01:00")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workload", "team"), "not a workload, found 'team'; allowed: NAMESPACE/NAME"),
        (("--workload", 'team/x"}'), "not a workload"),
        (("--workload", "team/llama"), "give either --prometheus URL or --ticks FILE"),
        (("--workload", "team/llama", "--prometheus", "http://x"), "--start is missing"),
        (("--workload", "team/llama", "--start", "-99999999999h"), "not a time, found '-99999999999h'"),
        (("--workload", "team/llama", "--start", "0001-01-01T00:00:00+14:00"), "not a time, found '0001-01-01T"),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", "--start", "-6h", "--end", "-5h", "--learn", "2h"),
            "team/llama: 2h to learn from; allowed: less than the 1h of history",
        ),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", *BACKWARDS),
            "--start is 2026-03-01T09:00:00Z, it must be before --end, 2026-03-01T07:30:00Z",
        ),
        (("--workload", "team/llama", "--ticks", __file__, *BACKWARDS), "it must be before --end"),
        (("--workload", "team/llama", "--ticks", __file__, "--step", "15s"), "--step is of --prometheus"),
        (("--workload", "team/llama", "--prometheus", "http://x", "--rate-window", "1m"), "--rate-window"),
        (("--workload", "team/llama", "--start", "noon"), "not a time, found 'noon'; allowed: 2026-03-01T08:00:00Z"),
        (("--workload", "team/llama", "--start", "2026-03-01T08:00:00"), "a time without zone"),
    ],
)
def test_replay_refuses_what_makes_no_sense(arguments: tuple[str, ...], said: str) -> None:
    result = invoke("replay", *PROFILE, *arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "nope"), "no profile 'nope', there are: 8b-h100,"),
        ((*PROFILE, "--policy", "POLICY-broken"), "spec.objective.itl"),
        ((*PROFILE, "--policy", "POLICY-5ms"), "ITL 5 ms is below the step time of this profile (7.92 ms)"),
        ((*PROFILE, "--policy", "POLICY-5ms", "--start-replicas", "1"), "ITL 5 ms is below the step time"),
        ((*PROFILE, "--cold-start-uncached", "1s"), "takes 1 s on a fresh node, it must be at least the 60 s of any"),
    ],
)
async def test_replay_asks_for_no_history_before_its_options_can_be_used(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    asked: list[web.Request] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(status=500)

    for itl in ("5ms", "broken"):
        (tmp_path / f"{itl}.yaml").write_text(POLICY.replace("ITL", itl))
    given = [
        tmp_path / f"{word.removeprefix('POLICY-')}.yaml" if word.startswith("POLICY-") else word for word in arguments
    ]
    async with serving(note) as url:
        result = await asyncio.to_thread(
            invoke, "replay", "--prometheus", url, "--workload", "team/llama", "--start", "-1h", *given
        )
    assert result.exit_code == 2
    assert said in result.output
    assert asked == []


class Recorder:
    """A scaler that lets ours decide and records each tick as `dry-run --json` does."""

    name = "recorder"
    period_s = 15.0

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self.out = StringIO()
        self._lines = JsonLines(self.out)
        self._number = 0

    def decide(self, view: View) -> int:
        wanted = self._ours.decide(view)
        assert self._ours.inp is not None
        assert self._ours.decision is not None
        self._number += 1
        wall_s = START.timestamp() + view.now_s
        self._lines.record(
            TickRecord(
                self._number, view.now_s, wall_s, 0.01, self._ours.inp, self._ours.decision, ("interactive",), (), True
            )
        )
        return wanted


def test_recorded_ticks_are_replayed(tmp_path: Path) -> None:
    trace = small.poisson([4.0, 8.0, 4.0], 600.0, prompt=400, output=60)
    case = Case(trace, small.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
    recorder = Recorder(Ours(case, load().policies["interactive"]))
    run(case, recorder)
    ticks, out = tmp_path / "ticks.jsonl", tmp_path / "proof.json"
    ticks.write_text(recorder.out.getvalue())
    result = invoke("replay", "--ticks", ticks, "--workload", "study/small", *PROFILE, "--planned", "--json", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["requests"] == pytest.approx(len(trace.arrival_s), rel=0.1)
    by_name = {policy["name"]: policy for policy in written["policies"]}
    assert list(by_name) == ["ours", "actual", "recorded"]
    assert written["planned"]["gpu_hours"] >= written["clairvoyant"]["gpu_hours"] > 0
    assert by_name["actual"]["attainment"] is None
    assert by_name["actual"]["gpu_hours"] == pytest.approx(0.5, rel=0.1)
    learned = ("--learn", "10m", "--against", "static", "--json", out)
    result = invoke("replay", "--ticks", ticks, "--workload", "study/small", *PROFILE, *learned)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["learned_s"], written["duration_s"]) == pytest.approx((600.0, 1200.0), rel=0.02)
    later = {policy["name"]: policy for policy in written["policies"] if not policy["before"]}
    for name in ("actual", "recorded", "ours"):
        assert later[name]["gpu_hours"] == pytest.approx(by_name[name]["gpu_hours"] * 2 / 3, rel=0.1)
    result = invoke("replay", "--ticks", ticks, "--workload", "study/small", *PROFILE, "--learn", "31m")
    assert (result.exit_code, "study/small: 31m to learn from; allowed: less than its" in result.output) == (2, True)


@pytest.mark.integration
@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
async def test_history_is_replayed_from_a_real_server(
    tmp_path: Path, server: str, victoria_metrics: StartPromql
) -> None:
    trace = small.poisson([4.0, 12.0, 4.0], 600.0, prompt=800, output=120)
    case = Case(trace, small.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
    witness, _ = witnessed(case, Ours(case, load().policies["interactive"]))
    begin_s = float(int(datetime.now(UTC).timestamp() - 86_400) // 3600 * 3600)
    told = tuple(samples(witness, begin_s, "team", "llama"))
    out = tmp_path / "proof.json"
    moments = [datetime.fromtimestamp(begin_s + after_s, UTC).isoformat() for after_s in (0, 1800)]

    async def replay(url: str) -> Result:
        return await asyncio.to_thread(
            invoke,
            *("replay", "--prometheus", url, "--workload", "team/llama", "--start", moments[0], "--end", moments[1]),
            *(*PROFILE, "--against", "keda-queue,static", "--json", out),
        )

    if server == "prometheus":
        async with prometheus_with(tmp_path, told) as running:
            result = await replay(running.url)
    else:
        started = await victoria_metrics()
        await load_into(started, told)
        result = await replay(started.url)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    by_name = {policy["name"]: policy for policy in written["policies"]}
    assert list(by_name) == ["ours", "keda-queue", "static", "actual", "recorded"]
    assert written["trace"] == "team/llama"
    assert written["requests"] == pytest.approx(len(trace.arrival_s), rel=0.02)
    assert by_name["recorded"]["gpu_hours"] == pytest.approx(by_name["actual"]["gpu_hours"], rel=0.15)
    assert by_name["recorded"]["attainment_ttft"] == pytest.approx(by_name["actual"]["attainment_ttft"], abs=0.05)


@pytest.mark.integration
async def test_a_server_that_is_not_there_is_one_line() -> None:
    result = await asyncio.to_thread(
        invoke,
        *("replay", "--prometheus", "http://user:geheim@127.0.0.1:9", "--workload", "team/llama", "--start", "-1h"),
        *PROFILE,
    )
    assert result.exit_code == 2
    assert "error: http://127.0.0.1:9: no connection" in result.output
    assert "geheim" not in result.output
