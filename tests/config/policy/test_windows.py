"""Windows that a workload states in its annotation: the same grammar as in policies, from tenants."""

import numpy as np
import pytest

from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.windows import MAX_CHARS, WindowsKind, read_windows
from tests.config.policy.test_compile import BOOK, with_policies, workload
from tests.config.policy.test_namespace_limits import in_namespace, limited
from tests.config.policy.test_schedule import BERLIN, unix

OFFICE = """
- name: office
  from: "0 9 * * mon-fri"
  until: "0 18 * * mon-fri"
  timezone: Europe/Berlin
  replicas: 4
  except: [2026-12-24/2027-01-01, 05-01]
- {from: "0 9 * * *", until: "0 13 * * *", timezone: Europe/Berlin, replicas: 2, only: [12-24]}
"""


def test_windows_are_read_as_those_of_a_policy():
    office, eve = read_windows(OFFICE)
    assert (office.name, office.replicas, office.lead) == ("office", 4, None)
    assert [str(each) for each in office.never.ranges] == ["2026-12-24/2027-01-01", "05-01"]
    assert [str(each) for each in eve.only.ranges] == ["12-24"]
    (written_as_json,) = read_windows('[{"from": "0 9 * * *", "until": "0 18 * * *", "replicas": 1}]')
    assert written_as_json.timezone == "UTC"


def test_windows_of_a_workload_replace_those_of_its_policy():
    entry = {"from": "0 8 * * *", "until": "0 20 * * *", "timezone": BERLIN, "replicas": 9}
    book = with_policies(office={"prewarm": [entry]})
    asked = (workload("office"), workload("office", ("prewarm", OFFICE)), workload("office", ("prewarm", "[]")))
    compiled = compile_specs(asked, book)
    columns = compiled.windows.at(unix("2026-01-15 10:00"), 0.0)
    np.testing.assert_array_equal(columns.replicas[:, 0], [9, 4, np.nan])
    assert [columns.names[name] if name >= 0 else None for name in columns.name[:, 0]] == ["", "office", None]
    assert compiled.problems == {}


def test_overlapping_windows_keep_turns_of_their_own():
    text = OFFICE.replace('"0 9 * * *"', '"0 10 * * *"').replace("[12-24]", "[01-15]")
    columns = compile_specs((workload("", ("prewarm", text)),), BOOK).windows.at(unix("2026-01-15 11:00"), 0.0)
    assert columns.replicas[0, [0, 2]].tolist() == [4, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a list"),
        ("office", "not a list"),
        ("{}", "not a list"),
        ("[]\n---\n[]", "not a list"),
        ("[" * 10_000, "characters"),
        ("[" * 100 + "]" * 100, "nested too deeply"),
        ("- &a [*a, *a]", "nested too deeply"),
        ("- {from: 0 9 * * *, until: 0 18 * * *}", "[0].replicas: missing"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 2, to: 3}", "[0].to: unknown key"),
        ("- {from: 9, until: 0 18 * * *, replicas: 2}", "[0].from: not a cron expression"),
        ("- {from: 0 9 * * *, until: 0 9 * * *, replicas: 2}", "[0].until: the same as from"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 20000}", "[0].replicas: too large"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 2, timezone: ../../etc/passwd}", "[0].timezone: unknown"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 2, except: [soon]}", "[0].except: an item that is no date"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 2}\n" * 17, "17 windows"),
        ("- {from: 0 9 * * *, until: 0 18 * * *, replicas: 2, name: Office Hours}", "[0].name: not a name"),
        ("- !!python/object:os.system {}", "not supported"),
        ("\x00", "not valid YAML"),
    ],
)
def test_bad_windows_are_refused(text: str, problem: str):
    with pytest.raises(ValueError) as error:
        WindowsKind().read(text)
    assert problem in str(error.value)
    assert len(str(error.value)) < 2000


def test_the_longest_annotation_is_bounded():
    with pytest.raises(ValueError, match="characters"):
        WindowsKind().read("#" * (MAX_CHARS + 1))


def test_windows_of_a_workload_are_capped_by_its_namespace(tmp_path):
    compiled = compile_specs((in_namespace("team-a", "", ("prewarm", OFFICE)),), limited(tmp_path))
    columns = compiled.windows.at(unix("2026-01-15 10:00"), 0.0)
    assert columns.replicas[0, 0] == 3
    assert "prewarm: too high for the namespace 'team-a', so 3 counts, found 4" in compiled.problems[0]


def test_windows_of_the_policy_are_not_capped(tmp_path):
    entry = "{from: 0 8 * * *, until: 0 20 * * *, timezone: Europe/Berlin, replicas: 9}"
    file = tmp_path / "office.yaml"
    file.write_text(
        "apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: office}\n"
        f"spec: {{prewarm: [{entry}]}}\n---\napiVersion: vllm-autoscaler.io/v1\nkind: NamespaceLimits\n"
        "metadata: {name: tenants}\nspec: {namespaces: [{name: team-a, maxMinReplicas: 3}]}\n"
    )
    compiled = compile_specs((in_namespace("team-a", "office"),), limited(tmp_path, file.read_text()))
    assert compiled.windows.at(unix("2026-01-15 10:00"), 0.0).replicas[0, 0] == 9
    assert compiled.problems == {}
