"""All names that leave the process, and that others read by name: `tests/data/published-names.txt` lists them."""

import ast
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import autoscaler
from autoscaler.adapters import state_file
from autoscaler.adapters.console import JsonLines
from autoscaler.adapters.web import exported_metrics
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.core.explain.sentence import explain
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.chain import Cause, Link
from autoscaler.core.model.diagnosis import STATES
from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.types import Recommender, Signal, Stage
from autoscaler.core.model.weights import PodCache
from autoscaler.core.snapshot import SCHEMA
from autoscaler.lab.report.document import document
from autoscaler.ports import ChangeStatus
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.records import World, with_quotas, with_starts, with_weights, with_window
from tests.lab.report.comparisons import PLAN, comparison

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "data" / "published-names.txt"
CODE = Path(autoscaler.__file__).parent
ENUMS = (Signal, Recommender, Stage, PendingClass, Cause, Link, Phase, PodCache, GpuState, IdleCause)
LISTS = ("workloads", "node-groups", "gpu-use", "quotas", "weights")
ADVICE = """\
published names differ from tests/data/published-names.txt (lines with +: new, with -: gone).
A new name: add its line, and describe it in docs/reference. A renamed or removed one breaks dashboards, alerts and
scripts of users: add an Upgrade line to CHANGELOG.md, change docs and manifests/monitoring, and if a release had the
name, raise VERSION in core/model/published.py or lab/report/document.py, or FORMAT in adapters/state_file.py."""


async def test_published_names_are_those_of_the_golden_file(daemon: Daemon):
    bodies = [
        ("api", await _api(daemon)),
        ("dry-run", _dry_run()),
        ("simulate", document([comparison(offline_plan=PLAN)])),
    ]
    names = {line for room, body in bodies for line in _keys(body, f"{room} ")}
    names |= {f"metric {family.full_name} {' '.join(family.labels)}".rstrip() for family in exported_metrics.FAMILIES}
    names |= {f"{each.__name__} {member.published}" for each in ENUMS for member in each}
    names |= {f"Diagnosis {state}" for state in STATES}
    names |= {f"outcome {status.value}" for status in ChangeStatus}
    names |= {f"state-{state_file.FORMAT} {name}" for name in SCHEMA}
    names |= {f"log {name}" for file in CODE.rglob("*.py") for name in _log_keys(file.read_text("utf-8"))}
    golden = set(GOLDEN.read_text("utf-8").splitlines())
    differences = sorted(f"{'+-'[name in golden]} {name}" for name in names ^ golden)
    assert not differences, "\n".join([ADVICE, *differences])


async def _api(daemon: Daemon) -> dict[str, Any]:
    """Return one answer of each kind, by path."""
    daemon.dashboard = Dashboard(explain)
    async with daemon.another(port=0) as server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def get(path: str) -> Any:
            return await (await session.get(path)).json()

        daemon.record(with_weights(with_quotas(World(2).tick())))
        lists = {path: await get(f"/api/v1/{path}") for path in LISTS}
        tick = with_starts(with_window(World(1).tick()))
        daemon.record(tick)
        ref = tick.input.fleet.workloads[0].ref
        workload = await get(f"/api/v1/workloads/{ref.namespace}/{ref.name}")
        return lists | {"workload": workload, "readyz": await get("/readyz")}


def _dry_run() -> list[dict[str, Any]]:
    out = io.StringIO()
    JsonLines(out).record(World(1).tick())
    return [json.loads(line) for line in out.getvalue().splitlines()]


def _keys(value: object, place: str) -> Iterator[str]:
    """Yield the keys of a JSON value with those inside them, `api workloads.tick`. Rows of a list have one place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{place}{key}"
            yield from _keys(inner, f"{place}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, place)


def _log_keys(source: str) -> Iterator[str]:
    """Yield the keys of log lines, which are the keyword arguments of a logger's methods."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    for call in calls:
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "log":
            yield from (keyword.arg for keyword in call.keywords if keyword.arg)
