"""Problems by the name of their object."""

from autoscaler.adapters.web.readiness import by_name
from autoscaler.core.model.fleet import WorkloadRef


def test_problems_of_same_named_objects_keep_their_kind():
    problems = {
        WorkloadRef("ns", "llama"): "a",
        WorkloadRef("ns", "llama", "Rollout", "argoproj.io/v1alpha1"): "b",
        WorkloadRef("ns", "mistral"): "c",
    }
    told = {"ns/llama (Deployment)": "a", "ns/llama (Rollout)": "b", "ns/mistral": "c"}
    assert by_name(problems, 10) == told
    assert by_name(problems, 1) == {"ns/llama (Deployment)": "a"}
