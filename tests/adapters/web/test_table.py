"""One tick as a table, and what differs between two."""

import json
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.web.table import FIELDS, QUIET, Table
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.pairs import Pairs
from autoscaler.ports import TickRecord
from tests.adapters.web.records import World, workloads


def as_json(table: Table) -> dict[int, dict[str, object]]:
    rows = json.loads(msgspec.json.encode(table.rows(np.arange(len(table)))))
    return {row["id"]: row for row in rows}


def follow(known: dict[int, dict[str, object]], table: Table, before: Table) -> None:
    """Do what a browser does with a message."""
    changed, gone = json.loads(msgspec.json.encode(table.changes(before)))
    for cells in changed:
        known.setdefault(cells["id"], {}).update(cells)
    for workload_id in gone:
        del known[workload_id]


def without_quiet(rows: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    return {key: {name: cell for name, cell in row.items() if name not in QUIET} for key, row in rows.items()}


def unsettle(tick: TickRecord, random: np.random.Generator) -> TickRecord:
    """Make some readings unknown."""
    seen = tick.decision.observation
    columns = {field.name: getattr(seen, field.name) for field in fields(Observation)}
    holes = {name: np.where(random.random(len(column)) < 0.2, np.nan, column) for name, column in columns.items()}
    return replace(tick, decision=replace(tick.decision, observation=Observation(**holes)))


@given(st.lists(st.sets(st.integers(0, 30), max_size=25), min_size=2, max_size=6), st.integers(0, 2**32 - 1))
def test_applying_all_changes_yields_the_whole_list(fleets: list[set[int]], seed: int) -> None:
    random, everybody = np.random.default_rng(seed), workloads(31)
    before: Table | None = None
    known: dict[int, dict[str, object]] = {}
    for number, members in enumerate(fleets):
        ids = sorted(members)
        world = World(tuple(everybody[i] for i in ids), seed + number)
        world.ids = np.array(ids, dtype=np.int64)
        table = Table.of(unsettle(world.tick(), random), before)
        if before is None:
            known = as_json(table)
        else:
            follow(known, table, before)
        assert without_quiet(known) == without_quiet(as_json(table))
        before = table


def test_budget_used_is_unknown_when_the_budget_is_zero() -> None:
    tick = World(2).tick()
    spec = replace(tick.input.spec, attainment=np.array([0.99, 1.0]))
    table = Table.of(replace(tick, input=replace(tick.input, spec=spec)))
    np.testing.assert_array_equal(table.columns["used_budgets"], [2.5, np.nan])


def test_a_tick_that_changes_nothing_makes_no_difference() -> None:
    tick = World(20).tick()
    assert Table.of(tick).changes(Table.of(tick)) == ([], [])


def test_one_cell_that_changes_is_all_that_is_told() -> None:
    tick = World(3).tick()
    seen = replace(tick.decision.observation, waiting=np.array([0.0, 41.0, 0.0]))
    before = Table.of(replace(tick, decision=replace(tick.decision, observation=replace(seen, waiting=np.zeros(3)))))
    after = Table.of(replace(tick, decision=replace(tick.decision, observation=seen)), before)
    assert after.changes(before) == ([{"id": 1, "waiting": 41.0}], [])


def test_noise_in_the_last_digits_is_no_change() -> None:
    tick = World(1).tick()
    one, two = (
        Table.of(
            replace(
                tick,
                decision=replace(tick.decision, observation=replace(tick.decision.observation, ttft_s=np.array([t]))),
            )
        )
        for t in (0.123412, 0.123414)
    )
    assert two.changes(one) == ([], [])


def test_names_from_outside_are_bounded_and_printable() -> None:
    table = Table.of(World((Workload(WorkloadRef("n" * 999, "a\n\x1b[31m\ud800"), model="m" * 999),)).tick())
    (row,) = as_json(table).values()
    assert row["name"] == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert (len(row["namespace"]), len(row["model"])) == (253, 253)  # type: ignore[arg-type]


def test_a_pair_shows_its_roles_and_partners() -> None:
    sides = [Workload(WorkloadRef("llm", f"m-{role}"), service="m", role=role) for role in ("prefill", "decode")]
    tick = World((*sides, Workload(WorkloadRef("llm", "alone")))).tick()
    prefill, decode = np.array([True, False, False]), np.array([False, True, False])
    paired = replace(tick, input=replace(tick.input, pairs=Pairs(prefill, decode, np.array([1, 0, -1]))))
    shown = [(row["role"], row["partner"]) for row in as_json(Table.of(paired)).values()]
    assert shown == [("prefill", "m-decode"), ("decode", "m-prefill"), ("", "")]


def test_every_field_is_documented_and_filled() -> None:
    (row,) = as_json(Table.of(World(1).tick())).values()
    assert list(row) == list(FIELDS)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    assert "| field | meaning |\n|---|---|\n" + "".join(f"| `{k}` | {v} |\n" for k, v in FIELDS.items()) + "\n" in page


def test_sorting_by_text_is_alphabetical_and_stable() -> None:
    table = Table.of(World(8).tick())
    rows = table.order(np.arange(8), "policy", descending=False)
    assert rows.tolist() == [2, 6, 3, 7, 1, 5, 0, 4]
    assert table.order(np.arange(8), "policy", descending=True).tolist() == [0, 4, 1, 5, 3, 7, 2, 6]
