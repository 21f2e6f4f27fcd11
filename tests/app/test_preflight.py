"""`preflight` against a real Prometheus and a real kube-apiserver, and how it says what it found."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.listing import list_all
from autoscaler.app.preflight import PreflightOptions, preflight
from autoscaler.cli.main import main
from autoscaler.config.settings import KubeSettings, PrometheusSettings
from tests.config.preflight.scene import BUDGET, CHAT, NIGHTLY, QUERY, SCALER, changed, options
from tests.harness.kube_api import KubeApi
from tests.harness.process import free_port
from tools.preflight_cases import judged

CASES = Path(__file__).parents[1] / "data" / "preflight"
LOUD = changed(options("--gpu-memory-utilization=0.97"), (SCALER, QUERY, "sum(vllm:num_requests_waiting)"))


def invoke(*arguments: object) -> Result:
    try:
        return CliRunner().invoke(main, ["preflight", *map(str, arguments)])
    finally:
        structlog.reset_defaults()  # the command sets up the log of its process, which is that of all tests here


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(yaml.safe_dump_all(LOUD, sort_keys=False))
    return file


def test_json_has_the_stated_keys_and_errors_come_first(loud: Path):
    result = invoke(loud, "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert told.keys() == {"version", "findings", "not_checked"}
    keys = {"id", "severity", "object", "path", "line", "message", "why", "fix"}
    assert all(each.keys() == keys for each in told["findings"])
    assert [(each["id"], each["severity"], each["object"]) for each in told["findings"]] == [
        ("VA1205", "error", "ScaledObject/web/chat"),
        ("VA1301", "warning", "Deployment/web/chat"),
    ]
    lines = loud.read_text().splitlines()
    assert "sum(vllm:num_requests_waiting)" in lines[told["findings"][0]["line"] - 1]
    assert told["findings"][1]["path"] == "spec.template.spec.containers[0].args[16]"


def test_text_has_groups_by_workload_and_a_summary(loud: Path):
    lines = invoke(loud).output.splitlines()
    assert lines[0] == "Deployment/web/chat"
    assert lines[1].startswith("  error   VA1205 ScaledObject/web/chat spec.triggers[0].metadata.query (")
    assert lines[-1].startswith("2 workloads: 1 error, 1 warning, 0 notes; ")


@pytest.mark.parametrize(("least", "code"), [("never", 0), ("error", 0), ("warning", 1), ("note", 1)])
def test_the_exit_code_depends_on_the_worst_finding(tmp_path: Path, least: str, code: int):
    file = tmp_path / "chat.yaml"
    file.write_text(yaml.safe_dump_all(changed(options("--gpu-memory-utilization=0.97"))))
    assert invoke(file, "--fail-on", least).exit_code == code


def test_sarif_and_annotations_name_file_and_line(loud: Path):
    log = json.loads(invoke(loud, "--sarif").output)
    assert log["version"] == "2.1.0"
    (results,) = (each["results"] for each in log["runs"])
    place = results[0]["locations"][0]["physicalLocation"]
    assert (results[0]["ruleId"], place["artifactLocation"]["uri"]) == ("VA1205", str(loud))
    first = invoke(loud, "--github").output.splitlines()[0]
    assert first.startswith(
        f"::error file={loud},line={place['region']['startLine']},title=VA1205 ScaledObject/web/chat::"
    )


def test_names_write_no_command_link_or_colour(tmp_path: Path):
    name = "a\r\n::error::b\x1b[31m%0A##[add-mask]x [c](https://example.com)"
    documents = changed(options("--gpu-memory-utilization=0.97"), (CHAT, ("metadata", "name"), name))
    documents += [{**documents[BUDGET], "kind": "::warning::x"}]
    file = tmp_path / "chat.yaml"
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    text = invoke(file).output
    assert text.replace("\n", "").isprintable()
    assert not [line for line in text.splitlines() if "::" in line or "##[" in line]
    annotations = invoke(file, "--github").output.splitlines()
    assert all(line.isprintable() and re.match(r"::(error|warning|notice) ", line) for line in annotations)
    messages = [each["message"]["text"] for each in json.loads(invoke(file, "--sarif").output)["runs"][0]["results"]]
    assert all("[c](" not in message.replace("\\[", "").replace("\\]", "") for message in messages)
    json.loads(invoke(file, "--json").output)


@pytest.mark.parametrize("arguments", [(), ("--namespace", "a", "x.yaml"), ("x.yaml", "--prometheus-header", "A: b")])
def test_a_wrong_use_is_one_line_and_code_2(loud: Path, arguments: tuple[str, ...]):
    result = invoke(*(str(loud) if each == "x.yaml" else each for each in arguments))
    assert result.exit_code == 2


def test_a_server_that_is_down_leaves_queries_unchecked(loud: Path):
    told = json.loads(invoke(loud, "--json", "--prometheus", f"http://127.0.0.1:{free_port()}").output)
    assert {each["id"] for each in told["findings"]} == {"VA1205", "VA1301"}
    reasons = [each["reason"] for each in told["not_checked"] if each["what"] == "answer of the query"]
    assert "no connection" in reasons[0]


async def test_a_slow_server_costs_the_deadline_and_no_more(loud: Path, capsys: pytest.CaptureFixture[str]):
    most = now = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.5)
        now -= 1
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        server = PrometheusSettings(url=f"http://127.0.0.1:{port}")
        await preflight(PreflightOptions((loud,), prometheus=server, form="json", deadline_s=1.0))
    finally:
        await runner.cleanup()
    told = json.loads(capsys.readouterr().out)
    assert most <= 4
    assert any("deadline" in each["reason"] for each in told["not_checked"])
    assert "VA1205" in {each["id"] for each in told["findings"]}


@pytest.mark.integration
@pytest.mark.parametrize("case", sorted(CASES.glob("*/")), ids=lambda case: case.name)
def test_own_cases_are_found_without_a_false_alarm(case: Path):
    found = judged(case, preflight=lambda *arguments: invoke(*arguments).stdout)
    assert (found.missed, found.false) == ([], [])


@pytest.mark.integration
async def test_a_kind_that_may_not_be_listed_is_named(
    kube_api: KubeApi,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    user = await kube_api.service_account(namespace, "nobody")
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig(user)))
    code = await preflight(PreflightOptions((), kube=KubeSettings(), form="json"))
    told = json.loads(capsys.readouterr().out)
    assert (code, told["findings"]) == (0, [])
    refused = {each["object"]: each["reason"] for each in told["not_checked"]}
    assert refused["Deployment//"].startswith("403")


@pytest.mark.integration
async def test_a_cluster_is_read_and_not_written(kube_api: KubeApi, namespace: str):
    for index in (CHAT, BUDGET):
        document: dict[str, Any] = json.loads(json.dumps(LOUD[index]))
        document["metadata"]["namespace"] = namespace
        await kube_api.apply(document)
    async with Kube.using(kube_api.configuration(), 10.0) as kube:
        listed = await list_all(kube, [namespace])
    kinds = {(each["kind"], each["metadata"]["name"]) for each in listed.objects if "namespace" in each["metadata"]}
    assert kinds == {("Deployment", "chat"), ("PodDisruptionBudget", "chat")}
    assert not listed.problems


def role(name: str, verb: str, resource: str = "*") -> dict[str, Any]:
    rule = {"apiGroups": ["*"], "resources": [resource], "verbs": [verb]}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}


@pytest.mark.integration
async def test_a_scaled_object_of_a_cluster_is_checked(
    kube_api: KubeApi, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rules = "rules: [{seriesQuery: DCGM_FI_DEV_FB_USED, name: {as: fullness}, metricsQuery: sum(x)}]"
    adapter = {"name": "adapter", "image": "registry.k8s.io/prometheus-adapter/prometheus-adapter:v0.12.0"}
    volume = {"name": "config", "configMap": {"name": "rules"}}
    metric = {"type": "Pods", "pods": {"metric": {"name": "fullness"}, "target": {"type": "AverageValue"}}}
    metric["pods"]["target"]["averageValue"] = "1"
    scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "nightly"}}
    scaler["spec"] = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nightly"}}
    scaler["spec"] |= {"maxReplicas": 3, "metrics": [metric]}
    mounted = json.loads(json.dumps(LOUD[NIGHTLY]))
    mounted["metadata"] = {"name": "adapter"}
    mounted["spec"]["template"]["spec"] = {"containers": [adapter], "volumes": [volume]}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rules"}, "data": {"config.yaml": rules}}
    await kube_api.install_crds("scaledobjects")
    for each in (LOUD[CHAT], LOUD[SCALER], LOUD[NIGHTLY], mounted, scaler, config):
        document: dict[str, Any] = json.loads(json.dumps(each))
        document["metadata"]["namespace"] = namespace
        document.get("spec", {}).get("template", {}).get("spec", {}).pop("priorityClassName", None)
        await kube_api.apply(document)
    may = await kube_api.service_account(namespace, "reader", role("all", "list"), role("config", "get", "configmaps"))
    may_not = await kube_api.service_account(namespace, "stranger", role("all", "list"))
    told = {}
    for user in (may, may_not):
        monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig(user)))
        await preflight(PreflightOptions((), kube=KubeSettings(), namespaces=(namespace,), form="json"))
        told[user.name] = json.loads(capsys.readouterr().out)
    found = {(each["id"], each["object"]) for each in told[may.name]["findings"]}
    assert ("VA1205", f"ScaledObject/{namespace}/chat") in found
    assert ("VA1212", f"HorizontalPodAutoscaler/{namespace}/nightly") in found
    refused = {each["object"]: each["reason"] for each in told[may_not.name]["not_checked"]}
    assert refused["ConfigMap//"].startswith("403")


PAGES = sorted((Path(__file__).parents[2] / "docs" / "how-to" / "platforms").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_manifests_of_platform_pages_are_good(page: Path, tmp_path: Path):
    file = tmp_path / "shown.yaml"
    file.write_text("---\n".join(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)))
    assert len(page.read_text().splitlines()) <= 60
    if not file.read_text():
        return
    told = json.loads(invoke(file, "--json", "--fail-on", "never").output)
    assert [each["message"] for each in told["findings"] if each["severity"] != "note"] == []
    checked = CliRunner().invoke(main, ["check", str(file)])
    # A kind that --target-kind must name is one more thing to do, and its page says so.
    warnings = [line for line in checked.output.splitlines() if "warning" in line and "--target-kind" not in line]
    assert (checked.exit_code, warnings) == (0, [])
