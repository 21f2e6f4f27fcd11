"""Replay the metrics of a real vLLM server, second by second, through the project's own reading of metrics text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autoscaler.adapters.scrape import pod_columns
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.catalog.engines import VLLM
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision
from autoscaler.core.table.histogram import HistogramWindow, pooled_quantile
from tests.core.world import Story, fleet

DATA = Path(__file__).parent.parent / "data" / "vllm"
QUANTILE_WINDOW_S = 60.0


def columns(text: str) -> dict[str, float]:
    """Gauges and counters of one body, as columns of PodSamples."""
    return pod_columns.gauges_and_counters(VLLM, parse(text.encode(), pod_columns.sample_names(VLLM)))


class Moment(NamedTuple):
    t_s: float
    columns: dict[str, float]


class Client(NamedTuple):
    """Measurements of one client of the recorded run."""

    t_s: float
    ttft_s: float
    e2e_s: float
    tokens: int


@cache
def series(name: str) -> tuple[Moment, ...]:
    """Return the recorded columns of each second, with latency quantiles over the last minute."""
    moments, windows = [], {"ttft_s": HistogramWindow(), "itl_s": HistogramWindow()}
    with gzip.open(DATA / f"{name}-timeseries.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            read = columns(line["text"])
            exposition = parse(line["text"].encode(), pod_columns.sample_names(VLLM))
            for column, window in windows.items():
                found = pod_columns.histogram(VLLM.readings[column], exposition)
                assert found is not None
                windows[column] = window.push(line["t"], found, QUANTILE_WINDOW_S)
                read[column] = pooled_quantile(0.95, [windows[column]])
            moments.append(Moment(line["t"], read))
    return tuple(moments)


@cache
def clients(name: str) -> tuple[Client, ...]:
    with (DATA / f"{name}-clients.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(Client(row["t"], row["ttft"], row["e2e"], row["tokens"]) for row in rows)


def replay(name: str, rules: Spec, every: int = 1) -> Iterator[tuple[float, Decision]]:
    """Tick through a recorded series as one pod of one workload; every n-th second is read."""
    story, cluster, last_s = Story(rules), fleet([1]), 0.0
    for moment in series(name)[::every]:
        decision = story.tick(cluster, moment.t_s - last_s, **moment.columns)
        last_s = moment.t_s
        yield moment.t_s, decision
