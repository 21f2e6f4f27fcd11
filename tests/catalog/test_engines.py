"""The table of engines as data: complete, consistent, renamed whole. The tests of the scraper cover reading."""

from dataclasses import fields

import pytest

from autoscaler.catalog.engines import ENGINES, HISTOGRAMS, LIMITS, QUANTILES, ROUNDED_UP, UNCOUNTED, WITHIN, Engine
from autoscaler.core.model.samples import Objectives, PodSamples

COLUMNS = {column.name for column in fields(PodSamples)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_every_engine_fills_existing_columns(engine: Engine) -> None:
    assert set(engine.readings) <= COLUMNS
    assert {"running", "waiting", "finished"} <= set(engine.readings)
    assert all(engine.readings.values())
    assert engine.path.startswith("/")


def test_column_sets_name_existing_columns() -> None:
    assert HISTOGRAMS | set(LIMITS) <= COLUMNS
    assert not QUANTILES & WITHIN.keys()
    assert WITHIN.keys() >= ROUNDED_UP | UNCOUNTED.keys()
    assert {*WITHIN.values(), "max_age_s"} == {column.name for column in fields(Objectives)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    ("met", "of"),
    [("ttft_met", "first_tokens"), ("itl_met", "itl_judged"), ("prefill_met", "prefill_judged"), ("gap_s", "gaps")],
)
def test_counts_within_objectives_use_the_histogram_of_totals(engine: Engine, met: str, of: str) -> None:
    named = [row.name.removesuffix("_sum") for row in engine.readings.get(met, ())]
    assert named == [row.name.removesuffix("_count") for row in engine.readings.get(of, ())]


def test_engines_are_found_by_their_own_name() -> None:
    assert list(ENGINES) == ["vllm", "sglang", "tgi", "trtllm", "triton", "nim"]
    assert all(engine.name == name for name, engine in ENGINES.items())


def test_the_router_of_the_production_stack_is_no_engine() -> None:
    rows = [row for row in ENGINES["vllm"].series() if row.name == "vllm:num_requests_running"]
    assert rows and not any(row.accepts({"server": "http://10.0.0.1:8000"}) for row in rows)
    assert all(row.accepts({"model_name": "m", "engine": "0"}) for row in rows)
