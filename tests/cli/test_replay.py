"""`replay` as one types it: history from ticks and from real servers, and what is refused before any is read."""

import asyncio
import json
import signal
import socket
import subprocess
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import Result

from autoscaler.adapters.console import JsonLines
from autoscaler.config.policy.parse import load
from autoscaler.config.rules.read import read_files
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from autoscaler.lab.replay.case import Case, Goal, View
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run
from autoscaler.ports import TickRecord
from tests.adapters.prometheus.backfill import samples, witnessed
from tests.adapters.prometheus.range.test_workload_history import load_into, prometheus_with
from tests.adapters.prometheus.range.test_workload_history_refusals import serving
from tests.cli.study import POLICY, PROFILE, invoke
from tests.cli.test_outputs import COMMAND
from tests.harness.fixtures import StartPromql
from tests.harness.process import PATIENCE_S
from tests.lab.replay import synthetic

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
BACKWARDS = ("--start", "2026-03-01T09:00:00Z", "--end", "2026-03-01T08:30:00+01:00")

SPAN = ("--start", "2026-01-01T00:00:00Z", "--end")


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
            "team/llama: --learn is 2h; it must be shorter than the whole, 1h",
        ),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", *BACKWARDS),
            "--start is 2026-03-01T09:00:00Z; it must be before --end, 2026-03-01T07:30:00Z",
        ),
        (("--workload", "team/llama", "--ticks", __file__, *BACKWARDS), "it must be before --end"),
        (("--workload", "team/llama", "--prometheus", "http://x", "--start", "now"), "Z; it must be before --end, 20"),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", "--start", "-6h", "--step", "500ms"),
            "--step is 500ms; allowed: whole seconds, at least 1s",
        ),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", *SPAN, "2026-12-01T00:00:00Z"),
            "from --start to --end are 8016h, 1,923,840 steps of 15s; allowed: 2 to ",
        ),
        (
            ("--workload", "team/llama", "--prometheus", "http://x", *SPAN, "2026-01-01T00:00:15Z"),
            "from --start to --end are 15s, 1 step of 15s; allowed: 2 to ",
        ),
        (("--workload", "team/llama", "--ticks", __file__, "--against", "no.yaml"), "no.yaml: error: document: cannot"),
        (
            ("--workload", "team/llama", "--ticks", __file__, "--context", "a"),
            "--context has no effect without --cluster",
        ),
        (("--workload", "team/llama", "--ticks", __file__, "--tuned"), "--tuned has no effect without --against"),
        (("--workload", "team/llama", "--ticks", __file__, "--step", "15s"), "--step applies to --prometheus only"),
        (("--workload", "team/llama", "--prometheus", "http://x", "--rate-window", "1m"), "--rate-window"),
        (("--workload", "team/llama", "--start", "noon"), "not a time, found 'noon'; allowed: 2026-03-01T08:00:00Z"),
        (("--workload", "team/llama", "--start", "2026-03-01T08:00:00"), "a time without a time zone"),
    ],
)
def test_replay_refuses_what_makes_no_sense(arguments: tuple[str, ...], said: str) -> None:
    result = invoke("replay", *PROFILE, *arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "nope"), "no profile 'nope'; available: 8b-h100,"),
        ((*PROFILE, "--policy", "POLICY-broken"), "spec.objective.itl"),
        ((*PROFILE, "--policy", "POLICY-5ms"), "ITL 5 ms is below the step time of this profile (7.92 ms)"),
        ((*PROFILE, "--policy", "POLICY-5ms", "--start-replicas", "1"), "ITL 5 ms is below the step time"),
        (
            (*PROFILE, "--cold-start-uncached", "1s"),
            "--cold-start-uncached is 1s; it must be at least --cold-start, 1m",
        ),
    ],
)
async def test_replay_checks_options_before_reading_history(
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

    def __init__(self, ours: PolicyScaler) -> None:
        self._ours = ours
        self.out = StringIO()
        self._lines = JsonLines(self.out)
        self._number = 0

    def decide(self, view: View) -> int:
        desired = self._ours.decide(view)
        assert self._ours.tick_input is not None
        assert self._ours.decision is not None
        self._number += 1
        wall_s = START.timestamp() + view.now_s
        self._lines.record(
            TickRecord(
                self._number,
                view.now_s,
                wall_s,
                0.01,
                self._ours.tick_input,
                self._ours.decision,
                ("interactive",),
                (),
                True,
            )
        )
        return desired


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_recorded_ticks_are_replayed(tmp_path: Path) -> None:
    trace = synthetic.poisson([4.0, 8.0, 4.0], 600.0, prompt=400, output=60)
    case = Case(trace, synthetic.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
    recorder = Recorder(PolicyScaler(case, load().policies["interactive"]))
    run(case, recorder)
    ticks, out = tmp_path / "ticks.jsonl", tmp_path / "proof.json"
    ticks.write_text(recorder.out.getvalue())
    result = invoke("replay", "--ticks", ticks, "--workload", "replay/small", *PROFILE, "--planned", "--json", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["requests"] == pytest.approx(len(trace.arrival_s), rel=0.1)
    by_name = {policy["name"]: policy for policy in written["policies"]}
    assert list(by_name) == ["ours", "actual", "recorded"]
    assert written["offline_plan"]["gpu_hours"] >= written["lower_bound"]["gpu_hours"] > 0
    assert by_name["actual"]["attainment"] is None
    assert by_name["actual"]["gpu_hours"] == pytest.approx(0.5, rel=0.1)
    learned = ("--learn", "10m", "--against", "static", "--json", out)
    result = invoke("replay", "--ticks", ticks, "--workload", "replay/small", *PROFILE, *learned)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["learned_s"], written["duration_s"]) == pytest.approx((600.0, 1200.0), rel=0.03)
    later = {policy["name"]: policy for policy in written["policies"] if not policy["before"]}
    for name in ("actual", "recorded", "ours"):
        assert later[name]["gpu_hours"] == pytest.approx(by_name[name]["gpu_hours"] * 2 / 3, rel=0.1)
    result = invoke("replay", "--ticks", ticks, "--workload", "replay/small", *PROFILE, "--learn", "31m")
    assert (
        result.exit_code,
        "replay/small: --learn is 31m; it must be shorter than the whole, " in result.output,
    ) == (2, True)
    lasted_s = written["learned_s"] + written["duration_s"]
    result = invoke("replay", "--ticks", ticks, "--workload", "replay/small", *PROFILE, "--learn", f"{lasted_s - 1:g}s")
    assert (result.exit_code, "; it must be a whole step of" in result.output) == (2, True)


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
def test_recorded_run_ignores_the_policy_s_limits(tmp_path: Path) -> None:
    trace = synthetic.poisson([20.0], 600.0, prompt=800, output=100)
    case = Case(trace, synthetic.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0, start_replicas=5)
    recorder = Recorder(PolicyScaler(case, load().policies["interactive"]))
    run(case, recorder)
    ticks, out, one = tmp_path / "ticks.jsonl", tmp_path / "proof.json", tmp_path / "one.yaml"
    ticks.write_text(recorder.out.getvalue())
    one.write_text(POLICY.replace("ITL", "100ms") + "  replicas: {min: 1, max: 1}\n")
    result = invoke("replay", "--ticks", ticks, "--workload", "replay/small", *PROFILE, "--policy", one, "--json", out)
    assert result.exit_code == 0, result.output
    by_name = {policy["name"]: policy for policy in json.loads(out.read_text())["policies"]}
    assert by_name["recorded"]["gpu_hours"] == pytest.approx(by_name["actual"]["gpu_hours"], rel=0.1)
    assert by_name["recorded"]["scale_ups"] == by_name["actual"]["scale_ups"] == 0
    assert by_name["ours"]["gpu_hours"] < by_name["recorded"]["gpu_hours"] / 2


@pytest.mark.slow
def test_a_signal_ends_a_replay_that_waits_for_a_server_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [*COMMAND, "replay", "--prometheus", url]
        command += ["--workload", "team/llama", "--start", "-1h", "--profile", "8b-h100", "--prometheus-timeout", "60s"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            silent.settimeout(PATIENCE_S)
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT
        finally:
            process.kill()
            process.communicate()


RULE = """\
kind: ScaledObject
metadata: {name: llama, namespace: team}
spec:
  scaleTargetRef: {name: llama}
  minReplicaCount: 1
  triggers:
    - {type: prometheus, metadata: {query: sum(vllm:num_requests_running), threshold: "8"}}
    - {type: prometheus, metadata: {query: count(vllm:cache_config_info) or count(vllm:iterations), threshold: "8"}}
"""


@pytest.mark.integration
@pytest.mark.parametrize("server", ["prometheus", "victoria-metrics"])
@pytest.mark.usefixtures("kernel")
async def test_history_is_replayed_from_a_real_server(
    tmp_path: Path, server: str, victoria_metrics: StartPromql
) -> None:
    trace = synthetic.poisson([4.0, 12.0, 4.0], 600.0, prompt=800, output=120)
    case = Case(trace, synthetic.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
    witness, _ = witnessed(case, PolicyScaler(case, load().policies["interactive"]))
    begin_s = float(int(datetime.now(UTC).timestamp() - 86_400) // 3600 * 3600)
    told = tuple(samples(witness, begin_s, "team", "llama"))
    out, rule = tmp_path / "proof.json", tmp_path / "rule.yaml"
    rule.write_text(RULE)
    moments = [datetime.fromtimestamp(begin_s + after_s, UTC).isoformat() for after_s in (0, 1800)]

    async def replay(url: str) -> Result:
        return await asyncio.to_thread(
            invoke,
            *("replay", "--prometheus", url, "--workload", "team/llama", "--start", moments[0], "--end", moments[1]),
            *(*PROFILE, "--against", "keda-queue,static", rule, "--json", out),
        )

    if server == "prometheus":
        async with prometheus_with(tmp_path, told) as running:
            result = await replay(running.url)
    else:
        server = await victoria_metrics()
        await load_into(server, told)
        result = await replay(server.url)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    by_name = {policy["name"]: policy for policy in written["policies"]}
    own = "ScaledObject team/llama"
    assert list(by_name) == ["ours", "keda-queue", own, "static", "actual", "recorded"]
    assert by_name[own]["scale_ups"] > 0
    assert f"{own}: open loop, on the history as it was: spec.triggers[1]" in "\n".join(written["notes"])
    assert written["trace"] == "team/llama"
    assert written["requests"] == pytest.approx(len(trace.arrival_s), rel=0.02)
    assert by_name["recorded"]["gpu_hours"] == pytest.approx(by_name["actual"]["gpu_hours"], rel=0.15)
    assert by_name["recorded"]["attainment_ttft"] == pytest.approx(by_name["actual"]["attainment_ttft"], abs=0.05)


@pytest.mark.integration
async def test_own_rule_repeats_what_it_did(tmp_path: Path) -> None:
    """A rule scaled the workload of this history, so its row is close to what happened."""
    out, file = tmp_path / "proof.json", tmp_path / "rule.yaml"
    file.write_text(RULE.replace("count(vllm:cache_config_info) or count(vllm:iterations)", "max(up)"))
    (rule,) = read_files([file])
    trace = synthetic.poisson([6.0, 12.0, 6.0, 12.0], 675.0, prompt=800, output=120)
    case = Case(trace, synthetic.llama(), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
    witness, _ = witnessed(case, OwnRule(RuleSetting(rule, 0.0), case.start_replicas))
    begin_s = float(int(datetime.now(UTC).timestamp() - 86_400) // 3600 * 3600)
    moments = [datetime.fromtimestamp(begin_s + after_s, UTC).isoformat() for after_s in (0, 2700)]
    interval = ("--start", moments[0], "--end", moments[1])
    async with prometheus_with(tmp_path, tuple(samples(witness, begin_s, "team", "llama"))) as server:
        result = await asyncio.to_thread(
            invoke,
            *("replay", "--prometheus", server.url, "--workload", "team/llama", *interval),
            *(*PROFILE, "--against", file, "--json", out),
        )
    assert result.exit_code == 0, result.output
    by_name = {policy["name"]: policy for policy in json.loads(out.read_text())["policies"]}
    own, actual = by_name["ScaledObject team/llama"], by_name["actual"]
    assert own["gpu_hours"] == pytest.approx(actual["gpu_hours"], rel=0.1)
    assert own["scale_ups"] == pytest.approx(actual["scale_ups"], abs=3)


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


def test_start_replicas_are_checked_before_reading_history(
    tmp_path: Path,
) -> None:
    policy = tmp_path / "two.yaml"
    policy.write_text(POLICY.replace("ITL", "100ms").replace("spec:", "spec:\n  replicas: {max: 2}"))
    here = ("replay", "--workload", "team/llama", "--ticks", __file__, *PROFILE)
    result = invoke(*here, "--policy", policy, "--start-replicas", "3")
    assert result.output == f"error: --start-replicas is 3; allowed: at most replicas.max of {policy}, 2\n"
