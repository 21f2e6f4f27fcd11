"""The command line: what each option refuses, in one sentence that names thing, value and what is allowed; codes."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from autoscaler.cli.main import main
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer
from tests.harness.forked import run_forked
from tests.harness.process import PATIENCE_S

COMMAND = Path(sys.executable).with_name("vllm-autoscaler")
COMMANDS = tuple(main.commands)
DIRECT = ("run", "--mode", "direct")
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: nowhere
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: secret-token}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
"""


def invoke(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process: for what is refused before anything starts."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)


def execute(
    directory: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None, piped: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in an environment without a cluster. piped: to its standard input."""
    own = {"PATH": "/usr/bin:/bin", "HOME": str(directory), **(environment or {})}
    if piped is None:
        return run_forked(*arguments, folder=directory, environment=own)
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        cwd=directory,
        env=own,
        input=piped,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def error_line(text: str) -> str:
    """Return the one line that says what is wrong; above it a usage error repeats how the command is called."""
    (line,) = [line for line in text.splitlines() if line.lower().startswith("error: ")]
    assert "Traceback" not in text
    assert "Warning" not in text
    return line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_of_every_command_does_not_load_the_daemon(command: str):
    shown = invoke(*filter(None, [command]), "--help")
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: ")
    for name in () if command else COMMANDS:
        assert name in shown.output


def test_help_imports_nothing_but_click():
    """Imports make `--help` slow: numpy, aiohttp and grpc take a second."""
    code = "import sys, autoscaler.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "click" in loaded
    assert not {"numpy", "aiohttp", "grpc", "pydantic", "structlog", "kubernetes_asyncio"} & set(loaded)


def test_the_version_is_the_package_s():
    assert re.fullmatch(r"vllm-autoscaler, version \d+\.\d+\.\d+\n", invoke("--version").output)


BAD_OPTIONS = {
    "no mode": (("run",), ["--mode", "direct", "keda", "dry-run"]),
    "unknown mode": (("run", "--mode", "auto"), ["'auto'", "direct"]),
    "unknown option": ((*DIRECT, "--perid", "5s"), ["--perid", "--period"]),
    "no source": ((*DIRECT, "--no-scrape"), ["no source of metrics", "--prometheus URL"]),
    "not a URL": ((*DIRECT, "--prometheus", "prom:9090"), ["--prometheus", "'prom:9090'", "http://host:port"]),
    "no host": ((*DIRECT, "--prometheus", "http://"), ["--prometheus", "'http://'"]),
    "scheme": ((*DIRECT, "--gateway", "ftp://gw/metrics"), ["--gateway", "'ftp://gw/metrics'", "http://"]),
    "port of a URL": ((*DIRECT, "--dcgm", "http://dcgm:94000/"), ["--dcgm", "'http://dcgm:94000/'"]),
    "header": (("dry-run", "--prometheus", "http://a", "--prometheus-header", "s3cret"), ["no colon", "Name: value"]),
    "header of two lines": (
        ("dry-run", "--prometheus", "http://a", "--prometheus-header", "X-Token: s3cret\nX-Other: 1"),
        ["more than one line", "Name: value", "not shown"],
    ),
    "selector": (
        ("dry-run", "--prometheus", "http://a", "--prometheus-selector", "cluster=prod"),
        ["--prometheus-selector", "no matcher at 'cluster=prod'", 'allowed: matchers such as cluster="prod"'],
    ),
    "selector of a name": (
        (*DIRECT, "--prometheus", "http://a", "--prometheus-selector", '__name__="up"'),
        ["__name__ names metrics"],
    ),
    "selector without a server": ((*DIRECT, "--prometheus-selector", 'a="b"'), ["has no effect without --prometheus"]),
    "token file": ((*DIRECT, "--prometheus", "http://a", "--prometheus-token-file", "/none"), ["/none", "not exist"]),
    "option without its server": (
        (*DIRECT, "--prometheus-username", "me"),
        ["--prometheus-username has no effect without --prom"],
    ),
    "window without a server": (
        (*DIRECT, "--rate-window", "5m"),
        ["--rate-window has no effect without --prometheus URL"],
    ),
    "hub without weights": ((*DIRECT, "--weights-hub", "http://a"), ["--weights-hub has no effect without --weights"]),
    "gRPC without KEDA": ((*DIRECT, "--grpc-port", "6001"), ["--grpc-port has no effect without --mode keda"]),
    "half a client certificate for pods": ((*DIRECT, "--scrape-cert", __file__), ["--scrape-key is missing"]),
    "prefix of no metric": ((*DIRECT, "--metric-prefix", "x-"), ["--metric-prefix", "'x-'", "a-z, A-Z, 0-9"]),
    "token of no namespace": ((*DIRECT, "--scrape-token", __file__), ["--scrape-token", "NAMESPACE=FILE"]),
    "token without a file": ((*DIRECT, "--scrape-token", "a=/none"), ["'/none'", "does not exist"]),
    "token for anybody": (
        (*DIRECT, "--scrape-token", f"a={__file__}", "--scrape-verify", "none"),
        ["a token is sent only to servers whose certificate is verified"],
    ),
    "token without a gateway": (
        (*DIRECT, "--gateway-token-file", __file__),
        ["--gateway-token-file has no effect without --gateway URL"],
    ),
    "certificates for nothing": (
        (*DIRECT, "--prometheus", "http://a", "--scrape-ca", __file__),
        ["--scrape-ca has no effect without --scrape, --dcgm or --gateway"],
    ),
    "half a client certificate": (
        (*DIRECT, "--prometheus", "http://a", "--prometheus-cert", __file__),
        ["--prometheus-key is missing"],
    ),
    "half a server certificate": (("run", "--mode", "keda", "--grpc-key", __file__), ["--grpc-cert is missing"]),
    "certificate missing": (("run", "--mode", "keda", "--grpc-cert", "/none.pem"), ["'/none.pem'", "does not exist"]),
    "duration without unit": ((*DIRECT, "--period", "5"), ["without a unit", "'5'", "500ms, 5s or 2m"]),
    "no duration": ((*DIRECT, "--period", "soon"), ["'soon'", "500ms, 5s or 2m"]),
    "zero duration": ((*DIRECT, "--period", "0s"), ["'0s'", "at most 24h"]),
    "long duration": (("demo", "--duration", "48h"), ["'48h'", "at most 24h"]),
    "price": ((*DIRECT, "--price", "H100"), ["'H100'", "PRODUCT=USD"]),
    "capacity type": ((*DIRECT, "--price", "L4@sopt=1"), ["'sopt'", "did you mean spot?", "on-demand, reserved, spot"]),
    "high price": ((*DIRECT, "--price", "L4=10001"), ["'L4=10001'", "0 to 10,000"]),
    "two prices": ((*DIRECT, "--price", "L4=1", "--price", "L4=2"), ["L4 has two prices, 1 and 2; allowed: one"]),
    "negative price": ((*DIRECT, "--price", "H100=-1"), ["'H100=-1'"]),
    "namespace": ((*DIRECT, "--namespace", "../kube-system"), ["--namespace", "'../kube-system'", "a-z, 0-9"]),
    "empty namespace": ((*DIRECT, "--namespace", ""), ["--namespace", "''"]),
    "lease": ((*DIRECT, "--lease-name", "Lease!"), ["--lease-name", "'Lease!'"]),
    "target kind": ((*DIRECT, "--target-kind", "Rollout"), ["--target-kind", "'Rollout'", "rollouts.argoproj.io"]),
    "node group": (
        (*DIRECT, "--node-group-max", "l4:12"),
        ["--node-group-max", "'l4:12'", "cloud.google.com/gke-nodepool=l4:12"],
    ),
    "negative nodes": ((*DIRECT, "--node-group-max", "a=b:-1"), ["--node-group-max", "'a=b:-1'"]),
    "images without pods": ((*DIRECT, "--request-nodes=capacity-buffer", "--pull-images"), ["no pod that could pull"]),
    "images without requests": ((*DIRECT, "--pull-images"), ["--pull-images", "without --request-nodes"]),
    "system namespace": ((*DIRECT, "--system-namespace", "A"), ["--system-namespace", "'A'"]),
    "lease namespace": ((*DIRECT, "--lease-namespace", "a/b"), ["--lease-namespace", "'a/b'"]),
    "http port": ((*DIRECT, "--http-port", "70000"), ["--http-port", "70000", "65535"]),
    "no http port": (("demo", "--http-port", "abc"), ["--http-port", "not a whole number, found 'abc'", "0<=x<=65535"]),
    "grpc port": ((*DIRECT, "--grpc-port", "6e3"), ["--grpc-port", "found '6e3'; allowed: 0<=x<=65535"]),
    "short window": (
        (*DIRECT, "--prometheus", "http://a", "--rate-window", "1ms"),
        ["--rate-window", "'1ms'", "at least 10s"],
    ),
    "log level": ((*DIRECT, "--log-level", "loud"), ["'loud'", "'debug', 'info', 'warning', 'error'"]),
    "policies": ((*DIRECT, "--policies", "/none"), ["'/none'", "does not exist"]),
    "state in no folder": (
        (*DIRECT, "--state", "/none/state.npz"),
        ["--state", "/none/state.npz", "a folder that exists"],
    ),
    "state without a name": ((*DIRECT, "--state", ""), ["--state", "'' cannot be written"]),
    "state on standard output": ((*DIRECT, "--state", "-"), ["--state", "'-' cannot be written"]),
    "state is a folder": ((*DIRECT, "--state", "/"), ["--state", "'/' cannot be written"]),
    "GPUs stated of replicas whose templates tell": (
        ("dry-run", "--prometheus", "http://a", "--cluster", "--gpus-per-replica", "2"),
        ["--gpus-per-replica has no effect with --cluster"],
    ),
    "dry-run without a server": (("dry-run",), ["--prometheus URL is missing"]),
    "context without a cluster": (
        ("dry-run", "--prometheus", "http://a", "--context", "c"),
        ["--context has no effect without"],
    ),
    "no speed": (("demo", "--speed", "nan"), ["--speed", "nan", "600"]),
    "speed": (("demo", "--speed", "1000"), ["--speed", "1000", "600"]),
    "speed in words": (("demo", "--speed", "fast"), ["--speed", "not a number, found 'fast'; allowed: 1<=x<=600"]),
    "seed": (("demo", "--seed", "-1"), ["--seed", "-1"]),
    "no seed": (("demo", "--seed", "abc"), ["--seed", "not a whole number, found 'abc'; allowed: x>=0"]),
    "no workload": (("explain",), ["NAMESPACE/NAME"]),
    "no namespace": (("explain", "llama"), ["'llama'", "NAMESPACE/NAME"]),
    "path": (("explain", "ns/../../metrics"), ["'ns/../../metrics'", "NAMESPACE/NAME"]),
    "shouting": (("explain", "NS/llama"), ["'NS/llama'", "a-z, 0-9"]),
    "query": (("explain", "ns/llama?kind=x"), ["'ns/llama?kind=x'"]),
    "where": (("explain", "ns/llama", "--url", "daemon"), ["--url", "'daemon'"]),
    "nothing to check": (("check",), ["FILES"]),
    "nothing there to check": (("check", "/none.yaml"), ["'/none.yaml'", "does not exist"]),
}


@pytest.mark.parametrize(("arguments", "parts"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_invalid_option_exits_2_with_one_sentence(arguments: tuple[str, ...], parts: list[str]):
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    text = refused.output.partition("Error: ")[2]
    assert "Traceback" not in refused.output
    assert [part for part in parts if part not in text] == []


def test_url_errors_hide_password_and_query():
    for url in ("ftp://me:hunter2@prom?key=hunter2", "me:hunter2@prom:9090", "http://me:hunter2@:9090"):
        refused = invoke(*DIRECT, "--prometheus", url)
        assert refused.exit_code == 2
        assert "hunter2" not in refused.output


def test_options_from_the_environment_are_checked_alike():
    refused = invoke("run", environment={"VLLM_AUTOSCALER_RUN_MODE": "direct", "VLLM_AUTOSCALER_RUN_PERIOD": "5"})
    assert refused.exit_code == 2
    assert "--period" in refused.output
    refused = invoke("demo", environment={"VLLM_AUTOSCALER_DEMO_HTTP_PORT": "70000"})
    assert "70000" in refused.output
    for text in ("8_080", "٨٠", "+80", "0x50", "1e3", " 80"):  # numbers to Python, or to YAML
        refused = invoke("demo", environment={"VLLM_AUTOSCALER_DEMO_HTTP_PORT": text})
        assert (refused.exit_code, "not a whole number" in refused.output) == (2, True), text
        refused = invoke("demo", environment={"VLLM_AUTOSCALER_DEMO_SPEED": text})
        assert (refused.exit_code, "not a number" in refused.output) == (2, True), text


@pytest.mark.slow
def test_environment_options_may_be_unused_by_a_command(tmp_path: Path):
    environment = {
        "VLLM_AUTOSCALER_DRY_RUN_HTTP_PORT": "1234",
        "VLLM_AUTOSCALER_DRY_RUN_NAMESPACE": "llm",
        "VLLM_AUTOSCALER_DRY_RUN_PERIOD": "5s",
    }
    decided = execute(tmp_path, "dry-run", "--prometheus", "http://127.0.0.1:1", "--once", environment=environment)
    assert "has no effect" not in decided.stderr
    assert "http://127.0.0.1:1" in decided.stdout + decided.stderr  # it was asked


def test_help_says_how_options_are_named_in_the_environment():
    assert "VLLM_AUTOSCALER_COMMAND_OPTION" in invoke("--help").output


@pytest.mark.slow
def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path):
    refused = execute(tmp_path, *DIRECT)
    assert refused.returncode == 2
    assert "~/.kube/config cannot be used: it does not exist" in error_line(refused.stderr)
    refused = execute(tmp_path, *DIRECT, "--context", "prod", environment={"KUBECONFIG": "/none"})
    assert "kubeconfig /none (context prod)" in error_line(refused.stderr)


@pytest.mark.slow
def test_start_fails_with_file_and_line_when_policies_are_broken(tmp_path: Path):
    policy = tmp_path / "chat.yaml"
    policy.write_text(_policy("replicas: {min: 5, max: 2}"))
    for command in (DIRECT, ("dry-run", "--prometheus", "http://127.0.0.1:1")):
        refused = execute(tmp_path, *command, "--policies", policy)
        assert refused.returncode == 2
        line = error_line(refused.stderr)
        assert f"{policy}:5" in line
        assert "replicas.max" in line
        assert refused.stdout == ""


@pytest.mark.slow
def test_a_default_policy_that_does_not_exist_stops_the_start(tmp_path: Path):
    refused = execute(tmp_path, *DIRECT, "--default-policy", "intercative")
    assert refused.returncode == 2
    line = error_line(refused.stderr)
    assert "'intercative'" in line
    assert "interactive" in line


@pytest.mark.slow
def test_a_port_in_use_is_one_line_and_code_2(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("demo",), ("dry-run", "--prometheus", "http://127.0.0.1:1")):
            refused = execute(tmp_path, *command, "--http-port", port)
            assert refused.returncode == 2
            line = error_line(refused.stderr)
            assert refused.stderr.splitlines() == [line]
            assert port in line
            assert "in use" in line


@pytest.mark.slow
def test_an_address_that_is_not_this_machine_s_is_named(tmp_path: Path):
    refused = execute(tmp_path, "dry-run", "--prometheus", "http://127.0.0.1:1", "--http-host", "192.0.2.1")
    assert refused.returncode == 2
    assert "192.0.2.1" in error_line(refused.stderr)


@pytest.mark.slow
def test_the_grpc_port_in_use_is_one_line_and_code_2(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = _keda(tmp_path, "--grpc-host", "127.0.0.1", "--grpc-port", port)
    assert refused.returncode == 2
    assert f"gRPC port {port}" in error_line(refused.stderr)


@pytest.mark.slow
def test_a_certificate_that_expired_stops_the_start(tmp_path: Path, certificates: Certificates):
    expired = certificates.issue("localhost", valid_for=timedelta(hours=-1))
    refused = _keda(tmp_path, "--grpc-cert", expired.certificate, "--grpc-key", expired.key)
    assert refused.returncode == 2
    line = error_line(refused.stderr)
    assert str(expired.certificate) in line
    assert "expired" in line


@pytest.mark.slow
def test_start_fails_when_certificate_and_key_do_not_match(tmp_path: Path, certificates: Certificates):
    one, other = certificates.issue("localhost"), certificates.issue("other")
    refused = _keda(tmp_path, "--grpc-cert", one.certificate, "--grpc-key", other.key)
    assert refused.returncode == 2
    assert str(one.certificate) in error_line(refused.stderr)


def _keda(directory: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Start KEDA mode with a kubeconfig, whose server is not asked before the port is bound."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    where = {"KUBECONFIG": str(kubeconfig)}
    return execute(directory, "run", "--mode", "keda", *arguments, environment=where)


# explain


@pytest.mark.slow
def test_explain_without_a_daemon_says_where_it_asked(tmp_path: Path):
    refused = execute(tmp_path, "explain", "ns/llama", "--url", "http://127.0.0.1:1")
    assert refused.returncode == 2
    assert "http://127.0.0.1:1" in error_line(refused.stderr)


@pytest.mark.slow
async def test_explain_exits_1_for_unknown_workload_2_for_other_server(tmp_path: Path, exposition_server):
    path = "/api/v1/workloads/ns/llama"
    url = exposition_server.url
    answers = {
        '{"error": "no workload ns/llama in the last tick"}': (404, 1, "no workload ns/llama in the last tick"),
        "<html>another server</html>": (200, 2, url),
        '{"explanation": ["not", "ours"]}': (200, 2, url),
    }
    for body, (status, code, part) in answers.items():
        exposition_server.serve(path, Answer(body, status))
        told = await asyncio.to_thread(execute, tmp_path, "explain", "ns/llama", "--url", url)
        assert (told.returncode, told.stdout) == (code, ""), body
        assert part in error_line(told.stderr)


@pytest.mark.slow
async def test_explain_prints_the_sentence_and_the_planner_lines(tmp_path: Path, exposition_server):
    lines = [{"name": "headroom", "text": "1.69 replicas: 4 asked for, minus 2.31 kept busy"}]
    explanation = {"sentence": "Keeps 4 replicas.", "forecast": lines}
    exposition_server.serve("/api/v1/workloads/ns/llama", Answer(json.dumps({"explanation": explanation}), 200))
    told = await asyncio.to_thread(execute, tmp_path, "explain", "ns/llama", "--url", exposition_server.url)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "Keeps 4 replicas.\n  headroom    1.69 replicas: 4 asked for, minus 2.31 kept busy\n"


# check


@pytest.mark.slow
def test_check_exits_2_when_policies_cannot_be_used(tmp_path: Path):
    policy, good = tmp_path / "chat.yaml", tmp_path / "good.yaml"
    policy.write_text(_policy("weight: heavy"))
    good.write_text(_policy("weight: 2"))
    for options, part in (
        (("--policies", policy), f"{policy}:5"),
        (("--default-policy", "chatt"), "--default-policy: did you mean chat? no such policy"),
    ):
        refused = execute(tmp_path, "check", good, *options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert part in error_line(refused.stderr)


def _policy(*spec: str) -> str:
    head = dedent("""\
        apiVersion: vllm-autoscaler.io/v1
        kind: Policy
        metadata: {name: chat}
        spec:
        """)
    return head + "".join(f"  {line}\n" for line in spec)


BAD_POLICIES = {
    "unknown key": ("replicas: {min: 1, maks: 2}", ["replicas", "maks", "max"]),
    "min above max": ("replicas: {min: 5, max: 2}", ["replicas.max", "2", "5"]),
    "duration without unit": ("coldStart: 30", ["coldStart", "30", "30s"]),
    "cron nonsense": (
        'prewarm: [{from: "61 8 * * *", until: "0 19 * * *", replicas: 2}]',
        ["prewarm[0].from", "'61 8 * * *'", "cron"],
    ),
    "unknown time zone": (
        'prewarm: [{from: "0 8 * * *", until: "0 19 * * *", timezone: Europe/Berln, replicas: 2}]',
        ["timezone", "'Europe/Berln'", "Europe/Berlin"],
    ),
    "number out of bounds": ("weight: -1", ["weight", "-1", "0.001"]),
    "not a number": ("priority: high", ["priority", "'high'", "whole number"]),
    "percentage": ("tolerance: 400%", ["tolerance", "'400%'", "90%"]),
    "wrong shape": ("replicas: [1, 2]", ["replicas"]),
}


@pytest.mark.parametrize(("spec", "parts"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_check_names_file_line_key_value_and_what_is_allowed(tmp_path: Path, spec: str, parts: list[str]):
    policy = tmp_path / "chat.yaml"
    policy.write_text(_policy(spec))
    found = invoke("check", policy)
    assert found.exit_code == 1
    line = found.output.splitlines()[0]
    assert line.startswith(f"{policy}:5")
    assert "allowed: " in line
    assert [part for part in parts if part not in line] == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"\xff\xfe\x00", "chat.yaml"),
        (b"spec: [", "chat.yaml:2"),
        (b"a: &a [*a]", "chat.yaml"),
        (b"spec: {" + b"a: {" * 5000, "chat.yaml"),
        (b"x" * (17 << 20), "chat.yaml"),
        (b"!!python/object/apply:os.system ['touch pwned']", "chat.yaml"),
    ],
    ids=["binary", "unfinished", "recursive", "deep", "huge", "code"],
)
def test_check_survives_files_that_are_no_policies(tmp_path: Path, text: bytes, part: str):
    policy = tmp_path / "chat.yaml"
    policy.write_bytes(text)
    found = invoke("check", policy)
    assert found.exit_code == 1
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert part in found.output
    assert len(found.output) < 5000
    assert list(tmp_path.iterdir()) == [policy]


def test_check_accepts_shipped_files_and_lists_what_it_checked():
    root = Path(__file__).parents[2]
    found = invoke("check", root / "policies", root / "manifests" / "keda" / "scaledobject.yaml")
    assert found.exit_code == 0
    assert found.output == "checked Policy (4), ScaledObject (1)\n"


def test_check_reads_standard_input_with_its_own_default_policy():
    policy = _policy("weight: 2")
    found = CliRunner().invoke(main, ["check", "-", "--default-policy", "chat"], input=policy)
    assert (found.exit_code, found.output) == (0, "checked Policy (1)\n")
    found = CliRunner().invoke(main, ["check", "-"], input=policy + "  weigth: 1\n")
    assert found.exit_code == 1
    assert found.output.startswith("standard input:6: error: spec.weigth: did you mean weight? unknown key")
    for nothing in ("", "Error: chart not found\n"):
        found = CliRunner().invoke(main, ["check", "-"], input=nothing)
        assert found.exit_code == 1
        assert found.output.splitlines()[0].startswith("standard input: error: document: nothing to check")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_findings_in_a_pipe_name_standard_input(tmp_path: Path, path: str):
    found = execute(tmp_path, "check", path, piped=_policy("weight: 2", "weigth: 1"))
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout.startswith("standard input:6: error: spec.weigth: did you mean weight? unknown key")


def test_check_of_one_bad_file_among_good_ones_is_code_1(tmp_path: Path):
    (tmp_path / "good.yaml").write_text(_policy("weight: 2"))
    (tmp_path / "bad.yaml").write_text(_policy("weight: heavy").replace("chat", "batch2"))
    found = invoke("check", tmp_path)
    assert found.exit_code == 1
    assert "bad.yaml:5" in found.output
    assert "good.yaml" not in found.output


@pytest.mark.slow
def test_command_runs_once_when_a_plain_script_forks_it(tmp_path: Path):
    script = tmp_path / "case.py"
    run = "forked.IMPORTED.clear()\nprint('out:', forked.run_forked('--version').stdout)\n"
    script.write_text(f"from tests.harness import forked\n{run}")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, script], cwd=root, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout.count("out: ")) == (0, "", 1), done
