"""Recorded metrics of one engine: the columns to which a profile is fitted, read from a file of scrapes.

A file has one JSON object per line, `{"t": seconds, "text": the engine's metrics as exposed}`, plain or gzip. Several
engines behind one port are refused, because their sum would look like one faster engine.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.config.findings import UNREADABLE
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.inputs.files import MOST_BYTES, open_decompressed

MOST_SCRAPES = 1_000_000
MOST_LINE_BYTES = 4_000_000
MOST_VALUE = 1e15  # floats hold every whole number up to it
MOST_CACHE_TOKENS = 10**12

_SERIES = {  # column: sample name
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "generation_tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "finished": "vllm:request_success_total",
    "preemptions": "vllm:num_preemptions_total",
    "steps": "vllm:iteration_tokens_total_count",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
}
_OPTIONAL = {"vllm:prompt_tokens_cached_total"}  # missing in older versions; the cache hits replace it
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total")
_CACHE = "vllm:cache_config_info"
_BUCKET = "vllm:iteration_tokens_total_bucket"


class RecordingError(ValueError):
    """A recording that cannot be used. The message names the file, the line, and what is missing."""


class _ScrapeLine(msgspec.Struct):
    t: float
    text: str


@dataclass(frozen=True)
class Recording:
    """Scrapes of one engine, one per row. Counters are as exposed."""

    time_s: FloatColumn  # float64[T], ascending
    running: FloatColumn  # float64[T]
    waiting: FloatColumn  # float64[T]
    kv_usage: FloatColumn  # float64[T], 0..1
    generation_tokens: FloatColumn  # float64[T], counter
    prompt_tokens: FloatColumn  # float64[T], counter; includes tokens from the prefix cache
    first_tokens: FloatColumn  # float64[T], counter
    finished: FloatColumn  # float64[T], counter
    preemptions: FloatColumn  # float64[T], counter
    steps: FloatColumn  # float64[T], counter of engine steps
    cached_prompt_tokens: FloatColumn  # float64[T], counter; prompt tokens that were not computed
    kv_cache_tokens: int  # size of the cache, as exposed by the engine
    block_size: int
    max_model_len: int
    steps_within_tokens: float | None  # smallest bucket bound that holds all steps, or infinity; None: no buckets


def read(path: Path, progress: Progress = no_progress, most_bytes: int = MOST_BYTES) -> Recording:
    """Read a recording. Raises RecordingError."""
    rows: list[list[float]] = []
    cache: dict[str, str] = {}
    steps_within: float | None = None
    number = size = 0
    try:
        with open_decompressed(path) as (file, share):
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                progress(share())
                where = f"{path}, line {number}"
                if len(line) > MOST_LINE_BYTES or number > MOST_SCRAPES:
                    raise RecordingError(f"{where}: more than {MOST_LINE_BYTES} bytes, or {MOST_SCRAPES} lines")
                size += len(line)
                if size > most_bytes:  # blank lines compress a thousandfold
                    raise RecordingError(f"{where}: more than {most_bytes:,} bytes, the limit")
                if line.isspace():
                    continue
                values, labels, bound = _read_line(line, where)
                if rows and values[0] <= rows[-1][0]:
                    raise RecordingError(f"{where}: t is {values[0]:g}; it must be above that of the previous line")
                rows.append(values)
                cache = cache or labels
                if bound is not None:  # the largest over all lines, since a restart resets the buckets
                    steps_within = max(bound, steps_within or 0.0)
    except EOFError as error:
        raise RecordingError(f"{path}: the gzip data ends early, after line {number}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RecordingError(f"{path}: the gzip data is damaged after line {number}: {error}") from error
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    if not rows:
        raise RecordingError(f"{path}: it contains no scrape")
    tokens, block, longest = _cache_sizes(cache, path)
    columns = dict(zip(("time_s", *_SERIES), np.array(rows).T, strict=True))
    return Recording(
        **columns,
        kv_cache_tokens=tokens,
        block_size=block,
        max_model_len=longest,
        steps_within_tokens=steps_within,
    )


def _read_line(line: bytes, where: str) -> tuple[list[float], dict[str, str], float | None]:
    """Return time and sums of `_SERIES`, the labels of the cache settings, and the bound of all steps."""
    try:
        scrape = msgspec.json.decode(line, type=_ScrapeLine)
    except UNREADABLE as error:
        raise RecordingError(f'{where}: not {{"t": seconds, "text": metrics}}: {error}') from error
    names = tuple(_SERIES.values())
    kept = (text for text in scrape.text.splitlines() if text.startswith((*names, *_HITS, _CACHE, _BUCKET)))
    found: dict[str, list[float]] = {name: [] for name in names}
    hits = dict.fromkeys(_HITS, 0.0)
    labels: dict[str, str] = {}
    buckets: dict[float, float] = {}
    for name, its_labels, value in _samples(kept, where):
        if name in found:
            found[name].append(value)
        elif name in hits:
            hits[name] += value
        elif name == _CACHE:
            labels = its_labels
        elif name == _BUCKET:
            buckets[_bound(its_labels.get("le", ""), where)] = value
    missing = [name for name, values in found.items() if not values and name not in _OPTIONAL]
    if missing:
        raise RecordingError(f"{where}: the metrics lack {', '.join(missing)}")
    engines = len(found[_SERIES["running"]])  # one sample per engine; other series have several
    if engines > 1:
        raise RecordingError(
            f"{where}: {engines} engines; allowed: one (record each engine of a data-parallel server apart)"
        )
    if not found[_SERIES["cached_prompt_tokens"]]:
        local, renamed, external = hits.values()
        found[_SERIES["cached_prompt_tokens"]] = [local or renamed, external]
    sums = [sum(values) for values in found.values()]
    for name, value in zip(("t", *names), (scrape.t, *sums), strict=True):
        if not 0 <= value <= MOST_VALUE:
            raise RecordingError(f"{where}: {name} is {value!s:.40}; it must be a number from 0 to {MOST_VALUE:g}")
    steps = max(buckets.values(), default=0.0)
    within = min((bound for bound, count in buckets.items() if count == steps), default=None) if steps > 0 else None
    return [scrape.t, *sums], labels, within


def _bound(text: str, where: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if not bound >= 0:
        raise RecordingError(f"{where}: {_BUCKET}: le is {text!r:.40}; it must be a number from 0, or +Inf")
    return bound


def _samples(lines: Iterable[str], where: str) -> Iterable[tuple[str, dict[str, str], float]]:
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value
    except ValueError as error:
        raise RecordingError(f"{where}: not Prometheus text: {error}") from error


def _cache_sizes(labels: dict[str, str], path: Path) -> tuple[int, int, int]:
    """Return tokens of the cache, tokens of a block, and tokens of the longest request, from the cache settings.

    The engine exposes how many of the longest requests fit, which gives their length.
    """
    try:
        tokens, block = int(labels["kv_cache_size_tokens"]), int(labels["block_size"])
        fit = float(labels["kv_cache_max_concurrency"])
    except (KeyError, ValueError) as error:
        raise RecordingError(f"{path}: {_CACHE} lacks kv_cache_size_tokens, block_size or a concurrency") from error
    if not 0 < block < tokens <= MOST_CACHE_TOKENS or not 0 < fit <= tokens:
        raise RecordingError(
            f"{path}: {_CACHE} says {f'{tokens} tokens in blocks of {block}':.100}, for {fit:g} of the longest requests"
        )
    return tokens, block, round(min(tokens / fit, tokens))
