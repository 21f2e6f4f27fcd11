"""Samples from arbitrary answers of a server, over HTTP on loopback."""

import asyncio
import re
from dataclasses import fields

import numpy as np
import pytest
from aiohttp import web

from autoscaler.adapters.prometheus.instant.gateways import MAX_WAKE_UP_QUERIES, WakeUpQuery
from autoscaler.adapters.prometheus.instant.source import (
    MAX_SLOW_AGE_S,
    SLOW_PERIOD_S,
    PrometheusSource,
)
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples, Samples
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.promql.test_queries import without_texts
from tests.adapters.prometheus.query_server import FLEET, STARTED_S, HandClock, Server, healthy, report
from tests.adapters.prometheus.responses import NOW_UNIX_S, html, pod, vector
from tests.harness.exposition import Answer
from tests.harness.loop_time import pass_time
from tests.harness.objectives import objectives
from tests.harness.process import PATIENCE_S, eventually, free_port

pytestmark = pytest.mark.slow

NAN = np.nan
TRITON = fleet_of({"llm/a": ["a-0", "a-1"], "llm/b": ["b-0"]}, engine="triton")
SLOTS = 'request_type="max"'  # occurs in the query for what the engine sets at its start


def known(samples: Samples) -> set[str]:
    """The columns in which any pod has a reading."""
    return {field.name for field in fields(PodSamples) if not np.isnan(getattr(samples.pods, field.name)).all()}


async def test_readings_have_scrape_times_on_the_tick_clock():
    samples = await Server(**healthy()).sample()
    assert samples.pods.running.tolist() == [4, 4, 4]
    assert samples.pods.generation_tokens.tolist() == [1000] * 3
    assert samples.pods.time_s == pytest.approx([STARTED_S - 3] * 3, abs=0.01)
    assert known(samples) == {"time_s", "running", "waiting", "generation_tokens"}
    assert report(samples).failed == 0
    assert report(samples).problems == ()


async def test_the_number_of_queries_is_independent_of_workloads():
    counts = []
    for workloads in (1, 1000):
        server = Server(**healthy())
        samples = await server.sample(fleet_of({f"llm/w{number}": [f"w{number}-0"] for number in range(workloads)}))
        counts.append(len(server.queried))
        assert report(samples).queries == len(server.queried)
    assert counts[0] == counts[1] < 30


async def test_each_engine_and_each_policy_query_adds_queries():
    async def queried(fleet: Fleet, *queries: WakeUpQuery) -> int:
        server = Server()
        async with server.source(queries=lambda: queries) as source:
            await source.sample(fleet, objectives(fleet), 60)
        return len(server.queried)

    one = await queried(fleet_of({"llm/a": []}, engine="tgi"))
    assert await queried(fleet_of({"llm/a": [], "llm/b": []}, engine="tgi")) == one
    assert await queried(fleet_of({"llm/a": []}, engine="tgi"), WakeUpQuery("x", "up")) == one + 1
    assert await queried(fleet_of({"llm/a": []}, engine="vllm")) > one


async def test_all_queries_of_a_tick_use_one_evaluation_time():
    server = Server(**healthy())
    await server.sample()
    instants = {form.get("time") for form in server.queried}
    instants.discard(None)  # the first question hears the server's clock
    assert len(instants) == 1
    assert float(instants.pop()) == pytest.approx(NOW_UNIX_S, abs=0.01)


async def test_prometheus_down_leaves_everything_unknown():
    settings = PrometheusSettings(url=f"http://127.0.0.1:{free_port()}")
    async with PrometheusSource(settings, HandClock()) as source:
        samples = await source.sample(FLEET, objectives(FLEET), 60)
    assert known(samples) == set()
    assert (report(samples).queries, report(samples).failed) == (1, 1)
    assert "no connection" in report(samples).problems[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer('{"status":"error","errorType":"timeout","error":"query timed out"}'), "timeout: query timed out"),
        (Answer("no token", status=401), "HTTP 401"),
        (
            Answer('{"status":"error","errorType":"unavailable","error":"starting"}', status=503),
            "unavailable: starting",
        ),
        (html(502), "HTTP 502 Bad Gateway: Oops Bad gateway"),
        (html(200), "not an answer of the query API"),
        (Answer(vector((pod("a-0"), 1))[:-3]), "not an answer of the query API"),
        (Answer(vector((pod("a-0"), 1)), delay_s=0.5), "no answer within 0.1 s"),
    ],
    ids=["error in a 200", "401", "503", "HTML error", "HTML under 200", "truncated JSON", "slow"],
)
async def test_a_failing_server_gives_unknown_values_and_one_problem(answer: Answer, why: str):
    samples = await Server(**{"engine/pod": answer}).sample(timeout_s=0.1 if answer.delay_s else PATIENCE_S)
    assert known(samples) == set()
    assert report(samples).failed == report(samples).queries == 1
    assert why in report(samples).problems[0]


async def test_a_failed_convention_query_is_reported():
    reported = report(await Server(**{"engine/pod": Answer("", status=503)}).sample()).problems
    assert [line.partition(": ")[0] for line in reported] == ["labels that name pods"] * 2
    assert reported[1] == "labels that name pods: nothing is read before this query is answered"
    undated = report(await Server(**{"engine/pod": vector()}).sample())
    assert (undated.failed, undated.problems) == (0, reported[1:])


async def test_a_failure_of_every_query_is_reported_once():
    refused = Answer("", status=503)
    server = Server()
    async with server.source() as source:
        await source.sample(FLEET, objectives(FLEET), 60)
        server.rules = {"": refused}
        samples = await source.sample(FLEET, objectives(FLEET), 60)
    reported = report(samples)
    assert reported.failed == reported.queries > 10
    assert len(reported.problems) == 1
    assert re.match(r"\w+, \w+ and \d+ more: http://127\.0\.0\.1:\d+/api/v1/query: HTTP 503", reported.problems[0])


async def test_one_query_that_fails_costs_its_own_column_only():
    samples = await Server(**healthy(generation_tokens=Answer("", status=422))).sample()
    assert known(samples) == {"time_s", "running", "waiting"}
    assert report(samples).failed == 1
    assert report(samples).problems[0].startswith("generation_tokens: ")


class BusyServer(Server):
    """Refuses the first queries in which a pattern occurs."""

    def __init__(self, pattern: str, refusals: int, refusal: Answer, **rules: Answer | str | float) -> None:
        super().__init__(**rules)
        self.pattern, self.refusals, self.refusal = pattern, refusals, refusal

    async def answer(self, request: web.Request) -> web.Response:
        if re.search(self.pattern, str((await request.post())["query"])) and self.refusals:
            self.refusals -= 1
            return web.Response(text=str(self.refusal.body), status=self.refusal.status, headers=self.refusal.headers)
        return await super().answer(request)


RUNNING = r"^\(sum .*num_requests_running"


@pytest.mark.parametrize(
    ("status", "refusals", "known"), [(503, 1, True), (429, 1, True), (503, 2, False), (400, 1, False)]
)
async def test_running_is_asked_again_when_the_server_refuses_it(status: int, refusals: int, known: bool):
    samples = await BusyServer(RUNNING, refusals, Answer("", status=status), **healthy()).sample()
    assert np.isnan(samples.pods.running).all() != known
    assert report(samples).failed == (0 if known else 1)
    lines = [line for line in report(samples).problems if "not read in this tick" in line]
    lost = "running: not read in this tick: such a pod counts as silent, and its workload never shrinks"
    assert lines == ([] if known else [lost])


@pytest.mark.parametrize(("asked", "pauses"), [("60", True), ("1e9", False), ("Wed, 21 Oct 2026 07:28:00 GMT", False)])
async def test_no_query_is_sent_while_the_server_asks_to_wait(asked: str, pauses: bool):
    server = BusyServer(RUNNING, 100, Answer("", status=429, headers={"Retry-After": asked}), **healthy())
    async with server.source() as source:
        await source.sample(FLEET, objectives(FLEET), 5)
        server.queried.clear()
        samples = await source.sample(FLEET, objectives(FLEET), 5)
    assert bool(server.queried) != pauses
    assert any("asked to wait (Retry-After)" in line for line in report(samples).problems) == pauses


async def test_lost_queries_come_earlier_in_the_next_tick():
    server = Server(**healthy(num_preemptions=Answer("", status=503)))
    places = []
    async with server.source() as source:
        for _ in range(2):
            server.queried.clear()
            samples = await source.sample(FLEET, objectives(FLEET), 60)
            queries = [form["query"] for form in server.queried]
            places.append(next(place for place, query in enumerate(queries) if "num_preemptions" in query))
    assert places[1] < places[0]
    assert (
        "preemptions: not read in this tick: preemptions by a full KV cache are not shown" in report(samples).problems
    )


async def test_a_query_that_hangs_does_not_hold_up_the_tick():
    """The deadline comes when nothing else is waited for, however long a busy machine takes for the rest."""
    server = Server(**healthy(generation_tokens=Answer(vector(), delay_s=10 * PATIENCE_S)))

    async def is_last() -> bool:
        readings = [task for task in asyncio.all_tasks() if task.get_name().startswith("prometheus ")]
        return len(readings) == 1 and any("generation_tokens" in form["query"] for form in server.queried)

    async with server.source(timeout_s=2 * PATIENCE_S) as source:
        sampling = asyncio.create_task(source.sample(FLEET, objectives(FLEET), PATIENCE_S))
        await eventually(is_last, "only one query is left", every_s=0.01)
        pass_time(PATIENCE_S)
        samples = await sampling
    assert {"time_s", "running", "waiting"} <= known(samples)
    assert report(samples).failed == 1


async def test_after_an_outage_readings_are_back():
    server = Server(**{"": Answer("", status=503)})
    server.rules.pop("engine/pod")
    async with server.source() as source:
        assert known(await source.sample(FLEET, objectives(FLEET), 60)) == set()
        server.rules = {"engine/pod": vector(({"metric": "engine/pod"}, 1)), **healthy()}
        assert "running" in known(await source.sample(FLEET, objectives(FLEET), 60))


async def test_deleted_and_duplicate_pods_harm_no_other():
    rows = [(pod("gone-0"), 99), (pod("a-0"), 4), ({**pod("a-0"), "prometheus_replica": "1"}, 5), (pod("b-0"), 1)]
    samples = await Server(**healthy(num_requests_running=vector(*rows))).sample()
    assert samples.pods.running == pytest.approx([5, NAN, 1], nan_ok=True)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
async def test_impossible_engine_values_are_unknown(value: str):
    samples = await Server(**healthy(num_requests_running=vector((pod("a-0"), value), (pod("b-0"), 0)))).sample()
    assert samples.pods.running == pytest.approx([NAN, NAN, 0], nan_ok=True)


async def test_a_ratio_above_one_is_unknown():
    usage = vector((pod("a-0"), 35), (pod("a-1"), 1), (pod("b-0"), 0.5))
    samples = await Server(**healthy(kv_cache_usage_perc=usage)).sample()
    assert samples.pods.kv_usage == pytest.approx([NAN, 1, 0.5], nan_ok=True)


async def test_a_scrape_from_the_future_counts_as_now():
    samples = await Server(**{r"timestamp\(vllm": NOW_UNIX_S + 500, **healthy()}).sample()
    assert samples.pods.time_s.tolist() == [STARTED_S] * 3


async def test_labels_with_quotes_and_newlines_harm_no_other():
    evil = '"},"value":[1,"9"]},{"metric":{"namespace":"llm","pod":"a-1'
    rows = [(pod(evil), 7), (pod("a-0\n"), 8), ({"namespace": "llm\x00", "pod": "a-0"}, 9), (pod("b-0"), 1)]
    samples = await Server(**healthy(num_requests_running=vector(*rows))).sample()
    assert samples.pods.running == pytest.approx([NAN, NAN, 1], nan_ok=True)


@pytest.mark.parametrize("flag", [{"warnings": ["store 10.0.0.9 is unavailable"]}, {"isPartial": True}])
async def test_missing_data_of_a_partial_answer_is_unknown(flag: dict):
    partial = vector((pod("a-0"), 4), **flag)
    samples = await Server(**healthy(num_requests_running=partial)).sample()
    assert samples.pods.running == pytest.approx([4, NAN, NAN], nan_ok=True)
    assert report(samples).failed == 0
    assert "partial answer, what is missing is unknown" in report(samples).problems[0]


def by_target(**flags: object) -> dict[str, Answer | str | float]:
    """Rules of a server whose series name scrape targets."""
    found = [{"metric": "clock"}, *([] if flags else [{"metric": "engine/instance"}])]
    running = vector(({"job": "llm", "instance": "a-0"}, 4))
    return {"engine/pod": vector(*((row, 1) for row in found), **flags), "by .job.*num_requests_running": running}


async def test_conventions_are_queried_again_after_a_partial_answer():
    clock, server = HandClock(), Server(**by_target(isPartial=True))
    async with server.source(clock) as source:
        assert "running" not in known(await source.sample(FLEET, objectives(FLEET), 60))
        server.rules = by_target()
        for _ in range(2):  # it is queried beside the readings
            clock.time_s += 5
            samples = await source.sample(FLEET, objectives(FLEET), 60)
    assert samples.pods.running.tolist()[0] == 4


async def test_partial_conventions_count_until_there_are_complete_ones():
    rules = by_target()
    partial = vector(({"metric": "engine/instance"}, 1), isPartial=True)
    samples = await Server(**{**rules, "engine/pod": partial}).sample()
    assert samples.pods.running.tolist()[0] == 4


async def test_a_partial_answer_keeps_known_conventions():
    clock, server = HandClock(), Server(**by_target())
    async with server.source(clock) as source:
        await source.sample(FLEET, objectives(FLEET), 60)
        server.rules = by_target(isPartial=True)
        for _ in range(2):
            clock.time_s += SLOW_PERIOD_S
            samples = await source.sample(FLEET, objectives(FLEET), 60)
    assert samples.pods.running.tolist()[0] == 4


async def test_infos_of_the_server_are_passed_on():
    samples = await Server(**healthy(num_requests_running=vector((pod("a-0"), 4), infos=["looks odd"]))).sample()
    assert report(samples).problems[0].endswith("remarked: looks odd")


async def test_slow_readings_are_queried_periodically_with_their_time():
    clock = HandClock()
    server = Server(**{SLOTS: vector((pod("a-0"), 512))})

    def times() -> int:
        return sum(SLOTS in form["query"] for form in server.queried)

    async with server.source(clock) as source:
        for _ in range(3):
            samples = await source.sample(TRITON, objectives(TRITON), 60)
            assert samples.pods.max_running[0] == 512
            clock.time_s += 5
        assert times() == 1
        clock.time_s += SLOW_PERIOD_S
        await source.sample(TRITON, objectives(TRITON), 60)
        assert times() == 2
        server.rules[SLOTS] = Answer("", status=503)
        clock.time_s += SLOW_PERIOD_S
        assert (await source.sample(TRITON, objectives(TRITON), 60)).pods.max_running[0] == 512
        clock.time_s += MAX_SLOW_AGE_S
        assert np.isnan((await source.sample(TRITON, objectives(TRITON), 60)).pods.max_running).all()


async def test_slow_readings_are_renewed_a_few_at_a_time():
    conventions = vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/pod"}, 1))
    clock, server = HandClock(), Server(**{"engine/pod": conventions})
    queried = []
    async with server.source(clock) as source:
        for pause_s in (SLOW_PERIOD_S, 5, 5, 5, 5):
            server.queried.clear()
            await source.sample(TRITON, objectives(TRITON), 60)
            slow = [form for form in server.queried if re.search(f"DCGM|{SLOTS}", form["query"])]
            queried.append(len([form for form in slow if "engine/pod" not in form["query"]]))
            clock.time_s += pause_s
    assert queried == [9, 2, 2, 2, 2]


async def test_the_time_of_gpu_readings_is_that_of_the_oldest_in_use():
    conventions = vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/pod"}, 1))
    rules = {"engine/pod": conventions, r"timestamp\(DCGM": NOW_UNIX_S - 1, "FB_FREE": 0.9}
    clock, server = HandClock(), Server(**rules)
    async with server.source(clock) as source:
        assert (await source.sample(FLEET, objectives(FLEET), 60)).pods.gpu_time_s == pytest.approx(
            [STARTED_S - 1] * 3, abs=0.01
        )
        server.rules["FB_FREE"] = Answer("", status=503)
        for _ in range(10):
            clock.time_s += 5
            server.rules[r"timestamp\(DCGM"] = NOW_UNIX_S + clock.time_s - STARTED_S
            samples = await source.sample(FLEET, objectives(FLEET), 60)
    assert samples.pods.fb_usage.tolist() == [0.9] * 3
    assert samples.pods.gpu_time_s == pytest.approx([STARTED_S] * 3, abs=0.01)  # when fb_usage was read last


async def test_gateways_are_read_without_engines_and_gpus():
    queue = {"metric": "llm_d_epp_flow_control_queue_size", "inference_pool": "cold"}
    rules = {"engine/pod": vector(({"metric": "clock"}, 1)), "flow_control_queue_size": vector((queue, 3))}
    samples = await Server(**rules).sample(fleet_of({"llm/cold": []}))
    assert samples.gateways.waiting.tolist() == [3]


async def test_readings_that_are_kept_follow_their_pods():
    server = Server(**{SLOTS: vector((pod("b-0"), 512))})
    async with server.source() as source:
        await source.sample(TRITON, objectives(TRITON), 60)
        fewer = fleet_of({"llm/b": ["b-0"], "llm/c": ["c-0"]}, engine="triton", first_pod_id=2)
        samples = await source.sample(fewer, objectives(fewer), 60)
    assert samples.pods.max_running == pytest.approx([512, NAN], nan_ok=True)


async def test_gpus_are_queried_only_if_there_are_gpu_metrics():
    conventions = vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/exported_pod"}, 1))
    labels = {"exported_namespace": "llm", "exported_pod": "a-0"}
    usage = vector(({**labels}, 0.9))
    server = Server(**{"engine/pod": conventions, "^max .*FB_FREE": usage})
    samples = await server.sample()
    assert samples.pods.fb_usage == pytest.approx([0.9, NAN, NAN], nan_ok=True)
    without = Server(**healthy())
    await without.sample()
    assert not any("DCGM" in form["query"] for form in without.queried if "engine/pod" not in form["query"])


async def test_an_unknown_engine_is_reported_and_harms_no_other():
    fleet = fleet_of({"llm/a": ["a-0"]})
    odd = fleet_of({"llm/x": ["x-0"]}, engine="no such\nengine")
    both = Fleet(
        **{**vars(fleet_of({"llm/a": ["a-0"], "llm/x": ["x-0"]})), "workloads": fleet.workloads + odd.workloads}
    )
    samples = await Server(**healthy()).sample(both)
    assert samples.pods.running == pytest.approx([4, NAN], nan_ok=True)
    assert "not in the table of engines: vllm, sglang" in report(samples).problems[0]
    assert "\n" not in report(samples).problems[0]


async def test_a_gateway_queue_is_read_without_pods():
    queue = {"metric": "llm_d_epp_flow_control_queue_size", "inference_pool": "cold"}
    server = Server(**{"flow_control_queue_size": vector((queue, 3)), **healthy()})
    samples = await server.sample(fleet_of({"llm/cold": [], "llm/other": []}))
    assert samples.gateways.waiting == pytest.approx([3, NAN], nan_ok=True)
    assert samples.gateways.time_s == pytest.approx([STARTED_S, NAN], nan_ok=True)


async def test_a_gateway_with_arrivals_only_is_read():
    arrivals = {"metric": "vllm:num_incoming_requests_total", "model": "m"}
    server = Server(**{"rate.vllm:num_incoming": vector((arrivals, 0.5)), **healthy()})
    samples = await server.sample(fleet_of({"llm/cold": []}, model="m"))
    assert (samples.gateways.arrivals_per_s.tolist(), samples.gateways.time_s.tolist()) == ([0.5], [STARTED_S])
    assert np.isnan(samples.gateways.waiting).all()


async def test_a_zero_in_a_partial_gateway_answer_is_unknown():
    queue = {"metric": "llm_d_epp_flow_control_queue_size", "inference_pool": "cold"}
    fleet = fleet_of({"llm/cold": []})
    whole = await Server(flow_control_queue_size=vector((queue, 0))).sample(fleet)
    partial = await Server(flow_control_queue_size=vector((queue, 0), isPartial=True)).sample(fleet)
    assert whole.gateways.waiting.tolist() == [0]
    assert np.isnan(partial.gateways.waiting).all()
    assert np.isnan(partial.gateways.time_s).all()


async def test_a_gateway_and_a_policy_query_are_not_added():
    queue = {"metric": "llm_d_epp_flow_control_queue_size", "inference_pool": "cold"}
    server = Server(**{"flow_control_queue_size": vector((queue, 3)), "my_queue": vector(({}, 5))})
    async with server.source(queries=lambda: (WakeUpQuery("standard", "my_queue", True),)) as source:
        samples = await source.sample(fleet_of({"llm/cold": []}), objectives(fleet_of({"llm/cold": []})), 5)
    assert samples.gateways.waiting.tolist() == [5]


async def test_too_many_policy_queries_are_refused_and_reported():
    queries = tuple(WakeUpQuery(f"p{number}", f"up{number}") for number in range(MAX_WAKE_UP_QUERIES + 3))
    server = Server()
    async with server.source(queries=lambda: queries) as source:
        samples = await source.sample(FLEET, objectives(FLEET), 60)
    assert sum(form["query"].startswith("up") for form in server.queried) == MAX_WAKE_UP_QUERIES
    assert f"only the first {MAX_WAKE_UP_QUERIES} count" in " ".join(report(samples).problems)


@pytest.mark.parametrize("series", [[(pod("stranger-0"), 4)], []])
async def test_metrics_that_match_no_pod_are_reported(series: list):
    samples = await Server(**healthy(num_requests_running=vector(*series))).sample()
    reported = "running: no series has labels namespace and pod that name a ready pod of the fleet"
    assert (report(samples).failed, report(samples).problems) == (0, (reported,))
    at_zero = await Server(**healthy(num_requests_running=vector(*series))).sample(fleet_of({"llm/a": []}))
    assert report(at_zero).problems == ()


async def test_needed_labels_are_reported_when_no_series_names_a_pod():
    target = {"job": "inference", "instance": "10.0.0.1:8000"}
    conventions = vector(({"metric": "engine/instance"}, 1), ({"metric": "clock"}, 1))
    samples = await Server(**{**healthy(num_requests_running=vector((target, 4))), "engine/pod": conventions}).sample()
    assert report(samples).problems == (
        "running: no series has labels job and instance that name a ready pod of the fleet; "
        "series of engines have no label pod: give them the labels namespace and pod",
    )


async def test_a_fleet_without_workloads_is_no_reason_to_fail():
    samples = await Server(**healthy()).sample(fleet_of({}))
    assert len(samples.pods.running) == len(samples.gateways.waiting) == 0
    assert report(samples).failed == 0


async def test_every_query_has_the_configured_selector():
    conventions = vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/pod"}, 1))
    server = Server(**{**healthy(), "engine/pod": conventions})
    async with server.source(
        queries=lambda: (WakeUpQuery("p", "my_queue", True),), selector='cluster="prod"'
    ) as source:
        await source.sample(FLEET, objectives(FLEET), 60)
    assert any("my_queue" in form["query"] for form in server.queried)
    for form in server.queried:
        selectors = without_texts(form["query"]).count("{")
        assert selectors == form["query"].count('cluster="prod"}') > 0


async def test_a_workload_is_named_when_none_of_its_pods_reports():
    """llm/b is silent, and llm/a is not."""
    received = vector((pod("a-0"), 1), (pod("a-1"), 2))
    samples = await Server(**healthy(num_requests_running=received)).sample()
    (problem,) = (line for line in report(samples).problems if "no ready pod" in line)
    assert problem.startswith("running: no ready pod of llm/b reports a metric of vllm: is it scraped")
    assert "--disable-log-stats" in problem


async def test_names_are_searched_when_a_pod_is_silent():
    """Managed backends refuse an expression on names: where nothing is missing they are not queried."""
    refused = Answer('{"status":"error","errorType":"bad_data","error":"unsupported matchtype"}', status=400)
    server = Server(__name__=refused, **healthy())
    assert report(await server.sample()).problems == ()
    assert not any("__name__" in form["query"] for form in server.queried)
    silent = fleet_of({"llm/a": ["a-0"], "llm/z": ["z-0"]})
    async with server.source(clock := HandClock()) as source:
        for _ in range(2):
            clock.time_s += 400
            samples = await source.sample(silent, objectives(silent), 60)
            assert report(samples).failed == 0
            (problem,) = report(samples).problems
            assert problem.endswith(
                "the server refuses to look for names with an unknown prefix, which --metric-prefix states"
            )
    assert sum("__name__" in form["query"] for form in server.queried) == 1
