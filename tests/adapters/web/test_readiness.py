"""Problems by the name of their object."""

from autoscaler.adapters.web.readiness import by_name
from autoscaler.core.model.fleet import WorkloadRef


def test_objects_of_several_kinds_under_one_name_keep_their_problems():
    problems = {
        WorkloadRef("ns", "llama"): "a",
        WorkloadRef("ns", "llama", "Rollout", "argoproj.io/v1alpha1"): "b",
        WorkloadRef("ns", "mistral"): "c",
    }
    told = {"ns/llama (Deployment)": "a", "ns/llama (Rollout)": "b", "ns/mistral": "c"}
    assert by_name(problems, 10) == told
    assert by_name(problems, 1) == {"ns/llama (Deployment)": "a"}
