"""Falling counters, on a server that scrapes every 15 s."""

import numpy as np

from autoscaler.core.model.samples import Samples
from tests.adapters.prometheus.query_server import FLEET, HandClock, Server, healthy, report
from tests.adapters.prometheus.responses import NOW_UNIX_S, pod, vector
from tests.harness.objectives import objectives


async def read_twice(start_s: tuple[float | None, float | None], **fallen: float) -> tuple[Samples, Samples]:
    """Sample twice, 15 s apart; in the second one every pod has the given counters."""
    server, clock = Server(), HandClock()
    readings = []
    async with server.source(clock) as source:
        for step, rules in enumerate(({"generation_tokens": 1000.0}, fallen)):
            clock.time_s += 15.0 * step
            time_s = NOW_UNIX_S + 15.0 * step
            started = vector() if start_s[step] is None else start_s[step]
            server.rules = {
                "engine/pod": vector(({"metric": "engine/pod"}, 1), time_s=time_s),
                "process_start_time_seconds": started,
                **healthy(**rules),
                r"^max by .*timestamp\(vllm": time_s - 3,
            }
            readings.append(await source.sample(FLEET, objectives(FLEET), 60))
    return readings[0], readings[1]


async def test_falling_counters_are_unknown_without_a_restart():
    before, after = await read_twice((1.7e9, 1.7e9), generation_tokens=0.0)
    assert before.pods.generation_tokens.tolist() == [1000] * 3
    assert np.isnan(after.pods.generation_tokens).all()
    assert np.isnan(after.pods.running).all()  # the gauges of that answer are no better
    assert report(before).problems == ()
    (line,) = report(after).problems
    assert line == (
        "counters: pod llm/a-0 and 2 more: counters fell although the process did not start again "
        "(process_start_time_seconds stands still), or rose faster than any engine counts; "
        "gauges, and what was counted then, are unknown"
    )


async def test_counters_start_at_zero_after_a_possible_restart():
    for starts in ((1.7e9, 1.7e9 + 60), (None, None)):
        _, after = await read_twice(starts, generation_tokens=40.0)
        assert after.pods.generation_tokens.tolist() == [40] * 3
        assert report(after).problems == ()


async def test_a_counter_of_one_pod_that_falls_leaves_others_known():
    others = [(pod("a-0"), 0), (pod("a-1"), 1010), (pod("b-0"), 1020)]
    _, after = await read_twice((1.7e9, 1.7e9), generation_tokens=vector(*others))  # type: ignore[arg-type]
    assert np.isnan(after.pods.generation_tokens).tolist() == [True, False, False]
