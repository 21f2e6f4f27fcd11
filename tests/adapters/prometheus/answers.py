"""Bodies of the query API, made for the tests of this adapter."""

import json
from typing import Any

from tests.harness.exposition import Answer

PATH = "/api/v1/query"
NOW_UNIX_S = 1_800_000_000.5


def vector(*series: tuple[dict[str, str], object], time_s: float = NOW_UNIX_S, **more: Any) -> str:
    """The answer to an instant query: labels and value of each series; `more` adds top-level keys."""
    result = [{"metric": labels, "value": [time_s, str(value)]} for labels, value in series]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}, **more}
    return json.dumps(body, separators=(",", ":"))


def pod(name: str, namespace: str = "llm") -> dict[str, str]:
    return {"namespace": namespace, "pod": name}


def html(status: int) -> Answer:
    page = "<html><head><title>Oops</title></head><body><h1>Bad gateway</h1>nginx\x00</body></html>"
    return Answer(page, status=status, headers={"Content-Type": "text/html"})
