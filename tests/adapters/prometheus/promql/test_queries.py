"""The number of queries and their content. Tests on real servers check their meaning."""

import re
from dataclasses import fields

import pytest

from autoscaler.adapters.prometheus.discovery.kube_state import controllers_query, pods_query
from autoscaler.adapters.prometheus.promql.conventions import (
    Conventions,
    convention_query,
    read_conventions,
    spellings_query,
)
from autoscaler.adapters.prometheus.promql.engines import (
    bounds_query,
    bucket_expression,
    engine_presence,
    engine_queries,
    models_query,
    process_start_query,
    reporting_pods_query,
)
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.gateways import gateway_arrivals_query, gateway_queue_query
from autoscaler.adapters.prometheus.promql.gpus import devices_query, gpu_queries
from autoscaler.adapters.prometheus.promql.labels import POD, TARGET
from autoscaler.adapters.prometheus.promql.sources import cadence_query, source_times_query, sparse_query
from autoscaler.adapters.prometheus.range.queries import (
    latency_query,
    naming_query,
    restrict_to_pods,
    sampled_query,
    series_query,
    subtracted_query,
)
from autoscaler.catalog import gateways, gpus
from autoscaler.catalog.engines import ENGINES, WITHIN
from autoscaler.catalog.series import POD_LABELS
from autoscaler.catalog.spellings import PLAIN, Spelling, all_spellings, engines_spelled
from autoscaler.core.model.samples import PodSamples

TOGETHER = QuantileQuery(120, POD_LABELS)
COLUMNS = {field.name for field in fields(PodSamples)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_each_column_takes_one_query_and_the_time_one_more(engine):
    queries = engine_queries(engine, POD, TOGETHER)
    assert sorted(query.column for query in queries) == sorted({*engine.readings, "time_s"} - WITHIN.keys())
    assert {query.column for query in queries} <= COLUMNS


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("spellings", [(PLAIN,), (Spelling("kserve_", "_"), Spelling("x:"))], ids=["plain", "others"])
def test_every_name_is_queried_in_every_spelling(name: str, spellings: tuple[Spelling, ...]):
    engine = engines_spelled(spellings)[name]
    text = " ".join(query.expression for query in engine_queries(engine, POD, TOGETHER))
    for rows in (engine.readings[column] for column in WITHIN.keys() & engine.readings.keys()):
        text += bounds_query(rows, 256) + bucket_expression(rows, ("1", "1.0"), POD)
    names = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text))
    for row in ENGINES[name].series():
        for spelled in (spelling.name(row.name) for spelling in spellings):
            assert {spelled, f"{spelled}_bucket"} & names


def test_every_name_of_gateways_and_gpus_is_queried():
    front = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", gateway_queue_query() + gateway_arrivals_query()))
    assert front >= gateways.metric_names()
    text = " ".join(query.expression for query in gpu_queries(POD))
    assert set(re.findall(r"DCGM_\w+", text)) == set(gpus.metric_names())


def every_query() -> list[str]:
    """Return the text of each kind of query that is ever queried."""
    spellings = Spelling("kserve_"), Spelling("ray_", "_"), PLAIN  # more than one backend has
    engines, pods = engines_spelled(spellings).values(), ("a-[0-9]+", "a-[a-z]+")
    apart = ("instance", "prometheus_replica", "node_name", "container_id")
    texts = [
        query.expression
        for each in engines
        for way in (POD, TARGET)
        for query in engine_queries(each, way, TOGETHER, apart)
    ]
    texts += [
        make(each, way) for make in (source_times_query, cadence_query) for each in engines for way in (POD, TARGET)
    ]
    texts += [sparse_query(each, way, 30) for each in engines for way in (POD, TARGET)]
    texts += [models_query(each, way) for each in engines for way in (POD, TARGET) if each.served_label]
    texts += [process_start_query(each, way).expression for each in engines for way in (POD, TARGET)]
    texts += [bounds_query(each.readings[name], 256) for each in engines for name in WITHIN.keys() & each.readings]
    texts += [query.expression for query in gpu_queries(POD)]
    texts += [
        convention_query(all_spellings(("x_",))),
        spellings_query(all_spellings()),
        gateway_queue_query(),
        gateway_arrivals_query(),
    ]
    texts += [devices_query(), reporting_pods_query(engines)]
    texts += [make(engine_presence(engines), ["gone"]) for make in (pods_query, controllers_query)]
    past = restrict_to_pods(ENGINES["vllm"], ("namespace", "pod"), "llm", pods)
    texts += [subtracted_query(past, "prompt_tokens")]
    texts += [naming_query(ENGINES["vllm"], "llm", pods), sampled_query(past), latency_query(past, "ttft_met", 60)]
    return texts + [series_query(past, column) for column in ("running", "waiting", "finished")]


def test_parentheses_and_quotes_are_balanced():
    for text in every_query():
        assert text.count("(") == text.count(")")
        assert text.count('"') % 2 == 0
        assert len(text) < 16_000  # VictoriaMetrics refuses queries of more than 16 KiB


def without_texts(query: str) -> str:
    return re.sub(r'"[^"]*"', '""', query)


def test_every_selector_has_one_exact_name():
    """Managed backends refuse an expression on `__name__`, and a selector without a name."""
    for text in every_query():
        assert "__name__" not in text
        assert not re.search(r"(^|[^a-zA-Z0-9_:])\{", without_texts(text)), text


def test_the_window_of_quantiles_is_that_of_the_settings():
    ttft = next(
        query
        for query in engine_queries(ENGINES["vllm"], POD, QuantileQuery(37.5, POD_LABELS))
        if query.column == "ttft_s"
    )
    assert "[37500ms]" in ttft.expression


@pytest.mark.parametrize(
    ("found", "conventions"),
    [
        ({}, Conventions()),
        ({"engine/pod": 3, "clock": 1}, Conventions()),
        (
            {"engine/pod": 3, "engine/exported_pod": 1},
            Conventions(pod_labels=(("exported_namespace", "exported_pod"), ("namespace", "pod"))),
        ),
        ({"engine/pod": 3, "engine/instance": 2}, Conventions((POD, TARGET), series_without_pod=2)),
        ({"engine/instance": 2}, Conventions((TARGET,), series_without_pod=2)),
        ({"gpu/pod": 9}, Conventions(gpus=True)),
        (
            {"engine/pod": 3, "spelled/ray__": 1, "spelled/:": 2},
            Conventions(spellings=(PLAIN, Spelling("ray_", "_"))),
        ),
        ({"": 1}, Conventions(series_without_target=1)),
        ({"gpus": 1}, Conventions()),
    ],
    ids=["nothing", "pods", "two ways", "pods and targets", "targets", "GPUs", "spellings", "neither", "nonsense"],
)
def test_every_convention_of_the_backend_is_read(found: dict[str, float], conventions: Conventions):
    assert read_conventions(found) == conventions
