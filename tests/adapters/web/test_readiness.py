"""Problems by the name of their object, and of the loop."""

from dataclasses import replace

from autoscaler.adapters.web.readiness import LATE_TICKS, Readiness, by_name
from autoscaler.core.model.fleet import WorkloadRef
from tests.adapters.web.conftest import HandClock
from tests.adapters.web.records import World


def test_problems_of_same_named_objects_keep_their_kind():
    problems = {
        WorkloadRef("ns", "llama"): "a",
        WorkloadRef("ns", "llama", "Rollout", "argoproj.io/v1alpha1"): "b",
        WorkloadRef("ns", "mistral"): "c",
    }
    told = {"ns/llama (Deployment)": "a", "ns/llama (Rollout)": "b", "ns/mistral": "c"}
    assert by_name(problems, 10) == told
    assert by_name(problems, 1) == {"ns/llama (Deployment)": "a"}


def test_a_loop_is_late_after_some_late_ticks_in_a_row():
    readiness = Readiness(HandClock(), 40.0)
    late = replace(World(1).tick(), late=True, duration_s=12.34)
    for _ in range(LATE_TICKS - 1):
        readiness.record(late)
    assert readiness.check().detail["loop_problem"] == ""
    readiness.record(late)
    assert readiness.check().detail["loop_problem"] == (
        f"the last {LATE_TICKS} ticks took longer than the period, the last one 12.3 s: decisions follow demand late"
    )
    readiness.record(replace(late, late=False))
    assert readiness.check().detail["loop_problem"] == ""
