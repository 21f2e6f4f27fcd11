"""`simulate` as one types it: what it writes, what it refuses before it begins."""

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from autoscaler.lab.report.progress_bar import ProgressBar
from tests.cli.study import POLICY, PROFILE, invoke, write_trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernel")]


def test_simulate_prints_the_table_and_writes_json_and_page(trace: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "proof.json", tmp_path / "proof.html"
    result = invoke(
        "simulate", "--trace", trace, *PROFILE, "--against", "keda-queue", "static", "--json", out, "--html", page
    )
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["offline_plan"] is None
    assert (written["trace"], written["profile"], written["seed"]) == ("ten-minutes", "8b-h100", 1)
    assert [policy["name"] for policy in written["policies"]] == ["ours", "keda-queue", "static"]
    assert written["requests"] == 900
    assert 0 < written["lower_bound"]["gpu_hours"] < written["policies"][0]["gpu_hours"]
    assert "ten-minutes: 900 requests" in result.output
    assert page.read_text().startswith("<!doctype html>")


RULE = """\
kind: ScaledObject
metadata: {name: llama, namespace: my-team}
spec:
  scaleTargetRef: {name: llama}
  minReplicaCount: 1
  triggers:
    - {type: prometheus, metadata: {query: sum(vllm:num_requests_running), threshold: "8"}}
    - {type: prometheus, metadata: {query: sum(my_metric), threshold: "8"}}
    - {type: cron, metadata: {timezone: UTC, start: 0 1 * * *, end: 0 2 * * *, desiredReplicas: "9"}}
    - {type: memory, metadata: {value: "8"}}
"""

EARLY = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: early}
spec:
  objective: {ttft: 1s}
  prewarm: [{from: 0 1 * * *, until: 0 2 * * *, replicas: 9}]
"""


def test_own_rule_is_run_and_its_parts_are_told(trace: Path, tmp_path: Path) -> None:
    out, page, rule = (tmp_path / name for name in ("proof.json", "proof.html", "rule.yaml"))
    rule.write_text(RULE)
    policy = tmp_path / "policy.yaml"
    policy.write_text(EARLY)
    options = ("--against", rule, "keda-queue", "--json", out, "--html", page, "--policy", policy)
    result = invoke("simulate", "--trace", trace, *PROFILE, *options)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    title = "ScaledObject my-team/llama"
    assert [(policy["name"], policy["own"]) for policy in written["policies"]] == [
        ("ours", False),
        ("keda-queue", False),
        (title, True),
    ]
    assert written["policies"][2]["gpu_hours"] > 0
    told = [note.removeprefix(f"{title}: ") for note in written["notes"] if note.startswith(title)]
    assert [line.partition(":")[0] for line in told] == [
        "for its cron trigger, the trace begins on a Monday, 2024-01-01, at midnight UTC",
        "closed loop, on the simulated signals",
        "by the clock",
        "left out, as no history was read",
        "left out",
    ]
    assert f"policy early: for its pre-warm windows, {told[0].partition(', ')[2]}" in written["notes"]
    assert f"{title} (own rule)" in result.output and title in page.read_text()


def test_a_plan_is_shown_with_the_bound(trace: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "proof.json", tmp_path / "proof.html"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--planned", "--json", out, "--html", page)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert set(written["offline_plan"]) == {"gpu_hours", "attainment"}
    assert written["offline_plan"]["attainment"] >= 0.99
    assert written["offline_plan"]["gpu_hours"] >= written["lower_bound"]["gpu_hours"]
    assert [policy["name"] for policy in written["policies"]] == ["ours"]
    assert "offline-plan (knows the trace)" in result.output
    assert "offline-plan (knows the trace)" in page.read_text()


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
    assert written[1]["lower_bound"]["gpu_hours"] > written[0]["lower_bound"]["gpu_hours"]


def test_only_a_part_of_a_trace_is_run_and_told(tmp_path: Path) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,model"
    rows = [*(f"{at},100,10,early" for at in range(120)), *(f"{at},100,10,late" for at in range(120, 300))]
    file, out = write_trace(tmp_path / "two.csv", rows, header), tmp_path / "proof.json"
    result = invoke("simulate", "--trace", file, *PROFILE, "--start", "2m30s", "--end", "4m", "--json", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["requests"], written["duration_s"]) == (90, 90.0)
    assert written["models"] == 1  # as if the file had no second model, so the other one has no replicas
    assert "two: only from 2m30s to 4m" in " ".join(written["notes"])
    assert invoke("simulate", "--trace", file, *PROFILE, "--start", "4m", "--json", out).exit_code == 0
    assert json.loads(out.read_text())["duration_s"] == 60.0


def test_requests_of_the_last_second_are_counted(tmp_path: Path) -> None:
    rows = [*(f"{at},100,10" for at in range(0, 600, 10)), *("600,100,10" for _ in range(40))]
    file, out = write_trace(tmp_path / "burst.csv", rows), tmp_path / "proof.json"
    for options, requests in (((), 100), (("--start", "10s"), 99), (("--learn", "1m"), 94)):
        assert invoke("simulate", "--trace", file, *PROFILE, *options, "--json", out).exit_code == 0
        assert json.loads(out.read_text())["requests"] == requests
    at_once = write_trace(tmp_path / "at-once.csv", ["10,500,20"] * 100)
    assert invoke("simulate", "--trace", at_once, *PROFILE, "--json", out).exit_code == 0
    assert json.loads(out.read_text())["policies"][0]["attainment"] > 0.9  # those to begin with are sized by them


def test_page_is_written_when_defaults_were_best(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "proof.html"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--learn", "5m", "--against", "knative-kpa", "--html", page)
    assert result.exit_code == 0, result.output
    assert "knative-kpa" in page.read_text()


def test_a_file_of_several_policies_is_refused(trace: Path, tmp_path: Path) -> None:
    text = POLICY.replace("ITL", "100ms")
    file = tmp_path / "two.yaml"
    file.write_text(f"{text}---\n{text.replace('mine', 'yours')}")
    result = invoke("simulate", "--trace", trace, *PROFILE, "--policy", file)
    assert (result.exit_code, "two.yaml: 2 policies: mine, yours; allowed: one" in result.output) == (2, True)


def test_missing_bound_is_explained_without_a_ttft_objective(trace: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.yaml", tmp_path / "proof.json"
    file.write_text(POLICY.replace("ttft: 1s, itl: ITL", "itl: 100ms"))
    assert invoke("simulate", "--trace", trace, *PROFILE, "--policy", file, "--json", out).exit_code == 0
    written = json.loads(out.read_text())
    assert written["lower_bound"]["gpu_hours"] == 0
    assert "without a TTFT objective" in " ".join(written["notes"])


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
        ("static", False, False, True),
        ("keda-rps", False, False, True),
    ]
    assert "in 4 min after 6 min to learn from" in " ".join(result.output.split())
    assert "Judged by the first 6 min, the best was" in result.output


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


@pytest.mark.parametrize(
    "option", [("--weights-on", "0.5"), ("--request-nodes",), ("--fetch-weights",), ("--node-idle", "10m")]
)
def test_links_before_a_replica_need_fresh_nodes(trace: Path, option: tuple[str, ...]) -> None:
    result = invoke("simulate", "--trace", trace, *PROFILE, *option)
    assert result.exit_code == 2
    assert option[0] in result.output
    why = "without --cold-start-uncached: every node is up, with image and weights"
    assert why in " ".join(result.output.split())


def test_links_that_begin_ahead_are_told(trace: Path) -> None:
    options = ("--cold-start-uncached", "4m", "--request-nodes", "--fetch-weights", "--node-idle", "10m")
    result = invoke("simulate", "--trace", trace, *PROFILE, *options, "--start-replicas", 1)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "nodes are requested before pre-warm windows and forecast rises" in said
    assert "nodes fetch weights by the daemon's plan" in said
    assert "a node that was empty for 10 min is removed" in said


def test_weights_on_half_of_the_nodes_are_told(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    options = ("--cold-start-uncached", "4m", "--weights-on", "0.5", "--start-replicas", 1, "--json", out)
    result = invoke("simulate", "--trace", trace, *PROFILE, *options)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["weights_on"] == 0.5
    assert "4 min on a fresh node, weights on 50% of the nodes" in " ".join(result.output.split())


def test_several_files_make_several_proofs(trace: Path, tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other.csv", ["0,100,10", "59,100,10"])
    out = tmp_path / "proof.json"
    assert invoke("simulate", "--trace", trace, other, *PROFILE, "--json", out).exit_code == 0
    assert [each["trace"] for each in json.loads(out.read_text())] == ["ten-minutes", "other"]


def test_progress_covers_reading_all_traces(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[str, list[float]] = {}

    class Noted(ProgressBar):
        def __init__(self, title: str, console: Console) -> None:
            super().__init__(title, console)
            self.shares = shares.setdefault(title, [])

        def __call__(self, share: float) -> None:
            self.shares.append(share)

    monkeypatch.setattr("autoscaler.lab.commands.simulate.ProgressBar", Noted)
    second = write_trace(tmp_path / "second.csv", ["1,500,80"])
    assert invoke("simulate", "--trace", trace, "--trace", second, *PROFILE).exit_code == 0
    for title in ("reading traces", "preparing"):
        assert shares[title] == sorted(shares[title])
        assert 0.5 in shares[title] and shares[title][-1] == 1.0


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


def test_requests_too_long_for_the_profile_are_cut_and_reported(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "long.csv", ["0,200000,10", "10,100,10"])
    result = invoke("simulate", "--trace", file, *PROFILE)
    assert "shortened to the 131,072 tokens that the profile takes: 1 request" in result.output


def test_unreachable_objective_is_refused_before_the_run(trace: Path, tmp_path: Path) -> None:
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
        (["5,100,10", "4,100,10"], None, "line 3: arrival_s is 4; it must not be below 5, that of the request before"),
        (["5,-1,10"], None, "line 2: prompt_tokens is -1; it must be a whole number from 1"),
        (["5,10"], None, "line 2: 2 fields, the header has 3"),
        (GOOD, "arrival_s,prompt_tokens", "line 1: no column output_tokens"),
        ([], None, "it contains no request"),
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


@pytest.mark.long
def test_file_of_empty_lines_is_read_up_to_a_limit(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n1,2,3\n" + b"\n" * 61_000_000))
    result = invoke("simulate", "--trace", bomb, *PROFILE)
    assert result.exit_code == 2
    assert result.output == f"error: {bomb}, line 60000000: more than 60,000,000 lines, the limit\n"


def test_a_gz_that_ends_early_is_told(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:2000])
    result = invoke("simulate", "--trace", trace, *PROFILE)
    assert result.exit_code == 2
    assert "the gzip data ends early, in line" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "8b-h10"), "no profile '8b-h10'; available: 8b-h100,"),
        ((*PROFILE, "--against", "kedda"), "no baseline 'kedda'; allowed: all, keda-queue,"),
        ((*PROFILE, "--json", "nowhere/proof.json"), "the folder nowhere does not exist"),
        ((), "--profile NAME is missing"),
        ((*PROFILE, "--scale", "0"), "--scale"),
        (
            (*PROFILE, "--start", "10m"),
            "ten-minutes.csv.gz: --start is 10m; it must be before the end of the trace, 10m",
        ),
        ((*PROFILE, "--start", "5m", "--end", "2m"), "--start is 5m; it must be before --end, 2m"),
        ((*PROFILE, "--end", "11m"), "--end is 11m; allowed: at most the length of the trace, 10m"),
        ((*PROFILE, "--start", "0s", "--end", "11m"), "--end is 11m; allowed"),
        ((*PROFILE, "--against", "missing.yaml"), "missing.yaml: error: document: cannot be read"),
        ((*PROFILE, "--cluster"), "--cluster and --workload NAMESPACE/NAME go together"),
        ((*PROFILE, "--workload", "a/b"), "--cluster and --workload NAMESPACE/NAME go together"),
        ((*PROFILE, "--context", "c"), "--context has no effect without --cluster"),
        (
            ("--profile", "8b-h100", "--cluster", "--workload", "a/b", "--fewest-gpus"),
            "--cluster has no effect with --fewest-gpus",
        ),
        ((*PROFILE, "--tuned"), "--tuned has no effect without --against NAME"),
        ((*PROFILE, "--ray", "--jobs", "2"), "--jobs has no effect with --ray"),
        ((*PROFILE, "--json", "-"), "not the name of a file, found '-'; allowed: ./- for a file of this name"),
        ((*PROFILE, "--html", ""), "not the name of a file, found ''"),
        ((*PROFILE, "--end", "1ms"), "ten-minutes.csv.gz: no request from 0s to 1ms"),
        (
            (*PROFILE, "--learn", "10m"),
            "ten-minutes.csv.gz: --learn is 10m; it must be shorter than the whole, 10m",
        ),
        ((*PROFILE, "--learn", "1ms"), "--learn is 1ms; no request arrives before that"),
        ((*PROFILE, "--learn", "599999ms"), "--learn is 9m59s999ms; no request arrives after that"),
        ((*PROFILE, "--against", "all,magic"), "no baseline 'magic'; allowed: all, keda-queue, "),
        ((*PROFILE, "--against", ","), "no baseline ','; allowed: all, "),
        ((*PROFILE, "--against", "", "--tuned"), "no baseline ''; allowed: all, "),
        ((*PROFILE, "--policy", "/tmp"), "Invalid value for '--policy'"),
        ((*PROFILE, "--learn", "6"), "--learn"),
        ((*PROFILE, "--cold-start", "60"), "--cold-start"),
        (
            (*PROFILE, "--cold-start-uncached", "30s"),
            "--cold-start-uncached is 30s; it must be at least --cold-start, 1m",
        ),
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
            "--gpus is 2; allowed: at least the 4 that one replica of 70b-4xh100 takes",
        ),
        (
            (*PROFILE, "--gpus", "2", "--start-replicas", "3"),
            "--start-replicas is 3; allowed: at most the 2 that fit on --gpus 2, in nodes of 8 and of what is left",
        ),
        (
            ("--profile", "70b-4xh100", "--gpus", "14", "--start-replicas", "4"),
            "--start-replicas is 4; allowed: at most the 3 that fit on --gpus 14",
        ),
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


def test_too_many_start_replicas_name_the_policy_file(trace: Path, tmp_path: Path) -> None:
    policy = tmp_path / "two.yaml"
    policy.write_text(POLICY.replace("ITL", "100ms").replace("spec:", "spec:\n  replicas: {max: 2}"))
    result = invoke("simulate", "--trace", trace, *PROFILE, "--policy", policy, "--start-replicas", "3")
    assert result.output == f"error: --start-replicas is 3; allowed: at most replicas.max of {policy}, 2\n"


def test_fleet_needs_gpus_for_all_start_replicas(tmp_path: Path) -> None:
    rows = [f"{at},300,50,{model}" for at in range(60) for model in ("a", "b", "c")]
    file = write_trace(tmp_path / "three.csv", rows, "arrival_s,prompt_tokens,output_tokens,model")
    result = invoke("simulate", "--trace", file, *PROFILE, "--gpus", "4", "--start-replicas", "2")
    assert "--start-replicas is 2 for each of 3 models; allowed: at most the 4 that fit on --gpus 4" in result.output


def test_baselines_are_named_with_spaces_or_commas(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "proof.json"
    result = invoke("simulate", "--trace", trace, *PROFILE, "--against", "static keda-rps,hpa-inflight", "--json", out)
    assert result.exit_code == 0
    names = {each["name"] for each in json.loads(out.read_text())["policies"]}
    assert names == {"ours", "keda-rps", "hpa-inflight", "static"}


def test_undecodable_file_name_is_printed_with_question_marks(trace: Path, tmp_path: Path) -> None:
    other, out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv.gz")), tmp_path / "proof.json"
    other.write_bytes(trace.read_bytes())
    assert invoke("simulate", "--trace", other, *PROFILE, "--json", out).exit_code == 0
    assert json.loads(out.read_bytes())["trace"] == "?"
    assert b"\\ud" not in out.read_bytes()


def test_same_named_traces_are_told_apart_by_path(trace: Path, tmp_path: Path) -> None:
    other, out = tmp_path / "other" / trace.name, tmp_path / "proofs.json"
    other.parent.mkdir()
    other.write_bytes(trace.read_bytes())
    assert invoke("simulate", "--trace", trace, other, *PROFILE, "--json", out).exit_code == 0
    names = [comparison["trace"] for comparison in json.loads(out.read_text())]
    assert names == [str(file).removesuffix(".csv.gz") for file in (trace, other)]
    result = invoke("simulate", "--trace", trace, other, trace, *PROFILE)
    assert result.output == f"error: --trace {trace}: it was given before, as {trace}; allowed: each file once\n"


def test_table_of_clients_is_drawn_at_its_scale_and_told(tmp_path: Path) -> None:
    table, out = tmp_path / "chat_clients.csv", tmp_path / "proof.json"
    table.write_text(
        "t_s,client,requests,cv,dist,shape,active_frac\n" + "".join(f"{60 * at},1,240,1,G,1,1\n" for at in range(5))
    )
    (tmp_path / "chat_tokens.csv").write_text(
        "t_s,client,field,mean,q0.1,q0.9\n0,1,input_tokens,100,50,150\n0,1,output_tokens,10,5,15\n"
    )
    result = invoke("simulate", "--trace", table, *PROFILE, "--scale", 0.5, "--start", "1m", "--json", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["duration_s"] == 240.0
    assert written["requests"] == pytest.approx(480, rel=0.2)
    assert "chat_clients: requests of 1 clients, drawn at 0.5 of their rates" in written["notes"]
