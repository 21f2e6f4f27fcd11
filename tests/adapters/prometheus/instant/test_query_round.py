"""A round of queries and its report."""

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.client import PrometheusClient
from autoscaler.adapters.prometheus.instant.query_round import MAX_PROBLEMS, QueryRound
from autoscaler.config.settings import PrometheusSettings
from tests.harness.process import free_port


def client() -> PrometheusClient:
    return PrometheusClient(PrometheusSettings(url=f"http://127.0.0.1:{free_port()}"), SystemClock())


async def test_after_the_deadline_nothing_is_queried():
    async with client() as prometheus:
        query_round = QueryRound(prometheus, SystemClock(), deadline_s=0)
        assert await query_round.query("running", "up") is None
    report = query_round.report()
    assert (report.queries, report.failed) == (1, 1)
    assert report.problems[0].endswith("not queried, the deadline of the tick has passed")


async def test_one_problem_of_many_queries_is_one_line_that_names_two():
    query_round = QueryRound(client(), SystemClock(), deadline_s=1)
    for name in ("running", "waiting", "ttft_s", "itl_s"):
        query_round.note(name, "no connection")
    query_round.note("running", "something else")
    assert query_round.report().problems == (
        "running, waiting and 2 more: no connection",
        "running: something else",
    )


async def test_problems_are_few_and_short():
    query_round = QueryRound(client(), SystemClock(), deadline_s=1)
    for number in range(100):
        query_round.note("running", f"{number} " + "x" * 10_000)
    problems = query_round.report().problems
    assert len(problems) == MAX_PROBLEMS
    assert all(len(problem) <= 600 for problem in problems)
