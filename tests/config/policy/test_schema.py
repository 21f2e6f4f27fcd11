"""The policy document as a type: complete, documented, and the same when written and read again."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import OVERRIDES, Leaf, Policy, PolicySpec, leaves, to_document
from autoscaler.config.values import Duration
from autoscaler.core.model.spec import Spec

PATHS = [leaf.path for leaf in leaves()]


@pytest.mark.parametrize("leaf", list(leaves()), ids=PATHS)
def test_every_field_states_meaning_and_allowed_values(leaf: Leaf):
    assert leaf.info.description
    assert leaf.info.description.endswith(".")
    assert leaf.kind.allowed


@pytest.mark.parametrize("leaf", list(OVERRIDES.values()), ids=list(OVERRIDES))
def test_every_default_is_a_value_that_could_have_been_written(leaf: Leaf):
    default = leaf.info.default
    if default is not None:
        assert leaf.kind.read(leaf.kind.show(default)) == default


def test_an_empty_spec_is_a_complete_policy():
    row = Spec(*np.array(spec_row(PolicySpec())))
    assert row.min_replicas == 1
    assert row.max_replicas == 16
    assert row.attainment == 0.99
    assert np.isnan(row.ttft_objective_s)
    assert np.isnan(row.idle_after_s)
    assert np.isnan(row.concurrency)
    assert row.up_step_replicas == 4


@pytest.mark.parametrize("name", list(load().policies))
def test_a_policy_written_back_reads_as_the_same_policy(name: str):
    policy = load().policies[name]
    assert Policy.model_validate(to_document(policy)) == policy


@given(
    ttft_us=st.integers(1_000, 3_600_000_000),
    attainment=st.floats(0.01, 1.0),
    step=st.one_of(st.integers(1, 10_000), st.decimals("1", "10000", places=4).map(lambda share: f"{share}%")),
    bounds=st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)).map(sorted),
    lead_us=st.one_of(st.none(), st.integers(0, 86_400_000_000)),
)
def test_any_policy_written_back_reads_as_the_same_policy(
    ttft_us: int, attainment: float, step: int | str, bounds: list[int], lead_us: int | None
):
    show = Duration(auto=True).show
    spec = PolicySpec.model_validate(
        {
            "objective": {"ttft": show(ttft_us / 1e6), "attainment": attainment},
            "scaleUp": {"maxStep": step},
            "replicas": {"min": bounds[0], "max": max(1, bounds[1])},
            "prewarm": [
                {"from": "0 8 * * *", "until": "0 9 * * *", "replicas": 1, "lead": show(lead_us and lead_us / 1e6)}
            ],
        }
    )
    assert spec.objective.ttft is not None
    assert math.isclose(spec.objective.ttft, ttft_us / 1e6)
    assert PolicySpec.model_validate(to_document(spec)) == spec


def test_a_policy_once_read_does_not_change():
    policy = load().policies["realtime"]
    with pytest.raises(ValidationError):
        policy.spec.replicas.max = 99  # type: ignore[misc]
