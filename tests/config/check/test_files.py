"""Validation of policies and manifests before anything is applied."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.check.files import Checked, check
from autoscaler.config.findings import PolicyError, Severity
from autoscaler.config.policy.parse import MAX_FILES, PolicyBook, load, shipped
from autoscaler.config.yaml import MAX_BYTES, Document

BOOK = load()
POLICY = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: mine}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat
  annotations:
    vllm-autoscaler.io/policy: mine
"""


def checked(folder: Path, **files: str) -> Checked:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return check([folder], BOOK)


def lines(result: Checked) -> list[str]:
    return [f"{Path(finding.file).name}:{finding.line}:{finding.key}: {finding.problem}" for finding in result.findings]


def test_the_shipped_policies_have_nothing_to_find():
    result = check([shipped()], BOOK)
    assert (result.findings, dict(result.documents), dict(result.skipped)) == ((), {"Policy": 4}, {})
    assert not result.failed


def test_errors_of_all_files_are_sorted_by_place(tmp_path: Path):
    result = checked(
        tmp_path,
        b=POLICY + "spec: {tolerance: 5}\n",
        a=POLICY.replace("mine", "other") + "spec:\n  priority: high\n  weigth: 1\n",
        c="a: [\n",
    )
    assert lines(result) == [
        "a.yaml:5:spec.priority: not a whole number",
        "a.yaml:6:spec.weigth: did you mean weight? unknown key",
        "b.yaml:4:spec.tolerance: too large",
        "c.yaml:2:: not valid YAML: did not find expected node content",
    ]
    assert result.failed


def test_workloads_may_name_policies_of_the_same_check(tmp_path: Path):
    alone = checked(tmp_path, deployment=DEPLOYMENT)
    assert lines(alone) == ["deployment.yaml:6:metadata.annotations.vllm-autoscaler.io/policy: no such policy"]
    assert "batch, development, interactive, realtime" in alone.findings[0].allowed
    assert not checked(tmp_path, policy=POLICY).findings


def test_two_policies_of_one_name_conflict_unless_equal(tmp_path: Path):
    for folder in ("base", "overlay"):
        (tmp_path / folder).mkdir()
    assert not checked(tmp_path / "base", a=POLICY).findings
    (tmp_path / "overlay" / "a.yaml").write_text(f"# a copy\n{POLICY}")
    assert not check([tmp_path], BOOK).findings
    result = checked(tmp_path / "base", b=POLICY + "spec: {priority: 7}\n")
    assert lines(result) == [
        f"b.yaml:3:metadata.name: another policy has this name; the first is in {tmp_path}/base/a.yaml:1"
    ]


def test_copies_that_the_daemon_would_read_together_are_an_error(tmp_path: Path):
    twice = "another policy has this name; the first is in {}/a.yaml:1"
    assert lines(checked(tmp_path, a=f"{POLICY}---\n{POLICY}")) == [f"a.yaml:7:metadata.name: {twice.format(tmp_path)}"]
    (tmp_path / "a.yaml").write_text(POLICY)
    assert not check([tmp_path, tmp_path / "a.yaml"], BOOK).findings, "the same file is no copy"
    assert lines(checked(tmp_path, a=POLICY, b=POLICY)) == [f"b.yaml:3:metadata.name: {twice.format(tmp_path)}"]


def test_policy_files_are_limited_as_in_the_daemon(tmp_path: Path):
    padding = f"#{'x' * MAX_BYTES}\n"
    result = checked(tmp_path, a=f"{POLICY}---\nkind: Service\n{padding}", b=f"kind: Service\n{padding}")
    assert lines(result) == [f"a.yaml:0:: a policy in a file of more than {MAX_BYTES} bytes"]


def test_policy_folders_are_limited_as_in_the_daemon(tmp_path: Path):
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.yaml").write_text(POLICY.replace("mine", f"mine-{number}"))
    result = check([tmp_path], BOOK)
    assert [(finding.file, finding.problem) for finding in result.findings] == [
        (str(tmp_path), f"{MAX_FILES + 1} policy files in this folder")
    ]
    (tmp_path / "0.yaml").write_text("kind: Service\n")
    assert not check([tmp_path], BOOK).findings


@pytest.mark.parametrize("text", ["", "# nothing\n", "- 1\n- 2\n", "just words\n", "apiVersion: v1\n"])
def test_a_path_without_any_document_of_a_kind_is_an_error(tmp_path: Path, text: str):
    (tmp_path / "a.yaml").write_text(text)
    for path in (tmp_path, tmp_path / "a.yaml"):
        (finding,) = check([path], BOOK).findings
        assert (finding.file, finding.problem) == (str(path), "nothing to check")
    (tmp_path / "b.yaml").write_text("kind: Service\n")
    assert not check([tmp_path], BOOK).findings, "among other manifests it is one that nobody here knows"


def test_the_default_policy_may_be_one_that_is_checked(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(POLICY)
    assert not check([tmp_path], replace(BOOK, default="mine")).findings
    broken = checked(tmp_path, b=POLICY.replace("mine", "ours") + "spec: {weight: x}\n").findings
    assert check([tmp_path], replace(BOOK, default="ours")).findings == broken
    (tmp_path / "b.yaml").unlink()
    with pytest.raises(PolicyError, match=r"--default-policy: did you mean mine\? no such policy, found 'mime'"):
        check([tmp_path], replace(BOOK, default="mime"))


@pytest.mark.parametrize(
    ("spec", "key", "problem"),
    [
        ("replicas: {min: 0}", "spec.replicas.min", "counts as 1: only scaleToZero leads to zero"),
        ("scaleToZero: {idleAfter: 5m}", "spec.scaleToZero.idleAfter", "no effect while"),
        (
            'replicas: {max: 2}, prewarm: [{from: "0 8 * * *", until: "0 9 * * *", replicas: 3}]',
            "spec.prewarm[0].replicas",
            "limited by replicas.max",
        ),
    ],
)
def test_a_valid_but_unlikely_value_is_a_warning(tmp_path: Path, spec: str, key: str, problem: str):
    result = checked(tmp_path, a=f"{POLICY}spec: {{{spec}}}\n")
    (finding,) = result.findings
    assert (finding.line, finding.key, finding.severity) == (4, key, Severity.WARNING)
    assert problem in finding.problem
    assert not result.failed, "a warning alone is no failure"


def test_unknown_kinds_are_skipped_and_counted(tmp_path: Path):
    result = checked(
        tmp_path,
        a="kind: Service\n---\nkind: Service\n---\nkind: Secret\nstringData: {token: s3cr3t}\n---\n- 1\n",
        b="kind: Policy\napiVersion: kyverno.io/v1\nmetadata: {name: X}\n",
    )
    assert not result.findings
    assert dict(result.skipped) == {"Service": 2, "Secret": 1, "unknown": 1, "Policy of 'kyverno.io/v1'": 1}


def test_a_kubectl_list_is_checked_item_by_item(tmp_path: Path):
    workload = """- kind: Deployment
  metadata:
    name: chat
    annotations:
      vllm-autoscaler.io/policy: batch
      vllm-autoscaler.io/paused: {paused}
"""
    items = workload.format(paused='"true"') + workload.format(paused="maybe") + "- kind: Service\n- 7\n"
    result = checked(tmp_path, a=f"apiVersion: v1\nkind: List\nitems:\n{items}")
    assert lines(result) == ["a.yaml:15:metadata.annotations.vllm-autoscaler.io/paused: unknown"]
    assert result.findings[0].value == "'maybe'"
    assert dict(result.documents) == {"Deployment": 2}
    assert dict(result.skipped) == {"Service": 1, "unknown": 1}
    assert dict(checked(tmp_path, a="kind: List\nitems: []\n").skipped) == {"List": 1}


def config_map(name: str = "vllm-autoscaler-policies", **files: str) -> str:
    """A ConfigMap as kustomize renders it from policy files."""
    data = {key.replace("_", "."): text for key, text in files.items()}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def test_policies_in_a_config_map_count_as_policies(tmp_path: Path):
    result = checked(tmp_path, a=f"{config_map(mine_yaml=POLICY)}---\n{DEPLOYMENT}---\nkind: ConfigMap\n")
    assert not result.findings
    assert dict(result.documents) == {"Policy": 1, "Deployment": 1}
    assert dict(result.skipped) == {"ConfigMap": 1}


def test_problems_in_a_config_map_name_key_and_line(tmp_path: Path):
    wrong = POLICY + "spec:\n  weigth: 1\n"
    for name in ("vllm-autoscaler-policies", "prod-policies-f7t5"):
        result = checked(tmp_path, a=config_map(name, mine_yaml=wrong))
        assert [str(finding).partition(" error")[0] for finding in result.findings] == [
            f"{tmp_path}/a.yaml:{name}/mine.yaml:5:"
        ]
        broken = checked(tmp_path, a=config_map(name, mine_yml=POLICY + "spec: [\n"))
        assert "not valid YAML" in broken.findings[0].problem
    result = checked(tmp_path, a=config_map(mine_yaml=POLICY.replace("Policy", "Polcy")))
    assert lines(result) == ["mine.yaml:2:kind: did you mean Policy? unknown kind"]


def test_duplicate_policies_in_a_config_map_are_an_error(tmp_path: Path):
    result = checked(tmp_path, a=config_map(b_yaml=POLICY, c_yaml=f"# again\n{POLICY}"))
    assert [finding.key for finding in result.findings] == ["metadata.name"]
    assert not checked(tmp_path, a=config_map(b_yaml=POLICY), b=POLICY).findings


def test_config_maps_of_others_are_not_read(tmp_path: Path):
    others = config_map("chart", values_yaml="a: {{ .Values.a }}", notes_txt=POLICY, _hidden_yaml=POLICY)
    result = checked(tmp_path, a=others, b="kind: ConfigMap\ndata: [a]\n---\nkind: ConfigMap\ndata: {a.yaml: 5}\n")
    assert not result.findings
    assert dict(result.skipped) == {"ConfigMap": 3}


def test_a_config_map_is_limited_as_in_the_daemon(tmp_path: Path):
    padding = f"#{'x' * MAX_BYTES}\n"
    (finding,) = checked(tmp_path, a=config_map(mine_yaml=POLICY + padding)).findings
    assert finding.file.endswith("a.yaml:vllm-autoscaler-policies/mine.yaml")
    assert finding.problem == f"more than {MAX_BYTES} bytes"
    many = {f"p{number}_yaml": POLICY.replace("mine", f"mine-{number}") for number in range(MAX_FILES + 1)}
    assert lines(checked(tmp_path, a=config_map(**many))) == [
        f"a.yaml:vllm-autoscaler-policies:0:: {MAX_FILES + 1} policy files in this folder"
    ]


def test_repeated_texts_of_config_maps_are_bounded(tmp_path: Path):
    text = "kind: ConfigMap\nmetadata: {name: others}\ndata:\n  a.yaml: &a |\n    # " + 600 * "x"
    text += "".join(f"\n  {name}.yaml: *a" for name in "bcdef")
    (tmp_path / "a.yaml").write_text(text)
    (finding,) = check([tmp_path], BOOK, most_bytes=3000).findings
    assert finding.problem == "more than 3000 bytes of YAML in ConfigMaps"


@pytest.mark.parametrize(
    ("kind", "spec", "severity"),
    [
        ("ReplicaSet", "template: {}", Severity.ERROR),
        ("deployment", "", Severity.ERROR),
        ("ModelSet", "predictor: {}", Severity.WARNING),
    ],
)
def test_annotations_on_unscaled_kinds_are_reported(tmp_path: Path, kind: str, spec: str, severity: Severity):
    text = DEPLOYMENT.replace("Deployment", kind).replace("mine", "batch") + f"spec: {{{spec}}}\n"
    (finding,) = checked(tmp_path, a=text).findings
    assert (finding.line, finding.key, finding.value, finding.severity) == (2, "kind", f"'{kind}'", severity)
    assert "not scaled" in finding.problem
    assert finding.allowed.startswith("Deployment, DisaggregatedSetRoleScaler, Dynamo")


def of_kind(kind: str, api_version: str) -> str:
    """Return an annotated manifest of another kind, without a spec."""
    return DEPLOYMENT.replace("Deployment", kind).replace("apps/v1", api_version).replace("mine", "batch")


@pytest.mark.parametrize(
    ("api_version", "kind", "severity", "allowed"),
    [
        ("ray.io/v1", "RayService", Severity.ERROR, "a RayClusterFleet of AIBrix"),
        (
            "disaggregatedset.x-k8s.io/v1",
            "DisaggregatedSet",
            Severity.ERROR,
            "the DisaggregatedSetRoleScaler of each role",
        ),
        ("serving.kserve.io/v1alpha1", "LLMInferenceService", Severity.WARNING, "the Deployment or LeaderWorkerSet"),
        ("inference.example.com/v1", "InferenceService", Severity.WARNING, "--target-kind=<plural>.inference.example"),
        ("apps.kruise.io/v1alpha1", "CloneSet", Severity.WARNING, "--target-kind=<plural>.apps.kruise.io, or one of"),
        ("networking.k8s.io/v1", "Ingress", Severity.WARNING, "Deployment, Disaggregated"),
    ],
)
def test_kind_without_scale_names_what_to_scale(
    tmp_path: Path, api_version: str, kind: str, severity: Severity, allowed: str
):
    (finding,) = checked(tmp_path, a=f"{of_kind(kind, api_version)}spec: {{}}\n").findings
    assert (finding.key, finding.severity) == ("kind", severity)
    assert finding.allowed.startswith(allowed)


def test_count_of_a_custom_kind_is_checked_where_the_kind_has_it(tmp_path: Path):
    text = of_kind("VLLMRuntime", "production-stack.vllm.ai/v1alpha1")
    result = checked(tmp_path, a=f"{text}spec: {{deploymentConfig: {{replicas: 2}}, replicas: 3}}\n")
    assert [finding.key for finding in result.findings] == ["spec.deploymentConfig.replicas"]


def test_object_that_its_replicas_do_not_scale_is_an_error(tmp_path: Path):
    text = of_kind("NodeSet", "slinky.slurm.net/v1beta1")
    (finding,) = checked(tmp_path, a=f"{text}spec: {{scalingMode: DaemonSet}}\n").findings
    assert (finding.problem, finding.allowed) == (
        "cannot be scaled: spec.scalingMode is DaemonSet, which ignores spec.replicas",
        "StatefulSet",
    )


def test_annotations_that_an_owner_handed_on_are_no_error(tmp_path: Path):
    owned = DEPLOYMENT.replace("Deployment", "ReplicaSet") + "  ownerReferences: [{kind: Deployment, name: chat}]\n"
    assert not checked(tmp_path, a=f"{owned}spec: {{template: {{}}}}\n").findings


def test_a_policy_of_another_version_names_the_known_one(tmp_path: Path):
    result = checked(tmp_path, a=POLICY.replace("io/v1", "io/v9"))
    assert lines(result) == ["a.yaml:1:apiVersion: unknown"]
    assert result.findings[0].allowed == "vllm-autoscaler.io/v1"


@pytest.mark.parametrize(
    ("found", "meant", "place"),
    [
        ("kind: Policy", "kind: Polcy", "a.yaml:2:kind: did you mean Policy? unknown kind"),
        ("vllm-autoscaler.io/", "vllm-autoscaller.io/", "a.yaml:1:apiVersion: unknown version"),
    ],
)
def test_a_misspelt_policy_is_an_error(tmp_path: Path, found: str, meant: str, place: str):
    result = checked(tmp_path, a=POLICY.replace(found, meant))
    assert lines(result) == [place]
    assert result.failed


def test_an_extra_checker_gets_the_place_and_the_policies(tmp_path: Path):
    def scaled_object(document: Document, book: PolicyBook):
        assert isinstance(document.value, dict)
        if document.value["policy"] not in book.policies:
            yield document.finding(("policy",), "no such policy", "one that exists")

    (tmp_path / "a.yaml").write_text(
        f"kind: ScaledObject\npolicy: mine\n---\nkind: ScaledObject\npolicy: nope\n---\n{POLICY}"
    )
    result = check([tmp_path], BOOK, {"ScaledObject": scaled_object})
    assert lines(result) == ["a.yaml:5:policy: no such policy"]
    assert dict(result.documents) == {"ScaledObject": 2, "Policy": 1}


def test_folders_are_checked_recursively_without_hidden_files(tmp_path: Path):
    for folder in ("base", "overlays/prod", ".git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "p.yaml").write_text(POLICY.replace("mine", Path(folder).name.strip(".")))
    assert dict(check([tmp_path], BOOK).documents) == {"Policy": 2}


@pytest.mark.parametrize(("path", "problem"), [("missing.yaml", "No such file"), ("empty", "0 YAML files")])
def test_a_path_with_nothing_to_check_is_an_error(tmp_path: Path, path: str, problem: str):
    (tmp_path / "empty").mkdir()
    result = check([tmp_path / path], BOOK)
    assert result.failed
    assert problem in result.findings[0].problem


def test_a_link_that_leads_out_of_its_folder_is_refused(tmp_path: Path):
    (tmp_path / "secret.yaml").write_text(POLICY)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.yaml").symlink_to(tmp_path / "secret.yaml")
    assert lines(check([tmp_path / "inside"], BOOK)) == ["a.yaml:0:: a link out of its folder"]


def test_a_key_with_a_line_break_is_reported_in_one_line(tmp_path: Path):
    result = checked(tmp_path, a=POLICY.replace("{name: mine}", '{"na\\nme": mine, name: mine}'))
    assert lines(result) == ["a.yaml:3:metadata.na\\nme: did you mean name? unknown key"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mangled") / "m.yaml"


@given(
    text=st.sampled_from([POLICY, DEPLOYMENT, f"{DEPLOYMENT}spec:\n  replicas: 2\n---\n{POLICY}"]),
    place=st.floats(0, 1),
    length=st.integers(0, 30),
    inserted=st.text(alphabet="abc:-{}[]&*!%0123 \n'\"/.", max_size=12),
)
def test_any_mangled_manifest_is_checked_without_another_error(
    scratch: Path, text: str, place: float, length: int, inserted: str
):
    at = int(place * len(text))
    scratch.write_text(text[:at] + inserted + text[at + length :])
    for finding in check([scratch], BOOK).findings:
        assert finding.file == str(scratch)
        assert finding.line >= 1 or finding.problem == "nothing to check"
        assert "\n" not in str(finding)


LIMITS = """\
apiVersion: vllm-autoscaler.io/v1
kind: NamespaceLimits
metadata: {name: tenants}
spec:
  namespaces:
    - {name: team-a, maxPriority: 400, maxMinReplicas: 2}
"""


def claiming(namespace: str, **annotations: str) -> str:
    lines = (f"    vllm-autoscaler.io/{name.replace('__', '.')}: '{value}'" for name, value in annotations.items())
    return "\n".join(
        ["apiVersion: apps/v1", "kind: Deployment", "metadata:", "  name: chat", namespace, "  annotations:", *lines]
    )


def test_claims_above_the_limits_of_the_namespace_are_errors(tmp_path: Path):
    chat = claiming("  namespace: team-a", policy="realtime", override__replicas__min="5")
    result = checked(tmp_path, limits=LIMITS, chat=chat)
    assert dict(result.documents) == {"NamespaceLimits": 1, "Deployment": 1}
    assert [str(finding).partition("chat.yaml:")[2] for finding in result.findings] == [
        "7: error: metadata.annotations.vllm-autoscaler.io/policy: too high for the namespace 'team-a', so 400 counts, "
        "found 1000 of the policy realtime; allowed: at most 400",
        "8: error: metadata.annotations.vllm-autoscaler.io/override.replicas.min: too high for the namespace 'team-a', "
        "so 2 counts, found 5; allowed: at most 2",
    ]


def test_limits_of_the_daemon_hold_for_manifests_checked_alone(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "limits.yaml").write_text(LIMITS)
    (tmp_path / "chat.yaml").write_text(claiming("  namespace: team-b", policy="", override__priority="501"))
    (finding,) = check([tmp_path / "chat.yaml"], load([tmp_path / "policies"])).findings
    assert (finding.problem, finding.allowed) == ("too high for the namespace 'team-b', so 500 counts", "at most 500")


def test_manifest_without_a_namespace_is_not_limited(tmp_path: Path):
    assert not checked(tmp_path, limits=LIMITS, chat=claiming("  uid: a", policy="realtime")).findings


def test_invalid_and_repeated_limits_are_reported(tmp_path: Path):
    result = checked(tmp_path, a=LIMITS.replace("400", "high"), b=LIMITS, c=LIMITS.replace("400", "500"))
    assert lines(result) == [
        "a.yaml:6:spec.namespaces[0].maxPriority: not a whole number",
        f"c.yaml:2:kind: another document of this kind; the first is in {tmp_path}/b.yaml:1",
    ]


def test_limits_of_another_product_are_not_ours(tmp_path: Path):
    result = checked(tmp_path, a="apiVersion: example.com/v1\nkind: NamespaceLimits\nspec: 5\n")
    assert not result.findings and not result.documents
