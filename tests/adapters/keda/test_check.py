"""Findings of `check` about ScaledObjects."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.keda.check import check_scaled_object
from autoscaler.config.check.files import check
from autoscaler.config.findings import Finding, Severity
from autoscaler.config.policy.parse import load
from autoscaler.config.yaml import Document, read_documents

EXAMPLE = Path(__file__).parents[3] / "manifests" / "keda" / "scaledobject.yaml"
BOOK = load()


def findings(text: str) -> list[Finding]:
    documents, faults = read_documents("so.yaml", text)
    assert not faults
    return [finding for document in documents for finding in check_scaled_object(document, BOOK)]


def changed(*changes: tuple[str, object]) -> str:
    """Return the shipped example with values set at dotted paths; None removes a value."""
    document = yaml.safe_load(EXAMPLE.read_text())
    for place, value in changes:
        *way, last = [int(part) if part.isdigit() else part for part in place.replace("\\.", "\0").split(".")]
        inside = document
        for part in way:
            inside = inside[part]
        last = last.replace("\0", ".") if isinstance(last, str) else last
        if value is None:
            del inside[last]
        else:
            inside[last] = value
    return yaml.safe_dump(document)


BEHAVIOR = "spec.advanced.horizontalPodAutoscalerConfig.behavior"
METADATA = "spec.triggers.0.metadata"
MAY_ZERO = (f"{METADATA}.scaleToZero\\.enabled", None)  # then the policy `interactive` decides, which may go to zero


def test_shipped_example_has_no_findings():
    result = check([EXAMPLE], BOOK, {"ScaledObject": check_scaled_object})
    assert result.findings == () and dict(result.documents) == {"ScaledObject": 1}


@pytest.mark.parametrize(
    ("least", "idle", "enabled", "key", "allowed"),
    [
        (0, None, "false", "spec.minReplicaCount", "at least 1, or scaleToZero.enabled: true"),
        (None, None, "false", "spec.minReplicaCount", "at least 1, or scaleToZero.enabled: true"),  # which means 0
        (2, 0, "false", "spec.idleReplicaCount", "no idleReplicaCount, or scaleToZero.enabled: true"),
        (0, None, "true", None, ""),
        (2, 0, "true", None, ""),
        (1, None, "false", None, ""),
    ],
)
def test_error_when_keda_alone_may_go_to_zero(
    least: int | None, idle: int | None, enabled: str, key: str | None, allowed: str
):
    idles = () if idle is None else (("spec.idleReplicaCount", idle),)
    text = changed((f"{METADATA}.scaleToZero\\.enabled", enabled), ("spec.minReplicaCount", least), *idles)
    found = findings(text)
    assert [(finding.key, finding.severity) for finding in found] == ([(key, Severity.ERROR)] if key else [])
    assert all(finding.allowed.startswith(allowed) for finding in found)


TO_ZERO = [MAY_ZERO, ("spec.minReplicaCount", None)]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ([*TO_ZERO, ("spec.cooldownPeriod", 299)], True),
        ([*TO_ZERO, ("spec.cooldownPeriod", 0)], True),
        ([MAY_ZERO, ("spec.cooldownPeriod", 30), ("spec.minReplicaCount", 0)], True),
        ([MAY_ZERO, ("spec.cooldownPeriod", 30), ("spec.minReplicaCount", 2), ("spec.idleReplicaCount", 0)], True),
        ([*TO_ZERO, ("spec.cooldownPeriod", 300)], False),
        (TO_ZERO, False),  # the default is 300
        ([("spec.cooldownPeriod", 30), ("spec.minReplicaCount", 1)], False),  # KEDA never scales to zero
    ],
)
def test_warning_when_the_cooldown_is_short(changes: list[tuple[str, object]], warned: bool):
    """KEDA 2.20 can treat a failed call as an idle workload: 4 replicas went to 0."""
    found = [finding for finding in findings(changed(*changes)) if finding.key == "spec.cooldownPeriod"]
    assert [(finding.severity, "scales to zero" in finding.problem) for finding in found] == [
        (Severity.WARNING, True)
    ] * warned


@pytest.mark.parametrize(
    ("idle_after", "cooldown_s", "told_s"),
    [("20s", None, "320"), ("2m", 600, "720"), ("15m", None, ""), ("15m", 300, ""), ("auto", None, "")],
)
def test_time_to_zero_is_told_when_the_cooldown_is_longer(idle_after: str, cooldown_s: int | None, told_s: str):
    changes = [*TO_ZERO, (f"{METADATA}.scaleToZero\\.idleAfter", idle_after)]
    changes += [("spec.cooldownPeriod", cooldown_s)] if cooldown_s else []
    told = [finding.problem for finding in findings(changed(*changes)) if finding.key == "spec.cooldownPeriod"]
    assert [f"idleAfter + cooldownPeriod = {told_s} s after the last request" in text for text in told] == (
        [True] if told_s else []
    )


def test_finding_has_line_key_value_and_allowed_values():
    text = EXAMPLE.read_text().replace("policy: interactive", "policy: interactiv")
    line = 1 + text.splitlines().index("        policy: interactiv")
    (finding,) = findings(text)
    assert str(finding) == (
        f"so.yaml:{line}: error: spec.triggers[0].metadata.policy: "
        "did you mean interactive? no policy 'interactiv'; allowed: batch, development, interactive, realtime"
    )


@pytest.mark.parametrize(
    ("place", "value", "key", "words"),
    [
        (f"{METADATA}.polciy", "x", "metadata.polciy", "unknown key"),
        (f"{METADATA}.policy", 5, "metadata.policy", "not text"),
        (f"{METADATA}.scalerAddress", None, "metadata", "missing"),
        (f"{METADATA}.scalerAddress", "http://vllm-autoscaler-keda:6000", "scalerAddress", "a URL, found 'http://vllm"),
        (f"{METADATA}.objective\\.ttft", "fast", "objective.ttft", "found 'fast'"),
        (f"{METADATA}.replicas\\.min", "99", "replicas.min", "above max"),
        ("spec.triggers.0.metricType", "Value", "metricType", "multiplies our count"),
        ("spec.advanced.scalingModifiers", {"metricType": "Value"}, "Modifiers.metricType", "multiplies our count"),
        ("spec.triggers.0.type", "external_push", "triggers[0].type", "unknown type"),
        ("spec.scaleTargetRef.kind", "deployment", "scaleTargetRef.kind", "did you mean Deployment?"),
        ("spec.scaleTargetRef.name", None, "scaleTargetRef", "missing"),
        (
            "spec.scaleTargetRef.kind",
            "LeaderWorkerSet",
            "apiVersion",
            "means apps/v1; allowed: leaderworkerset.x-k8s.io/v1",
        ),
        (
            "spec.scaleTargetRef.apiVersion",
            "batch/v1",
            "apiVersion",
            "has no Deployment, found 'batch/v1'; allowed: apps/v1",
        ),
        (
            "spec.scaleTargetRef",
            {"apiVersion": "ray.io/v1", "kind": "RayService", "name": "x"},
            "scaleTargetRef.kind",
            "no scale subresource, found 'RayService'; allowed: a RayClusterFleet",
        ),
        (
            "spec.scaleTargetRef",
            {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rolout", "name": "x"},
            "scaleTargetRef.kind",
            "did you mean Rollout?",
        ),
        ("spec.minReplicaCount", 17, "spec.minReplicaCount", "above maxReplicaCount"),
        ("spec.maxReplicaCount", "many", "spec.maxReplicaCount", "not a whole number"),
        ("spec.maxReplicaCount", 0, "spec.maxReplicaCount", "too small"),
        ("spec.maxReplicaCount", 100_001, "spec.maxReplicaCount", "too large"),
        ("spec.maxReplicas", 16, "spec.maxReplicas", "did you mean maxReplicaCount?"),
        ("spec.advanced.horizontalPodAutoscalerConfig.behaviour", {}, "Config.behaviour", "did you mean behavior?"),
        (f"{BEHAVIOR}.scaledown", {}, "behavior.scaledown", "did you mean scaleDown?"),
        (f"{BEHAVIOR}.scaleUp.stabilisationWindowSeconds", 0, "stabilisationWindowSeconds", "unknown key"),
        ("spec.pollingInterval", "15s", "spec.pollingInterval", "not a whole number, found '15s'"),
        ("spec.pollingInterval", -1, "spec.pollingInterval", "from 1 to"),
        ("spec.cooldownPeriod", "30", "spec.cooldownPeriod", "in quotes"),
        ("spec.initialCooldownPeriod", True, "spec.initialCooldownPeriod", "not a whole number"),
        ("spec.idleReplicaCount", "none", "spec.idleReplicaCount", "not a whole number"),
        ("spec.fallback", {"failureThreshold": 3}, "spec.fallback.replicas", "missing"),
        ("spec.fallback", {"replicas": 3}, "spec.fallback.failureThreshold", "missing"),
        ("spec.fallback", {"failureThreshold": 3, "replicas": "0"}, "spec.fallback.replicas", "in quotes"),
        (f"{BEHAVIOR}.scaleUp.stabilizationWindowSeconds", "0", "stabilizationWindowSeconds", "in quotes, found '0'"),
        (f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds", -5, "stabilizationWindowSeconds", "found '-5'"),
        (f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds", 3601, "stabilizationWindowSeconds", "too large"),
        (f"{BEHAVIOR}.scaleUp.policies.0.value", "1000", "scaleUp.policies[0].value", "in quotes, found '1000'"),
        (f"{BEHAVIOR}.scaleUp.policies.0.value", 0, "scaleUp.policies[0].value", "too small"),
        (f"{BEHAVIOR}.scaleUp.policies.0.value", None, "scaleUp.policies[0].value", "missing"),
        (f"{BEHAVIOR}.scaleUp.policies.0.periodSeconds", 1801, "policies[0].periodSeconds", "too large"),
        (
            f"{BEHAVIOR}.scaleUp.policies.0.type",
            "Pod",
            "policies[0].type",
            "mean Pods? unknown, found 'Pod'; allowed: Percent, Pods",
        ),
        (f"{BEHAVIOR}.scaleUp.policies.0.type", None, "policies[0].type", "missing"),
        (f"{BEHAVIOR}.scaleUp.policies", {"type": "Pods"}, "scaleUp.policies", "not a list"),
        (f"{BEHAVIOR}.scaleDown.selectPolicy", "max", "scaleDown.selectPolicy", "did you mean Max?"),
        (f"{BEHAVIOR}.scaleUp.tolerance", "none", "scaleUp.tolerance", "not a quantity"),
        (f"{BEHAVIOR}.scaleDown.tolerance", 11, "scaleDown.tolerance", "too large"),
    ],
)
def test_error_is_found_at_its_place(place: str, value: object, key: str, words: str):
    found = [finding for finding in findings(changed((place, value))) if finding.severity is Severity.ERROR]
    (finding,) = found
    assert key in finding.key and words in str(finding) and finding.line > 0 and finding.allowed


@pytest.mark.parametrize(
    ("place", "value", "key", "words"),
    [
        ("spec.triggers.0.type", "external", "type", "waits for the next poll"),
        ("spec.triggers.0.useCachedMetrics", True, "useCachedMetrics", "last poll"),
        (f"{METADATA}.scalerAddress", "vllm-autoscaler-keda", "scalerAddress", "KEDA would dial 443, found 'vllm"),
        (f"{METADATA}.scalerAddress", "dns:///vllm-autoscaler-keda:grpc", "scalerAddress", "no port number"),
        ("spec.advanced.scalingModifiers", {"formula": "a"}, "scalingModifiers", "formula"),
        ("spec.fallback", {"failureThreshold": 3, "replicas": 0}, "fallback.replicas", "scales the workload to zero"),
        (f"{BEHAVIOR}.scaleUp.stabilizationWindowSeconds", 60, "scaleUp.stabilizationWindowSeconds", "waits"),
        (f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds", None, "stabilizationWindowSeconds", "which means 300"),
        (f"{BEHAVIOR}.scaleUp.policies", None, "scaleUp.policies", "4 pods or 100%"),
        (f"{BEHAVIOR}.scaleUp.policies.0.value", 2, "scaleUp.policies", "smaller steps than the daemon decides"),
        (f"{BEHAVIOR}.scaleDown.policies.0.value", 2, "scaleDown.policies", "smaller steps than the daemon decides"),
        (f"{BEHAVIOR}.scaleDown.policies.0.value", 2, "scaleDown.policies", "found 'Pods 2'; better"),
        ("spec.notInThisVersionOfKeda", 1, "spec.notInThisVersionOfKeda", "unknown key"),
        (f"{BEHAVIOR}.scaleDown.selectPolicy", "Disabled", "selectPolicy", "never moves this way"),
    ],
)
def test_warning_is_found_at_its_place(place: str, value: object, key: str, words: str):
    (finding,) = findings(changed((place, value)))
    assert finding.severity is Severity.WARNING
    assert key in finding.key and words in str(finding) and finding.line > 0 and finding.allowed


@pytest.mark.parametrize(
    ("most", "policy", "words"),
    [
        (8, {}, None),  # the daemon knows it and decides at most 8
        (None, {"max": "100"}, None),
        (None, {"max": "101"}, "absent, which means 100: below replicas.max of the policy, which is 101"),
        (101, {"max": "102"}, None),
    ],
)
def test_maximum_warns_only_when_it_is_not_meant(most: int | None, policy: dict[str, str], words: str | None):
    overrides = [(f"{METADATA}.replicas\\.{bound}", count) for bound, count in policy.items()]
    found = findings(changed(("spec.maxReplicaCount", most), *overrides))
    assert [finding.problem for finding in found] == ([words] if words else [])
    assert all((finding.severity, finding.key) == (Severity.WARNING, "spec.maxReplicaCount") for finding in found)


@pytest.mark.parametrize("address", ["dns:///vllm-autoscaler-keda:6000", "10.0.0.7:6000", "[fd00::7]:6000"])
def test_every_grpc_address_is_valid(address: str):
    assert findings(changed((f"{METADATA}.scalerAddress", address))) == []


def test_target_is_a_deployment_when_kind_is_empty():
    assert findings(changed(("spec.scaleTargetRef.kind", ""), ("spec.scaleTargetRef.apiVersion", ""))) == []


def test_warning_names_the_steps_the_tolerance_hides():
    absent = ((f"{BEHAVIOR}.scaleUp.tolerance", None), (f"{BEHAVIOR}.scaleDown.tolerance", None))
    (up,) = findings(changed(*absent))  # 16 at most; down, a value just above desired - 1 lands until 19 -> 18
    assert up.key.endswith("scaleUp.tolerance") and up.severity is Severity.WARNING
    first = "the first 10 -> 11, 11 -> 12, 12 -> 13"
    assert up.problem == f"absent, which means 0.1: swallows 6 steps up to maxReplicaCount, {first}"
    _, down = findings(changed(*absent, ("spec.maxReplicaCount", 20)))
    assert down.key.endswith("scaleDown.tolerance")
    assert down.problem == "absent, which means 0.1: swallows 1 step up to maxReplicaCount, the first 20 -> 19"


def test_no_warning_when_the_tolerance_hides_no_step():
    assert findings(changed((f"{BEHAVIOR}.scaleUp.tolerance", "50m"))) == []
    (finding,) = findings(changed((f"{BEHAVIOR}.scaleUp.tolerance", "0.5")))
    assert finding.problem.startswith("swallows ") and finding.value == "'0.5'"


def test_largest_policy_of_a_direction_counts():
    policies = [
        {"type": "Pods", "value": 1000, "periodSeconds": 15},
        {"type": "Percent", "value": 10, "periodSeconds": 15},
    ]
    assert findings(changed((f"{BEHAVIOR}.scaleUp.policies", policies))) == []
    text = changed((f"{BEHAVIOR}.scaleUp.policies", policies), (f"{BEHAVIOR}.scaleUp.selectPolicy", "Min"))
    assert [finding.key.rpartition(".")[2] for finding in findings(text)] == ["policies"]
    everything = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    assert findings(changed((f"{BEHAVIOR}.scaleDown.policies", everything))) == []


def test_warning_when_the_minimum_forbids_zero():
    (finding,) = findings(changed(MAY_ZERO, (f"{METADATA}.policy", "batch"), ("spec.minReplicaCount", 1)))
    assert "keeps the workload above zero" in finding.problem


def test_warning_when_bounds_and_policy_do_not_overlap():
    low = changed((f"{METADATA}.replicas\\.min", "3"), ("spec.maxReplicaCount", 2))
    (finding,) = findings(low)
    assert (finding.severity, finding.key) == (Severity.WARNING, "spec.maxReplicaCount")
    assert finding.problem == "below replicas.min of the policy, which is 3, so the count stays at 2"
    assert finding.allowed == "at least 3"
    high = changed((f"{METADATA}.replicas\\.max", "1"), ("spec.minReplicaCount", 2))
    (finding,) = findings(high)
    assert (finding.severity, finding.key) == (Severity.WARNING, "spec.minReplicaCount")
    assert finding.problem == "above replicas.max of the policy, which is 1, so the count stays at 2"
    assert finding.allowed == "at most 1"


def test_invalid_bounds_are_not_compared_with_the_policy():
    (finding,) = findings(changed(("spec.minReplicaCount", 20)))
    assert (finding.problem, finding.severity) == ("above maxReplicaCount", Severity.ERROR)


def test_error_when_the_idle_count_is_not_below_minimum():
    (finding,) = findings(changed(("spec.idleReplicaCount", 1)))
    assert (finding.key, finding.value, finding.allowed) == ("spec.idleReplicaCount", "'1'", "at most 0")
    assert findings(changed(MAY_ZERO, ("spec.idleReplicaCount", 0), ("spec.minReplicaCount", 2))) == []
    found = findings(changed(MAY_ZERO, ("spec.idleReplicaCount", 0), ("spec.minReplicaCount", None)))
    assert [finding.allowed for finding in found] == ["a minReplicaCount above it"]


def test_no_warning_when_the_idle_count_is_zero():
    """KEDA scales from any count to idleReplicaCount at once: from 2 to 0 with a minReplicaCount of 2."""
    floor = (MAY_ZERO, (f"{METADATA}.policy", "batch"), ("spec.minReplicaCount", 2), ("spec.maxReplicaCount", 64))
    assert [finding.key for finding in findings(changed(*floor))] == ["spec.minReplicaCount"]
    assert findings(changed(*floor, ("spec.idleReplicaCount", 0))) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("paused", "true", "changes no count"),
        ("paused", "perhaps", "changes no count"),  # what is no boolean is true to KEDA
        ("paused-replicas", "0", "keeps this count"),
        ("paused-scale-in", "true", "remove no replica"),
        ("paused-scale-out", "true", "not even the first"),
        ("force-activation", "1", "at least one replica"),
    ],
)
def test_warning_when_an_annotation_limits_the_count(name: str, value: str, words: str):
    text = changed(("metadata.annotations", {f"autoscaling.keda.sh/{name}": value, "other": "x"}))
    (finding,) = findings(text)
    assert (finding.severity, finding.key) == (Severity.WARNING, f"metadata.annotations.autoscaling.keda.sh/{name}")
    assert words in finding.problem and finding.allowed == "absent"


@pytest.mark.parametrize("name", ["paused", "paused-scale-in", "paused-scale-out", "force-activation"])
def test_no_warning_when_an_annotation_is_false(name: str):
    assert findings(changed(("metadata.annotations", {f"autoscaling.keda.sh/{name}": "false"}))) == []


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        ({"replicas": 4}, "needs more than these: the policy allows 16"),
        ({"replicas": 4, "behavior": "static"}, "without a fallback KEDA keeps the count"),
        ({"replicas": 16}, ""),
        ({"replicas": 4, "behavior": "currentReplicasIfHigher"}, ""),
        ({"replicas": 4, "behavior": "currentReplicas"}, ""),
    ],
)
def test_warning_when_a_static_fallback_is_low(fallback: dict, words: str):
    found = findings(changed(("spec.fallback", {"failureThreshold": 3, **fallback})))
    assert [finding.key for finding in found] == ["spec.fallback.replicas"] * bool(words)
    assert all(words in finding.problem and "currentReplicasIfHigher" in finding.allowed for finding in found)


def test_warning_offers_prewarm_for_a_cron_trigger():
    ours = yaml.safe_load(EXAMPLE.read_text())["spec"]["triggers"][0]
    (cron,) = findings(changed(("spec.triggers", [ours, {"type": "cron", "metadata": {"desiredReplicas": "4"}}])))
    assert "could be reached" in cron.problem and "`prewarm`" in cron.allowed
    (other,) = findings(changed(("spec.triggers", [ours, {"type": "cpu"}])))
    assert "`prewarm`" not in other.allowed


def test_all_errors_of_a_trigger_are_found():
    wrong = {"policy": "interactiv", "polciy": "x", "objective\\.ttft": "fast", "objective\\.itl": "slow"}
    found = findings(changed(*((f"{METADATA}.{key}", value) for key, value in wrong.items())))
    assert {finding.key.partition("metadata.")[2] for finding in found} == {key.replace("\\", "") for key in wrong}


def test_second_trigger_is_an_error_only_if_it_is_ours():
    ours = yaml.safe_load(EXAMPLE.read_text())["spec"]["triggers"][0]
    (finding,) = findings(changed(("spec.triggers", [ours, ours])))
    assert finding.severity is Severity.ERROR and "second trigger" in finding.problem
    (finding,) = findings(changed(("spec.triggers", [{"type": "cpu"}, ours])))
    assert finding.severity is Severity.WARNING and "uses the larger" in finding.problem


def test_trigger_is_ours_by_its_address():
    (finding,) = findings(changed((f"{METADATA}.policy", None)))
    assert finding.severity is Severity.ERROR and "missing" in finding.problem


@pytest.mark.parametrize("key", ["polcy", "Policy", "objective.ttft"])
def test_trigger_is_ours_by_a_key_with_a_typo(key: str):
    metadata = {"scalerAddress": "scaler:6000", key: "1s"}
    found = findings(changed(("spec.triggers.0.metadata", metadata)))
    assert "missing" in next(finding.problem for finding in found if finding.key.endswith("metadata.policy"))


def test_no_findings_for_triggers_of_other_scalers():
    somebody_elses = {"scalerAddress": "scaler:6000", "policyName": "x", "threshold": "5"}
    assert findings(changed(("spec.triggers.0.metadata", somebody_elses))) == []
    for triggers in ([{"type": "prometheus", "metadata": {"query": "x"}}], [], "none", None):
        assert findings(yaml.safe_dump({"kind": "ScaledObject", "spec": {"triggers": triggers}})) == []


def test_secret_is_never_shown():
    text = changed(
        (f"{METADATA}.tlsClientKey", "hunter2" * 20_000), (f"{METADATA}.password", "hunter2"), (f"{METADATA}.pin", 1234)
    )
    found = findings(text)
    assert len(found) >= 3
    assert not any("hunter2" in str(finding) or "1234" in str(finding) for finding in found)


scalars = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=True) | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
)
PLACES = [
    "spec",
    "spec.triggers",
    "spec.scaleTargetRef",
    "spec.scaleTargetRef.kind",
    "spec.triggers.0",
    "spec.triggers.0.type",
    METADATA,
    "spec.advanced",
    BEHAVIOR,
    f"{BEHAVIOR}.scaleUp",
    f"{BEHAVIOR}.scaleUp.tolerance",
    f"{BEHAVIOR}.scaleDown.policies",
    f"{BEHAVIOR}.scaleDown.policies.0.value",
    "spec.fallback",
    "spec.idleReplicaCount",
    "spec.minReplicaCount",
    "spec.maxReplicaCount",
    f"{BEHAVIOR}.scaleUp.policies.0",
    f"{BEHAVIOR}.scaleUp.stabilizationWindowSeconds",
    f"{BEHAVIOR}.scaleDown.selectPolicy",
]


@pytest.mark.slow
@given(st.sampled_from(PLACES), anything)
def test_no_exception_for_any_value_at_any_place(place: str, value: object):
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"].setdefault("fallback", None)
    inside = document
    *way, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in way:
        inside = inside[part]
    inside[last] = value
    for finding in check_scaled_object(Document("so.yaml", 1, document), BOOK):
        assert finding.problem


def test_custom_kind_that_is_not_known_is_a_warning():
    target = {"apiVersion": "example.com/v1", "kind": "Model", "name": "x"}
    (finding,) = findings(changed(("spec.scaleTargetRef", target)))
    assert (finding.severity, finding.key) == (Severity.WARNING, "spec.scaleTargetRef.kind")
    assert finding.problem == "not a known kind, so it is scaled only if the daemon's --target-kind names it"
    assert finding.allowed.startswith("--target-kind=<plural>.example.com")


def test_claims_above_the_limits_of_the_namespace_are_errors(tmp_path: Path):
    (tmp_path / "limits.yaml").write_text(
        "apiVersion: vllm-autoscaler.io/v1\nkind: NamespaceLimits\nmetadata: {name: tenants}\n"
        "spec: {namespaces: [{name: team-a, maxPriority: 400, maxMinReplicas: 2}]}\n"
    )
    book = load([tmp_path])
    text = changed(
        ("metadata.namespace", "team-a"),
        ("spec.minReplicaCount", 3),
        (f"{METADATA}.policy", "interactive"),
        (f"{METADATA}.replicas\\.min", "5"),
    )
    documents, _ = read_documents("so.yaml", text)
    errors = [found for found in check_scaled_object(documents[0], book) if found.severity is Severity.ERROR]
    assert {(finding.key, finding.value, finding.allowed) for finding in errors} == {
        ("spec.triggers[0].metadata.policy", "500 of the policy interactive", "at most 400"),
        ("spec.triggers[0].metadata.replicas.min", "5", "at most 2"),
        ("spec.minReplicaCount", "3", "at most 2"),
    }
