"""The reference page matches the code."""

from pathlib import Path

import yaml

from autoscaler.config.policy.schema import Policy, leaves
from tools.policy_reference import HEAD, TARGET, render


def test_the_committed_reference_is_current():
    assert Path(TARGET).read_text() == render(), "run: python -m tools.policy_reference"


def test_the_reference_names_every_field():
    page = render()
    missing = [leaf.path for leaf in leaves() if f"| `{leaf.path}` |" not in page]
    assert not missing


def test_the_example_of_the_reference_is_a_valid_policy():
    example = HEAD.partition("```yaml\n")[2].partition("```")[0]
    assert Policy.model_validate(yaml.safe_load(example)).name == "chat"
