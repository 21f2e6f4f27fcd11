"""Series of models that their pods do not serve."""

from dataclasses import replace

import numpy as np

from autoscaler.adapters.prometheus.instant.foreign_models import PERIOD_S
from autoscaler.core.model.fleet import Fleet, ServedNames
from tests.adapters.prometheus.query_server import FLEET, HandClock, Server, healthy, report
from tests.adapters.prometheus.responses import pod, vector
from tests.harness.objectives import objectives

MODELS = "^count by .*model_name"


def serving(*names: str, model: str = "") -> Fleet:
    """The fleet, whose pods all serve these names, and whose workloads declare a model."""
    pods = tuple(each._replace(served=ServedNames(names)) for each in FLEET.pods)
    return replace(FLEET, pods=pods, workloads=tuple(each._replace(model=model) for each in FLEET.workloads))


def reported(**models: str) -> str:
    return vector(*(({**pod(name.replace("_", "-")), "model_name": model}, 1) for name, model in models.items()))


async def test_series_of_another_model_are_dropped_and_reported():
    server = Server(**{MODELS: reported(a_0="a", a_1="b", b_0="a"), **healthy()})
    samples = await server.sample(serving("a"))
    assert np.isnan(samples.pods.running).tolist() == [False, True, False]
    assert np.isnan(samples.pods.time_s).tolist() == [False, True, False]
    assert report(samples).problems == (
        "models: pod llm/a-1: series of the model 'b' are left out: the pod's command line serves 'a'",
    )


async def test_the_pods_own_label_counts_when_the_target_has_it_too():
    """A scrape job gives its targets a label model_name; Prometheus moves the engine's."""
    hidden = vector(*(({**pod(name), "model_name": "nice", "exported_model_name": "a"}, 1) for name in ("a-0", "a-1")))
    samples = await Server(**{MODELS: hidden, **healthy()}).sample(serving("a"))
    assert samples.pods.running.tolist() == [4] * 3
    assert report(samples).problems == ()


async def test_all_series_count_when_no_served_name_is_known():
    for fleet in (serving(), serving("a", model="b"), FLEET):
        server = Server(**{MODELS: reported(a_0="b", a_1="b", b_0="b"), **healthy()})
        samples = await server.sample(fleet)
        assert samples.pods.running.tolist() == [4] * 3
        assert report(samples).problems == ()
    assert not any(form["query"].startswith("count by (exported") for form in server.queried)


async def test_all_series_count_when_the_query_for_models_fails():
    server = Server(**{MODELS: '{"status":"error","errorType":"timeout","error":"late"}', **healthy()})
    samples = await server.sample(serving("a"))
    assert samples.pods.running.tolist() == [4] * 3
    assert report(samples).failed == 1


async def test_models_are_queried_periodically_and_for_new_pods():
    server, clock = Server(**{MODELS: reported(a_0="b"), **healthy()}), HandClock()

    def queried() -> int:
        return sum("model_name)" in form["query"].partition("(vllm")[0] for form in server.queried)

    fleet = serving("a")
    async with server.source(clock) as source:
        counts = []
        for step_s, pods in ((0, 3), (5, 3), (5, 2), (PERIOD_S, 2), (5, 3)):
            clock.time_s += step_s
            some = fleet if pods == 3 else replace(fleet, pods=fleet.pods[:2], pod_id=fleet.pod_id[:2])
            if pods == 2:
                columns = (
                    "workload",
                    "ready",
                    "terminating",
                    "pending",
                    "created_s",
                    "scheduled_s",
                    "started_s",
                    "ready_s",
                )
                some = replace(some, **{f"pod_{name}": getattr(fleet, f"pod_{name}")[:2] for name in columns})
            samples = await source.sample(some, objectives(some), 60)
            assert np.isnan(samples.pods.running).tolist() == [True, False, False][:pods]
            assert any(line.startswith("models") for line in report(samples).problems)
            counts.append(queried())
    assert counts == [1, 1, 1, 2, 3]
