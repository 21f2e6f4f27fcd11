"""The list of queries: how many there are, and what is in them. What they mean is tried on real servers."""

import re
from dataclasses import fields

import pytest

from autoscaler.adapters.prometheus.queries import (
    EXPORTED,
    POD,
    TARGET,
    bounds_query,
    bucket_expression,
    convention_query,
    devices_query,
    engine_queries,
    front_arrivals_query,
    front_waiting_query,
    gpu_queries,
    read_conventions,
    seen_engines_query,
)
from autoscaler.config import gateways, gpus
from autoscaler.config.engines import ENGINES, WITHIN
from autoscaler.config.series import underscored
from autoscaler.core.samples import PodSamples

COLUMNS = {field.name for field in fields(PodSamples)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_each_column_that_an_engine_tells_takes_one_query_and_its_time_one_more(engine):
    queries = engine_queries(engine, POD, 120)
    assert sorted(query.column for query in queries) == sorted({*engine.readings, "time_s"} - WITHIN.keys())
    assert {query.column for query in queries} <= COLUMNS


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_name_of_the_table_is_asked_for_and_with_underscores_too(engine):
    text = " ".join(query.expression for query in engine_queries(engine, POD, 120))
    for rows in (engine.readings[column] for column in WITHIN.keys() & engine.readings.keys()):
        text += bounds_query(rows, 256) + bucket_expression(rows, ("1", "1.0"), POD)
    names = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text))
    for row in engine.series():
        assert {row.name, f"{row.name}_bucket"} & names
        assert {underscored(row.name), f"{underscored(row.name)}_bucket"} & names


def test_every_name_of_gateways_and_gpus_is_asked_for():
    front = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", front_waiting_query() + front_arrivals_query(120)))
    assert front >= gateways.metric_names()
    text = " ".join(query.expression for query in gpu_queries(POD))
    assert set(re.findall(r"DCGM_\w+", text)) == set(gpus.metric_names())


def test_parentheses_and_quotes_are_balanced():
    texts = [query.expression for engine in ENGINES.values() for query in engine_queries(engine, TARGET, 90)]
    texts += [query.expression for query in gpu_queries(gpus.POD_LABELS[0])]
    texts += [convention_query(ENGINES.values()), front_waiting_query(), front_arrivals_query(60)]
    texts += [devices_query(POD), seen_engines_query(ENGINES.values(), POD)]
    for text in texts:
        assert text.count("(") == text.count(")")
        assert text.count('"') % 2 == 0
        assert len(text) < 16_000  # VictoriaMetrics refuses queries of more than 16 KiB


def test_the_window_of_quantiles_is_that_of_the_settings():
    ttft = next(query for query in engine_queries(ENGINES["vllm"], POD, 37.5) if query.column == "ttft_s")
    assert "[37500ms]" in ttft.expression


@pytest.mark.parametrize(
    ("found", "engine", "gpu"),
    [
        ([], POD, None),
        (["engine/pod", "engine/instance"], POD, None),
        (["engine/pod", "engine/exported_pod"], POD, None),
        (["engine/exported_pod", "engine/instance"], EXPORTED, None),
        (["engine/instance"], TARGET, None),
        (["gpu/pod", "gpu/exported_pod"], POD, ("exported_namespace", "exported_pod")),
        (["gpu/pod", "gpu/pod_name"], POD, ("pod_namespace", "pod_name")),
        (["gpu/pod"], POD, ("namespace", "pod")),
        (["gpu/nonsense", "", "clock"], POD, None),
    ],
)
def test_the_first_label_convention_that_exists_decides_for_the_backend(found, engine, gpu):
    assert read_conventions(found) == (engine, gpu)
