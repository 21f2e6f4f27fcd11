"""The file of quotas: what is read, what is refused and how it is said, and reloading."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.app.check import check
from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import DEFAULT_POLICY
from autoscaler.config.policy.reload import POLL_S, Reload
from autoscaler.config.quotas import MAX_QUOTAS, QuotaFiles, load_quotas
from tests.config.policy.test_reload import HandClock

GPU = "nvidia.com/gpu"
HEAD = {"apiVersion": "vllm-autoscaler.io/v1", "kind": "Quotas"}


def quota(name: str = "research", **fields: Any) -> dict[str, Any]:
    return {"name": name, "namespaces": ["team-a"], "resources": [{"name": GPU, "nominal": 8}]} | fields


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quotas.yaml"


def write(path: Path, *quotas: Any, **fields: Any) -> Path:
    path.write_text(yaml.safe_dump({**HEAD, "quotas": list(quotas), **fields}, sort_keys=False))
    return path


def test_file_of_the_how_to_is_valid(path: Path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "share-gpus.md").read_text()
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Quotas" in block]
    path.write_text(text)
    assert [each.name for each in load_quotas(path)] == ["production", "research"]


def refusal(path: Path) -> str:
    with pytest.raises(PolicyError) as refused:
        load_quotas(path)
    return str(refused.value)


def test_quotas_are_read_in_their_order(path: Path):
    lent = [{"name": GPU, "nominal": 4, "borrowingLimit": 0, "lendingLimit": 2}]
    prod, research = load_quotas(write(path, quota("prod"), quota(cohort="all", resources=lent)))
    assert (prod.name, prod.cohort, prod.resources[0].borrowing_limit) == ("prod", None, None)
    (gpus,) = research.resources
    assert (research.cohort, gpus.nominal, gpus.borrowing_limit, gpus.lending_limit) == ("all", 4, 0, 2)
    assert load_quotas(write(path)) == ()


@pytest.mark.parametrize(
    ("namespaces", "label", "namespace", "labels", "matches"),
    [
        (["team-a"], None, "team-a", {}, True),
        (["team-a"], None, "team-ab", {}, False),
        (["team-*"], None, "team-ab", {}, True),
        (["*-prod", "x"], None, "a-prod", {}, True),
        (["*"], None, "anything", {}, True),
        (["a*c*e"], None, "abcde", {}, True),
        (["a*c*e"], None, "abcd", {}, False),
        (["*"], "team=a", "x", {"team": "a"}, True),
        (["*"], "team=a", "x", {"team": "b"}, False),
        (["*"], "example.com/team=", "x", {"example.com/team": ""}, True),
        (["*"], "team=a", "x", {}, False),
    ],
)
def test_namespace_and_label_decide_which_workloads_match(
    path: Path, namespaces: list[str], label: str | None, namespace: str, labels: dict[str, str], matches: bool
):
    stated = quota(namespaces=namespaces) | ({"label": label} if label else {})
    (read,) = load_quotas(write(path, stated))
    assert read.matches(namespace, labels) is matches


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nominal": 8}, "quotas[0].nominal: unknown key, found '8'; allowed: cohort, label, name"),
        ({"namespaces": []}, "quotas[0].namespaces: 0 namespaces; allowed: a list of 1 to 256"),
        ({"namespaces": "team-a"}, "quotas[0].namespaces: not a list, found 'team-a'"),
        ({"namespaces": ["Team A"]}, "quotas[0].namespaces: 'Team A' is no namespace"),
        ({"namespaces": ["*" * 65]}, "is no namespace"),
        ({"label": "team"}, "quotas[0].label: not a label, found 'team'; allowed: a label as KEY=VALUE"),
        ({"name": "R&D"}, "quotas[0].name: not a name, found 'R&D'"),
        ({"cohort": ""}, "quotas[0].cohort: not a name"),
        ({"resources": []}, "quotas[0].resources: empty; allowed: at least one resource"),
        ({"resources": [{"name": "gpu", "nominal": 1}]}, "resources[0].name: not the name of an extended resource"),
        ({"resources": [{"name": GPU}]}, "quotas[0].resources[0].nominal: missing; allowed: a whole number from 0"),
        ({"resources": [{"name": GPU, "nominal": -1}]}, "nominal: negative, found '-1'"),
        ({"resources": [{"name": GPU, "nominal": 1.5}]}, "nominal: not a whole number, found '1.5'"),
        ({"resources": [{"name": GPU, "nominal": 10**9}]}, "nominal: too large, found '1000000000'"),
        ({"resources": [{"name": GPU, "nominal": "8"}]}, "nominal: text, for it is in quotes"),
        ({"resources": [{"name": GPU, "nominal": 1}] * 2}, "resources: a resource is given twice"),
        (
            {"resources": [{"name": GPU, "nominal": 8, "lendingLimit": 4}]},
            "quotas[0].resources: a borrowing or lending limit without a cohort",
        ),
        ({"resources": [{"name": GPU, "nominal": 1}] * 65}, "resources: too many; allowed: 64 at most"),
    ],
)
def test_bad_quota_is_refused_with_its_place(path: Path, fields: dict[str, Any], said: str):
    problem = refusal(write(path, quota(**fields)))
    assert said in problem
    assert problem.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "contains 0 documents; allowed: one document of kind Quotas"),
        ("- 1\n", "document: not quotas"),
        ("a: {", "error"),
        ("kind: Quotas\nkind: Quotas\n", "given twice"),
        ("{apiVersion: vllm-autoscaler.io/v2, kind: Quotas, quotas: []}", "apiVersion: unknown"),
        ("{apiVersion: vllm-autoscaler.io/v1, kind: Quotas}", "quotas: missing"),
        ("{apiVersion: vllm-autoscaler.io/v1, kind: Quotas, quotas: 7}", "quotas: of the wrong type"),
    ],
)
def test_bad_document_is_refused(path: Path, text: str, said: str):
    path.write_text(text)
    assert said in refusal(path)


def test_two_quotas_of_one_name_are_refused(path: Path):
    assert "quotas: two quotas are named research; allowed: each name once" in refusal(write(path, quota(), quota()))


def test_too_many_quotas_are_refused(path: Path):
    assert f"{MAX_QUOTAS} at most" in refusal(write(path, *(quota(f"q{number}") for number in range(MAX_QUOTAS + 1))))


def test_missing_file_is_named(path: Path):
    assert "cannot be read" in refusal(path)


def test_changed_file_is_loaded_and_a_broken_one_is_not(path: Path):
    clock = HandClock()
    files = QuotaFiles(write(path, quota()), clock)

    def poll() -> Reload:
        clock.time_s += POLL_S
        return files.poll()

    assert poll() is Reload.UNCHANGED
    write(path, quota("prod"), quota())
    assert (poll(), [each.name for each in files.content]) == (Reload.LOADED, ["prod", "research"])
    write(path, quota("prod", label="x"))
    assert (poll(), [each.name for each in files.content]) == (Reload.BROKEN, ["prod", "research"])
    assert "not a label" in files.problem
    write(path, quota("prod"))
    assert (poll(), files.problem, len(files.content)) == (Reload.LOADED, "", 1)


@pytest.mark.parametrize(("nominal", "code", "said"), [(8, 0, "checked Quotas (1)"), (-8, 1, "negative, found '-8'")])
def test_check_validates_the_file(path: Path, capsys: pytest.CaptureFixture[str], nominal: int, code: int, said: str):
    write(path, quota(resources=[{"name": GPU, "nominal": nominal}]))
    assert check([path], [], DEFAULT_POLICY) == code
    assert said in capsys.readouterr().out
