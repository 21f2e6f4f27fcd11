"""Manifests of workloads: annotations, and what would undo the scaling."""

import pytest

from autoscaler.adapters.kubernetes.workloads.annotations import read_annotations
from autoscaler.catalog.scale_targets import SCALED
from autoscaler.config.annotations import ANNOTATIONS, PREFIX, SHORT_OVERRIDES, names, override_path
from autoscaler.config.check.manifests import check_workload
from autoscaler.config.findings import Finding, Severity
from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import OVERRIDES
from autoscaler.config.yaml import Document, read_documents
from autoscaler.core.model.fleet import Workload, WorkloadRef
from tests.config.policy.test_compile import with_policies

BOOK = load()
GOOD = {"policy": "realtime"}


def findings_of(
    annotations: dict[str, str],
    pod: str = "containers: []",
    kind: str = "Deployment",
    spec: str = "",
    pod_annotations: str = "{}",
) -> list[Finding]:
    """The name of an annotation is in line 7 and on, the pod template behind it."""
    lines = [f"    {PREFIX}{name}: {value}" for name, value in annotations.items()]
    text = "\n".join(
        [
            "apiVersion: apps/v1",
            f"kind: {kind}",
            "metadata:",
            "  name: chat",
            "  annotations:",
            "    team: a",
            *lines,
            "spec:",
            f"  {spec}",
            "  template:",
            f"    metadata: {{annotations: {pod_annotations}}}",
            f"    spec: {{{pod}}}",
        ]
    )
    documents, faults = read_documents("m.yaml", text)
    assert not faults, faults
    return list(check_workload(documents[0], BOOK))


def test_good_annotations_have_nothing_to_find():
    annotations = {
        **GOOD,
        "service": "chat",
        "model": "meta-llama/Llama-3.1-8B",
        "engine": "vllm",
        "metrics-port": "'8000'",
        "paused": "'false'",
        "min-replicas": "'2'",
        "max-replicas": "'8'",
        "override.objective.ttft": "200ms",
        "override.scaleDown.maxStep": "10%",
    }
    assert findings_of(annotations) == []


@pytest.mark.parametrize(
    ("name", "value", "problem", "allowed"),
    [
        ("polcy", "realtime", "did you mean policy? unknown annotation", "docs/reference/policy.md"),
        ("mode", "llama", "did you mean model? unknown annotation", "docs/reference/policy.md"),
        ("policy", "reltime", "did you mean realtime? no such policy", "batch, development"),
        ("policy", "'Not A Name'", "not a name", "a-z, 0-9"),
        ("min-replicas", "2", "not text, which Kubernetes requires", "in quotes"),
        ("min-replicas", "'-1'", "negative", "from 0 to 10,000"),
        ("min-replicas", "'20'", "above max", "replicas.max, which is 16"),
        ("max-replicas", "'0'", "too small", "from 1 to 10,000"),
        ("override.objective.tfft", "1s", "did you mean override.objective.ttft? unknown annotation", ""),
        ("override.objective.ttft", "'200'", "a duration without a unit", "150ms"),
        ("override.prewarm", "'[]'", "unknown annotation", ""),
        ("paused", "'yes'", "unknown", "true, false"),
        ("engine", "ollama", "unknown", "vllm, sglang"),
        ("metrics-port", "http", "not a whole number", "1 to 65,535"),
        ("service", '"a\\nb"', "not a name", "1 to 128 letters"),
        ("model", "''", "not a name", "1 to 256 printable"),
        ("weights", '"a\\nb"', "its scheme is unknown", "hf://ORGANISATION/NAME@REVISION, s3://"),
        ("windows", "'[{from: 0 9 * * *, until: 0 18 * * *}]'", "[0].replicas: missing", "a YAML list of at most 16"),
    ],
)
def test_a_bad_annotation_is_reported_at_its_line(name: str, value: str, problem: str, allowed: str):
    annotations = {name: value} if name == "policy" else {**GOOD, name: value}
    found = [finding for finding in findings_of(annotations) if finding.severity is Severity.ERROR]
    (finding,) = found
    assert (finding.line, finding.key) == (6 + len(annotations), f"metadata.annotations.{PREFIX}{name}")
    assert problem in finding.problem
    assert allowed in finding.allowed


def test_all_bad_overrides_are_reported_at_once():
    found = findings_of({**GOOD, "override.objective.ttft": "fast", "max-replicas": "'0'", "override.weight": "'-1'"})
    assert [(finding.line, finding.problem) for finding in found] == [
        (8, "not a duration"),
        (9, "too small"),
        (10, "negative"),
    ]


def test_a_window_beyond_the_maximum_is_a_warning():
    windows = "'[{from: 0 9 * * *, until: 0 18 * * *, replicas: 99}]'"
    (finding,) = findings_of({**GOOD, "windows": windows})
    assert (finding.severity, finding.allowed) == (Severity.WARNING, "at most 16")
    assert "limited by replicas.max" in finding.problem


def test_two_annotations_for_one_field_are_reported():
    (finding,) = findings_of({**GOOD, "max-replicas": "'4'", "override.replicas.max": "'5'"})
    assert (finding.line, finding.key) == (9, f"metadata.annotations.{PREFIX}override.replicas.max")
    assert finding.problem == f"overrides replicas.max, as {PREFIX}max-replicas does in line 8"
    assert (finding.value, finding.allowed) == ("'5'", "one of the two")


def test_overrides_are_held_against_the_policy_that_is_named():
    (finding,) = findings_of({"policy": "development", "min-replicas": "'2'"})
    assert (finding.problem, finding.allowed) == ("above max", "at most replicas.max, which is 1")


def test_an_empty_policy_is_the_default_one():
    (finding,) = findings_of({"policy": "''", "min-replicas": "'17'"})
    assert (finding.problem, finding.allowed) == ("above max", "at most replicas.max, which is 16")


VALUES = ["", " ", "true", "yes", "2", "-2", "99999", "1.5", "realtime", "Real", "a b", "a/b-c_d.e", "-a", "150ms"]
TIMES = ["2027-05-03T07:30:00Z", "2027-05-03T07:30:00", "2027-02-30T07:30:00Z", "0001-01-01T00:00:00+09:00"]
LONG_AND_ODD = ["vllm", "é", "a\n", "\x00", "x" * 63, "x" * 300]


@pytest.mark.parametrize("name", [*ANNOTATIONS, *SHORT_OVERRIDES, "override.objective.ttft", "nonsense", "override.x"])
@pytest.mark.parametrize("value", VALUES + TIMES + LONG_AND_ODD)
def test_check_and_daemon_agree_on_annotations(name: str, value: str):
    book = with_policies(**{policy: {"replicas": {"max": 9999}} for policy in ("interactive", "x" * 63)})
    annotations = {f"{PREFIX}{name}": value}
    document = Document("m.yaml", 1, {"kind": "Deployment", "metadata": {"annotations": annotations}})
    declared = read_annotations(annotations)
    found = [finding for finding in check_workload(document, book) if finding.severity is Severity.ERROR]
    compiled = compile_specs((Workload(WorkloadRef("ns", "w"), "", declared.policy or "", declared.overrides),), book)
    assert bool(found) == bool(declared.problem or compiled.problems), (declared, compiled.problems, found)


def test_annotations_without_a_policy_are_a_warning():
    (finding,) = findings_of({"min-replicas": "'2'"})
    assert (finding.severity, finding.line) == (Severity.WARNING, 5)
    assert "only a ScaledObject could" in finding.problem


def test_a_role_without_a_service_is_a_warning():
    (finding,) = findings_of({**GOOD, "role": "prefill"})
    assert (finding.severity, finding.line) == (Severity.WARNING, 8)
    assert finding.problem == "no service names the other workload of its pair, so it is sized alone"
    assert findings_of({**GOOD, "role": "decode", "service": "chat"}) == []


def test_annotations_of_the_pods_are_a_warning():
    (finding,) = findings_of(GOOD, pod_annotations=f"{{{PREFIX}policy: batch}}")
    assert (finding.severity, finding.problem) == (Severity.WARNING, "no effect on the pods")


@pytest.mark.parametrize("prefix", ["vllm-autoscaler", "vllm-autoscalers.io", "vllm-autoscaler.com"])
def test_misspelt_annotation_prefixes_are_reported(prefix: str):
    text = f"kind: Deployment\nmetadata:\n  annotations:\n    {prefix}/policy: realtime\n"
    documents, _ = read_documents("m.yaml", text)
    (finding,) = check_workload(documents[0], BOOK)
    assert (finding.line, finding.problem, finding.severity) == (4, "unknown prefix", Severity.ERROR)
    assert finding.allowed == PREFIX


def test_labels_under_our_prefix_are_a_warning():
    text = f"kind: Deployment\nmetadata:\n  labels:\n    {PREFIX}policy: realtime\n"
    documents, _ = read_documents("m.yaml", text)
    (finding,) = check_workload(documents[0], BOOK)
    assert (finding.line, finding.problem, finding.severity) == (4, "no effect as a label", Severity.WARNING)


def test_a_workload_that_is_not_ours_is_left_alone():
    assert findings_of({}, "containers: [{image: vllm/vllm-openai}]", spec="replicas: 3") == []


def test_a_replica_count_in_the_manifest_is_a_warning():
    (finding,) = findings_of(GOOD, spec="replicas: 3")
    assert (finding.severity, finding.key, finding.value) == (Severity.WARNING, "spec.replicas", "'3'")
    assert finding.problem == "sets the count back at every apply"


VLLM = "image: vllm/vllm-openai"
SLEEP = "lifecycle: {preStop: {sleep: {seconds: 10}}}"


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        (f"containers: [{{{VLLM}}}]", "running requests are cut off when the count shrinks"),
        ("containers: [{command: [vllm, serve, m]}]", "running requests are cut off when the count shrinks"),
        (f"containers: [{{{VLLM}, args: [--shutdown-timeout, '60']}}]", "30 s end before"),
        (f"containers: [{{{VLLM}, args: [--shutdown-timeout=30], {SLEEP}}}]", "30 s end before"),
        (f"terminationGracePeriodSeconds: 69, containers: [{{{VLLM}, args: [--shutdown-timeout=60]}}]", "69 s end"),
        (f"terminationGracePeriodSeconds: 70, containers: [{{{VLLM}, args: [--shutdown-timeout=60]}}]", ""),
        (f"containers: [{{{VLLM}, {SLEEP}}}]", ""),
        (f"containers: [{{{VLLM}, lifecycle: {{preStop: {{exec: {{command: [sh, -c, sleep 25]}}}}}}}}]", "30 s end"),
        ("containers: [{image: nginx}]", ""),
        (
            f"containers: [{{{VLLM}, lifecycle: {{preStop: {{exec: {{command: [sh, -c, sleep 2m]}}}}}}}}]",
            "before preStop",
        ),
        (f"containers: [{{{VLLM}, lifecycle: {{preStop: {{exec: {{command: [sleep, 15s]}}}}}}}}]", ""),
        (f"containers: [{{{VLLM}, lifecycle: {{preStop: {{exec: {{command: [sh, -c, 'sleep ${{N}}']}}}}}}}}]", ""),
        (f"containers: [{{{VLLM}, lifecycle: {{preStop: {{exec: {{command: [/drain.sh]}}}}}}}}]", ""),
        ("containers: [{command: [sh, -c, 'vllm serve m --shutdown-timeout ${T}']}]", ""),
        ("containers: [{command: [sh, -c, 'vllm serve m --shutdown-timeout=\"60\"']}]", "30 s end before"),
        (f"containers: [{{{VLLM}, args: [--shutdown-timeout, '0']}}]", "running requests are cut off"),
        ("containers: [{command: [python3, -m, vllm.entrypoints.openai.api_server]}]", "running requests are cut off"),
        ("containers: [{image: my.org/vllm/prometheus:1}]", ""),
        ("containers: [{image: my/vllm-exporter:1}]", ""),
        (f"containers: [{{{VLLM}, command: [/start.sh]}}]", ""),
        ("containers: soon", ""),
    ],
)
def test_pods_need_the_time_that_their_drain_takes(pod: str, problem: str):
    found = findings_of(GOOD, pod)
    assert bool(found) == bool(problem)
    for finding in found:
        assert finding.severity is Severity.WARNING
        assert problem in finding.problem
        assert finding.line == 12


SLEEPING = f"{VLLM}, {SLEEP}, args: [--enable-sleep-mode, --enable-server-load-tracking]"
ASKS = "readinessProbe: {exec: {command: [sh, -c, 'curl -sf localhost:8000/is_sleeping | grep -q false']}}"
DEV_MODE = "env: [{name: VLLM_SERVER_DEV_MODE, value: '1'}]"


@pytest.mark.parametrize(
    ("container", "missing"),
    [
        (f"{SLEEPING}, {ASKS}, {DEV_MODE}", []),
        (f"{SLEEPING}, {ASKS}, envFrom: [{{configMapRef: {{name: dev}}}}]", []),
        (f"{SLEEPING}, {ASKS}", ["VLLM_SERVER_DEV_MODE=1"]),
        (f"{SLEEPING}, {DEV_MODE}", ["a probe that asks /is_sleeping"]),
        (f"{SLEEPING}, {DEV_MODE}, readinessProbe: {{httpGet: {{path: /health}}}}", ["a probe that asks /is_sleeping"]),
        (f"{VLLM}, {SLEEP}, {ASKS}, {DEV_MODE}", ["--enable-sleep-mode", "--enable-server-load-tracking"]),
    ],
)
def test_engines_that_may_sleep_are_prepared_for_it(container: str, missing: list[str]):
    sleeps = {"policy": "batch", "override.sleep.replicas": "'1'"}
    assert [finding.allowed for finding in findings_of(sleeps, f"containers: [{{{container}}}]")] == missing
    assert findings_of(GOOD, f"containers: [{{{container}}}]") == []


@pytest.mark.parametrize("engine", ["command: [vllm, serve, m]", "image: 'vllm/vllm-openai:v1'", "image: vllm"])
def test_a_sidecar_is_no_engine(engine: str):
    found = findings_of(GOOD, f"containers: [{{image: my/vllm-exporter:1}}, {{{engine}}}]")
    assert [finding.key for finding in found] == ["spec.template.spec.containers[1]"]
    both = f"containers: [{{image: my/vllm-thing:1}}, {{image: vllm/vllm-openai, {SLEEP}, command: [vllm, serve]}}]"
    assert findings_of(GOOD, both) == []


@pytest.mark.parametrize(
    ("grace", "problem"), [("'300'", "text, for it is in quotes"), ("5m", "not a whole number"), ("-1", "negative")]
)
def test_a_grace_period_that_is_no_number_of_seconds_is_an_error(grace: str, problem: str):
    pod = f"terminationGracePeriodSeconds: {grace}, containers: [{{{VLLM}, args: [--shutdown-timeout=120]}}]"
    (finding,) = findings_of(GOOD, pod)
    assert (finding.severity, finding.problem, finding.value) == (Severity.ERROR, problem, repr(grace.strip("'")))
    assert finding.allowed.startswith("a whole number from 0")


def test_annotations_that_are_no_mapping_are_an_error():
    text = f"kind: Deployment\nmetadata:\n  annotations: [{PREFIX}policy]\n"
    documents, _ = read_documents("m.yaml", text)
    (finding,) = check_workload(documents[0], BOOK)
    assert (finding.line, finding.problem, finding.severity) == (3, "not a mapping", Severity.ERROR)


def test_groups_of_pods_are_checked_in_leader_and_worker():
    text = (
        f"kind: LeaderWorkerSet\nmetadata: {{annotations: {{{PREFIX}policy: batch}}}}\nspec:\n  leaderWorkerTemplate:\n"
        "    leaderTemplate: {spec: {containers: [{image: vllm}]}}\n"
        "    workerTemplate: {spec: {containers: [{image: vllm}]}}\n"
    )
    (document,), _ = read_documents("m.yaml", text)
    assert [finding.line for finding in check_workload(document, BOOK)] == [5, 6]


def test_templates_in_a_list_are_checked_one_by_one():
    text = (
        f"kind: RayClusterFleet\nmetadata: {{annotations: {{{PREFIX}policy: batch}}}}\nspec:\n  template:\n    spec:\n"
        "      workerGroupSpecs:\n"
        "        - {template: {spec: {containers: [{image: vllm}]}}}\n"
        "        - {template: {spec: {containers: [{image: vllm}]}}}\n"
    )
    (document,), _ = read_documents("m.yaml", text)
    assert [finding.line for finding in check_workload(document, BOOK)] == [7, 8]


@pytest.mark.parametrize("kind", list(SCALED))
@pytest.mark.parametrize("rest", ["metadata: 5", "metadata: {annotations: }", "spec: []", "metadata:", "a: b"])
def test_a_manifest_of_the_wrong_shape_is_no_error_of_ours(kind: str, rest: str):
    (document,), _ = read_documents("m.yaml", f"kind: {kind}\n{rest}\n")
    assert list(check_workload(document, BOOK)) == []


def test_every_field_that_can_be_overridden_has_its_annotation():
    assert {override_path(name) for name in names()} - {""} == set(OVERRIDES)
    assert [override_path(name) for name in ("min-replicas", "override.replicas.max", "policy", "override.x")] == [
        "replicas.min",
        "replicas.max",
        "",
        "",
    ]


def test_node_pool_that_may_grow_is_a_warning():
    (finding,) = findings_of(GOOD, "nodeSelector: {eks.amazonaws.com/nodegroup: gpu}")
    assert (finding.severity, finding.value) == (Severity.WARNING, "'gpu'")
    assert finding.problem.startswith("today's nodes of this pool cap the count")
    assert "--node-group-max eks.amazonaws.com/nodegroup=gpu:NODES" in finding.allowed
    assert findings_of(GOOD, "nodeSelector: {karpenter.sh/nodepool: gpu, team: a}") == []
