"""Sources of a pod in arbitrary answers of a server. Another file has tests on real servers."""

import pytest

from tests.adapters.prometheus.query_server import Server, healthy, report
from tests.adapters.prometheus.responses import NOW_UNIX_S, pod, vector

OLD, NEW = NOW_UNIX_S - 100, NOW_UNIX_S - 1


def answers(*series: tuple[dict[str, str], float]) -> dict[str, str]:
    """Return the answers about sample times, and about scrapes that are 15 s apart. series: labels and sample time."""
    return {
        r"^count by": vector(),
        r"^label_replace.*count_over_time": vector(*(({**labels, "part": "300"}, 21) for labels, _ in series)),
        r"count_over_time": vector(),
        r"^\(.*timestamp.*\) and on": vector(*series),
    }


@pytest.mark.parametrize("odd", ['x"} or vector(1) or y{z="', "exported-node", "é", "x" * 500])
async def test_odd_label_names_are_in_no_query(odd: str):
    series = [({**pod("a-0"), odd: "1", "node": "n1"}, OLD), ({**pod("a-0"), odd: "2", "node": "n2"}, NEW)]
    running = vector(({**pod("a-0"), "node": "n1"}, 8), ({**pod("a-0"), "node": "n2"}, 2), (pod("a-1"), 5))
    server = Server(**{**answers(*series), **healthy(num_requests_running=running)})
    samples = await server.sample()
    assert samples.pods.running[:2].tolist() == [2, 5]
    assert not any(odd in form["query"] for form in server.queried)
    (line,) = (line for line in report(samples).problems if line.startswith("sources"))
    assert line.startswith("sources: pod llm/a-0: series with node=n1 are left out: their last sample is older")


async def test_a_pod_with_many_odd_series_hides_no_other():
    flood = [
        ({**pod("a-0"), **{f"l{label}": f"{number * label}" for label in range(40)}}, OLD if number % 2 else NEW)
        for number in range(600)
    ]
    moved = [({**pod("a-1"), "node": "n1"}, OLD), ({**pod("a-1"), "node": "n2"}, NEW)]
    running = vector(*((labels, 8 if time_s == OLD else 2) for labels, time_s in moved))
    server = Server(**{**answers(*flood, *moved), **healthy(num_requests_running=running)})
    samples = await server.sample()
    assert samples.pods.running[1] == 2
    grouped = next(
        form["query"] for form in server.queried if form["query"].startswith("max by") and "node" in form["query"]
    )
    assert grouped.count(", l") <= 4
