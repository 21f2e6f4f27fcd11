"""How high priority, weight and floor of the workloads of a namespace may be."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.compile import Compiled, compile_specs
from autoscaler.config.policy.namespace_limits import NamespaceLimits
from autoscaler.config.policy.parse import PolicyBook, load
from autoscaler.core.model.fleet import Workload, WorkloadRef

SHIPPED = load()
LIMITS = """\
apiVersion: vllm-autoscaler.io/v1
kind: NamespaceLimits
metadata: {name: tenants}
spec:
  namespaces:
    - {name: prod-canary, maxPriority: 50}
    - {name: prod-*, maxPriority: 2000}
    - {name: team-a, maxPriority: 400, maxMinReplicas: 3, maxWeight: 2}
"""


def limited(tmp_path: Path, text: str = LIMITS) -> PolicyBook:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    return load([file])


def in_namespace(namespace: str, policy: str = "", *overrides: tuple[str, str]) -> Workload:
    return Workload(WorkloadRef(namespace, "w"), policy=policy, overrides=overrides)


def row(compiled: Compiled) -> tuple[float, float, float]:
    """Return priority, weight and floor of the first workload."""
    spec = compiled.spec
    return float(spec.priority[0]), float(spec.weight[0]), float(spec.min_replicas[0])


def test_without_limits_every_value_counts_as_stated():
    asked = in_namespace("team-b", "realtime", ("priority", "5000"), ("weight", "9"), ("replicas.min", "9"))
    compiled = compile_specs((asked,), SHIPPED)
    assert (row(compiled), compiled.problems) == ((5000, 9, 9), {})


def test_shipped_policies_stay_when_a_file_has_limits_alone(tmp_path: Path):
    book = limited(tmp_path)
    assert book.policies == SHIPPED.policies and book.default == SHIPPED.default


def test_a_namespace_may_state_values_up_to_its_limits(tmp_path: Path):
    asked = in_namespace("team-a", "batch", ("priority", "400"), ("weight", "2"), ("replicas.min", "3"))
    compiled = compile_specs((asked,), limited(tmp_path))
    assert (row(compiled), compiled.problems) == ((400, 2, 3), {})


def test_weights_are_pinned_only_where_the_priority_has_no_limit(tmp_path: Path):
    limits = limited(tmp_path, LIMITS + "    - {name: infra, maxWeight: 2}\n").limits
    assert limits is not None
    assert [limits.may_pin_weights(name) for name in ("infra", "team-a", "prod-x", "other")] == [True] + 3 * [False]


def test_only_values_above_the_limits_are_capped(tmp_path: Path):
    asked = in_namespace(
        "team-a", "batch", ("priority", "401"), ("replicas.max", "12"), ("replicas.min", "4"), ("weight", "2.5")
    )
    compiled = compile_specs((asked,), limited(tmp_path))
    assert row(compiled) == (400, 2, 3)
    assert (compiled.names, float(compiled.spec.max_replicas[0])) == (("batch",), 12)
    assert compiled.problems == {
        0: "priority: too high for the namespace 'team-a', so 400 counts, found 401; allowed: at most 400; "
        "weight: too high for the namespace 'team-a', so 2 counts, found 2.5; allowed: at most 2; "
        "replicas.min: too high for the namespace 'team-a', so 3 counts, found 4; allowed: at most 3"
    }


def test_policy_that_a_workload_chooses_is_capped_as_overrides(tmp_path: Path):
    compiled = compile_specs((in_namespace("team-a", "realtime"),), limited(tmp_path))
    assert row(compiled) == (400, 1, 1)
    assert compiled.problems == {
        0: "priority: too high for the namespace 'team-a', so 400 counts, found 1000 of the policy realtime; "
        "allowed: at most 400"
    }
    assert compiled.spec.ttft_objective_s[0] == SHIPPED.policies["realtime"].spec.objective.ttft


def test_first_matching_entry_counts_and_limits_what_it_states(tmp_path: Path):
    book = limited(tmp_path)
    high = ("priority", "3000"), ("replicas.min", "9")
    assert row(compile_specs((in_namespace("prod-canary", "realtime", *high),), book)) == (50, 1, 9)
    assert row(compile_specs((in_namespace("prod-eu", "realtime", *high),), book)) == (2000, 1, 9)


@pytest.mark.parametrize(
    ("policy", "overrides", "priority"),
    [
        ("batch", (("priority", "300"),), 100),  # not above its policy, although below the default one
        ("", (("priority", "501"),), 500),
        ("", (("priority", "20"),), 20),
        ("realtime", (), 500),  # the choice of a policy raises nothing above the default one
        ("realtime", (("priority", "2000"),), 500),
    ],
)
def test_a_namespace_without_an_entry_cannot_raise_its_priority(
    tmp_path: Path, policy: str, overrides: tuple[tuple[str, str], ...], priority: float
):
    compiled = compile_specs((in_namespace("team-b", policy, *overrides),), limited(tmp_path))
    assert row(compiled) == (priority, 1, 1)
    assert bool(compiled.problems) == (overrides != (("priority", "20"),))


@pytest.mark.parametrize(
    ("entry", "found", "told"),
    [("{name: team-a}", 0.5, ""), ("{name: team-a, maxHeadroomShare: 10%}", 0.1, "so 0.1 counts, found 0.5")]
    + [(entry, np.nan, "so 0 counts") for entry in ("{name: team-a, maxHeadroomShare: 0}", "{name: team-b}")],
)
def test_guaranteed_headroom_is_limited_by_namespace(tmp_path: Path, entry: str, found: float, told: str):
    """A namespace without an entry shares its headroom, as the default policy does."""
    asked = in_namespace("team-a", "", ("headroom", "guaranteed"), ("headroomShare", "50%"))
    compiled = compile_specs((asked,), limited(tmp_path, LIMITS.partition("    - ")[0] + f"    - {entry}\n"))
    assert compiled.spec.headroom_share[0] == pytest.approx(found, nan_ok=True)
    assert (told in compiled.problems[0]) if told else not compiled.problems


def test_namespace_without_an_entry_raises_no_weight_or_floor(tmp_path: Path):
    asked = in_namespace("team-b", "", ("weight", "100"), ("replicas.min", "8"))
    assert row(compile_specs((asked,), limited(tmp_path))) == (500, 1, 1)


def test_scaled_object_raises_no_floor_past_the_limit(tmp_path: Path):
    asked = in_namespace("team-a", "batch")._replace(bounds=(8.0, 20.0))
    compiled = compile_specs((asked,), limited(tmp_path))
    assert (row(compiled), float(compiled.spec.max_replicas[0])) == ((100, 1, 3), 8)
    assert compiled.problems == {
        0: "minReplicaCount: too high for the namespace 'team-a', so 3 counts, found 8; allowed: at most 3"
    }
    unlimited = compile_specs((asked._replace(bounds=(3.0, inf)),), limited(tmp_path))
    assert (row(unlimited), unlimited.problems) == ((100, 1, 3), {})


def test_workloads_of_other_namespaces_keep_what_they_state(tmp_path: Path):
    workloads = tuple(in_namespace(name, "batch", ("priority", "1500")) for name in ("team-a", "prod-eu", "team-b"))
    compiled = compile_specs(workloads, limited(tmp_path))
    assert (compiled.spec.priority.tolist(), sorted(compiled.problems)) == ([400, 1500, 100], [0, 2])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{maxPriority: 1}", "spec.namespaces[0].name: missing; allowed: "),
        ("{name: Team, maxPriority: 1}", "spec.namespaces[0].name: not a name, found 'Team'; allowed: "),
        ("{name: a, maxPrioritie: 1}", ".maxPrioritie: did you mean maxPriority? unknown key, found"),
        ("{name: a, maxPriority: high}", "spec.namespaces[0].maxPriority: not a whole number, found 'high'"),
        ("{name: a, maxMinReplicas: 0}", "spec.namespaces[0].maxMinReplicas: too small, found '0'; allowed: "),
        ("{name: a, maxWeight: 0}", "spec.namespaces[0].maxWeight: too small, found '0'; allowed: "),
    ],
)
def test_an_invalid_entry_is_refused_with_what_is_allowed(tmp_path: Path, entry: str, told: str):
    with pytest.raises(PolicyError) as refused:
        limited(tmp_path, LIMITS.partition("    - ")[0] + f"    - {entry}\n")
    assert told in str(refused.value)


def test_too_many_entries_are_refused(tmp_path: Path):
    entries = "".join(f"    - {{name: n{number}}}\n" for number in range(1001))
    with pytest.raises(PolicyError, match=r"spec\.namespaces: too many; allowed: 1000 at most"):
        limited(tmp_path, LIMITS.partition("    - ")[0] + entries)


def test_two_documents_of_limits_are_refused(tmp_path: Path):
    with pytest.raises(PolicyError, match=r"another document of this kind; the first is in .*limits\.yaml:1"):
        limited(tmp_path, f"{LIMITS}---\n{LIMITS}")


def test_limits_match_no_more_than_their_pattern():
    limits = NamespaceLimits.model_validate(
        {
            "apiVersion": "vllm-autoscaler.io/v1",
            "kind": "NamespaceLimits",
            "metadata": {"name": "tenants"},
            "spec": {"namespaces": [{"name": "a-*-b"}, {"name": "*"}]},
        }
    )
    book = replace(SHIPPED, limits=limits)
    assert row(compile_specs((in_namespace("a-x-b", "", ("priority", "9000")),), book))[0] == 9000


NUMBERS = st.integers(1, 2000)
OVERRIDDEN = st.dictionaries(st.sampled_from(["priority", "weight", "replicas.min"]), NUMBERS.map(str))


@given(
    st.sampled_from(["", *SHIPPED.policies]),
    OVERRIDDEN,
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(["maxPriority", "maxWeight", "maxMinReplicas"]), NUMBERS),
    st.booleans(),
)
def test_nothing_that_a_workload_states_exceeds_its_limits(
    policy: str, overridden: dict[str, str], least: int, entry: dict[str, int], named: bool
):
    document = {
        "apiVersion": "vllm-autoscaler.io/v1",
        "kind": "NamespaceLimits",
        "metadata": {"name": "tenants"},
        "spec": {"namespaces": [{"name": "team-a" if named else "team-b", **entry}]},
    }
    stated = {"replicas.max": "3000", **overridden}
    asked = in_namespace("team-a", policy, *sorted(stated.items()))._replace(bounds=(float(least), inf))
    free, limited = (
        compile_specs((asked,), replace(SHIPPED, limits=limits))
        for limits in (None, NamespaceLimits.model_validate(document))
    )
    default, chosen = SHIPPED.policies[SHIPPED.default].spec, SHIPPED.policies[policy or SHIPPED.default].spec
    most = (
        (entry.get("maxPriority", inf), entry.get("maxWeight", inf), entry.get("maxMinReplicas", inf))
        if named
        else (
            min(default.priority, chosen.priority),
            min(default.weight, chosen.weight),
            max(min(default.replicas.min, chosen.replicas.min), 1),
        )
    )
    assert row(limited) == tuple(map(min, row(free), most))
    shares = [float(np.nan_to_num(each.spec.headroom_share[0])) for each in (free, limited)]
    assert shares[1] == (shares[0] if named else min(shares[0], default.guaranteed_share))
    assert bool(limited.problems) == ((row(limited), shares[1]) != (row(free), shares[0]))
    others = [name for name in vars(free.spec) if name not in ("priority", "weight", "min_replicas", "headroom_share")]
    for name in others:
        assert getattr(free.spec, name).tolist() == pytest.approx(getattr(limited.spec, name).tolist(), nan_ok=True)
