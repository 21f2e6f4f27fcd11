"""A generated history of services whose truth is known: a plain fluid model, sampled as Prometheus would scrape it."""

import math
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.harness.process import require_binary
from tests.harness.promql import PromqlServer, running

SAFE = "bcdfghjklmnpqrstvwxz2456789"
GAP_S, PROMPT_S, OUTPUT_S = 0.010, 62.5e-6, 91e-6
PROMPT, OUTPUT = 600.0, 200.0
WORK_S = PROMPT * PROMPT_S + OUTPUT * OUTPUT_S
"""Busy replica-seconds of a request."""

LIMIT_S = 0.8
"""Longest wait with which the first token comes in a second."""

STEEPNESS = 0.004
MAX_BUSY = 0.95
HOUR_S = 3600.0
FREE = "DCGM_FI_DEV_FB_FREE"
DECODE = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.92,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.08,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.71,
}
REQUEST = "vllm:e2e_request_latency_seconds"
STAYS = {"2.0": 0.5, "5.0": 0.9, "10.0": 0.99, "30.0": 1.0, "+Inf": 1.0}
"""Share of the requests that stay for at most this many seconds."""

TTFT, WAITING = "vllm:time_to_first_token_seconds", "vllm:num_requests_waiting"


@dataclass
class Service:
    """A service: its traffic, and the count that somebody chose."""

    name: str
    rate: Callable[[float], float]  # requests per second, at a Unix time
    count: Callable[[float], int]  # replicas that serve
    namespace: str = "team"
    labels: dict[str, str] = field(default_factory=dict)
    gpus: int = 1
    silent: Callable[[float], bool] = lambda _: False  # nothing was scraped
    start_s: float = 0.0  # from the creation of a pod until it is ready; 0: nothing tells
    is_profiled: bool = False  # DCGM shows its activity: that of decode while a request runs, else none
    team: str = ""  # label of its Deployment in kube-state-metrics
    restarts_s: tuple[float, ...] = ()  # Unix times at which all counters begin at 0


@dataclass
class Truth:
    """What happened to a service, by the generator's own arithmetic."""

    replica_h: float = 0.0
    requests: float = 0.0
    missed: float = 0.0
    breach_min: float = 0.0
    peak_demand: float = 0.0
    changes: int = 0
    started: int = 0
    missed_by_hour: dict[int, float] = field(default_factory=dict)
    asked_by_hour: dict[int, float] = field(default_factory=dict)

    @property
    def attainment(self) -> float:
        return 1 - self.missed / self.requests


def pod_name(service: str, number: int) -> str:
    suffix = "".join(SAFE[number // len(SAFE) ** place % len(SAFE)] for place in range(5))
    return f"{service}-7d9f8b6c5-{suffix}"


def day(low: float, high: float, peak_hour: float = 14.0) -> Callable[[float], float]:
    """Return a rate that follows the day between two values."""
    return lambda at_s: low + (high - low) * (0.5 + 0.5 * math.cos((at_s / HOUR_S - peak_hour) / 12 * math.pi))


class _Model:
    """The fluid model of one service, step by step."""

    def __init__(self, service: Service) -> None:
        self.service, self.truth = service, Truth()
        self.backlog, self._count = 0.0, -1

    def serve(self, at_s: float, step_s: float) -> tuple[int, float, float]:
        """Serve a step; return the replicas, the requests that each served, and the share of requests that missed."""
        service, truth = self.service, self.truth
        count, arrivals = service.count(at_s), service.rate(at_s) * step_s
        demand, before = service.rate(at_s) * WORK_S, self.backlog
        carried = max(0.93 * count, count - 0.16 * math.sqrt(count))
        self.backlog = max(before + (demand - carried) * step_s, 0.0)
        most, low, high = LIMIT_S * carried, min(before, self.backlog), max(before, self.backlog)
        queued = min(max((high - most) / (high - low), 0), 1) if high > low else float(high > most)
        x = min(demand / count, 0.93) if count else 0.93
        share = queued + (1 - queued) * STEEPNESS * x * x / (1 - x) if count else 1.0
        served = min(demand + before / step_s, carried) / WORK_S * step_s
        if not service.silent(at_s):
            hour = int(at_s // HOUR_S)
            truth.replica_h += count * step_s / HOUR_S
            truth.requests += arrivals
            truth.missed += arrivals * share
            truth.breach_min += step_s / 60 * (arrivals > 0 and share > 0.01)
            truth.peak_demand = max(truth.peak_demand, demand)
            truth.missed_by_hour[hour] = truth.missed_by_hour.get(hour, 0) + arrivals * share
            truth.asked_by_hour[hour] = truth.asked_by_hour.get(hour, 0) + arrivals
            truth.changes += self._count not in (-1, count)
            truth.started += max(count - self._count, 0) if self._count >= 0 else 0
            self._count = count
        return count, served / max(count, 1), share


def generate(service: Service, start_s: float, end_s: float, scrape_s: float) -> tuple[Truth, dict[str, list[str]]]:
    """Return the truth, and the lines of OpenMetrics text by metric family."""
    model, lines = _Model(service), {}
    counters: dict[int, dict[str, float]] = {}
    for at_s in np.arange(start_s, end_s, scrape_s).tolist():
        count, part, share = model.serve(at_s, scrape_s)
        if any(at_s - scrape_s < each <= at_s for each in service.restarts_s):
            counters = {}
        counters = {number: own for number, own in counters.items() if number < count}
        for number in range(count):
            own = counters.setdefault(number, {})
            samples = _scrape(own, part, share, scrape_s) | {WAITING: model.backlog / WORK_S / count}
            if not service.silent(at_s + scrape_s):
                for line in _lines(service, number, samples, at_s + scrape_s):
                    lines.setdefault(re.split(r"[{ ]", line, maxsplit=1)[0], []).append(line)
    return model.truth, lines


def _scrape(own: dict[str, float], part: float, share: float, scrape_s: float) -> dict[str, float]:
    """Let one pod serve some requests; return its samples. own: its counters, which grow."""
    gap_s = GAP_S / (1 - min(part * WORK_S / scrape_s, MAX_BUSY))
    grown = {
        "vllm:request_success_total": part,
        TTFT + "_count": part,
        "vllm:prompt_tokens_total": part * PROMPT,
        "vllm:generation_tokens_total": part * OUTPUT,
        "vllm:inter_token_latency_seconds_sum": part * OUTPUT * gap_s,
        "vllm:inter_token_latency_seconds_count": part * OUTPUT,
        TTFT + '_bucket{le="1.0"}': part * (1 - share),
        TTFT + '_bucket{le="10.0"}': part,
        TTFT + '_bucket{le="+Inf"}': part,
        **{f'{REQUEST}_bucket{{le="{le}"}}': part * within for le, within in STAYS.items()},
    }
    for name, value in grown.items():
        own[name] = own.get(name, 0.0) + value
    running = part / scrape_s * (PROMPT * PROMPT_S + OUTPUT * gap_s)
    return {**own, "vllm:num_requests_running": running, "vllm:kv_cache_usage_perc": 0.0}


def _lines(service: Service, number: int, samples: dict[str, float], at_s: float) -> Iterator[str]:
    pod = {"namespace": service.namespace, "pod": pod_name(service.name, number), **service.labels}
    text = ",".join(f'{key}="{each}"' for key, each in pod.items())
    for name, value in samples.items():
        metric, _, bucket = name.partition("{")
        more = f"{bucket[:-1]}," if bucket else ""
        where = f'{{{more}{text},model_name="m",job="vllm",instance="10.0.0.{number}:8000"}}'
        yield f"{metric}{where} {value:.10g} {at_s:.3f}"
    if service.start_s:  # from kube-state-metrics
        created_s = at_s - at_s % 86_400
        yield f"kube_pod_created{{{text}}} {created_s:.10g} {at_s:.3f}"
        yield f"kube_pod_status_ready_time{{{text}}} {created_s + service.start_s:.10g} {at_s:.3f}"
    for gpu in range(service.gpus):
        device = f'UUID="{pod["pod"]}-{gpu}",modelName="NVIDIA-L4"'
        yield f"DCGM_FI_DEV_FB_USED{{{text},{device}}} 20000 {at_s:.3f}"
        if service.is_profiled:
            decodes = samples["vllm:num_requests_running"] > 0
            shown = {**DECODE, FREE: 2000.0} if decodes else dict.fromkeys(DECODE, 0.0) | {FREE: 2000.0}
            yield from (f"{name}{{{text},{device}}} {value} {at_s:.3f}" for name, value in shown.items())
    if service.team and number == 0:
        deployment = f'namespace="{service.namespace}",deployment="{service.name}",label_team="{service.team}"'
        yield f"kube_deployment_labels{{{deployment}}} 1 {at_s:.3f}"


def merged(parts: Iterator[dict[str, list[str]]]) -> str:
    """Return OpenMetrics text: all samples of a family together, as the format requires."""
    families: dict[str, list[str]] = {}
    for part in parts:
        for name, lines in part.items():
            families.setdefault(name, []).extend(lines)
    return "\n".join([*(f"# TYPE {name} unknown\n" + "\n".join(each) for name, each in families.items()), "# EOF", ""])


def filled_prometheus(directory: Path, text: str) -> AbstractAsyncContextManager[PromqlServer]:
    """Run a Prometheus that holds these samples."""
    binary = require_binary("prometheus", "apt-get install prometheus")
    promtool = require_binary("promtool", "apt-get install prometheus")
    file = directory / "history.om"
    file.write_text(text)

    def command(address: str, config: Path, storage: Path) -> list[str | Path]:
        fill = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=24h", file, storage]
        subprocess.run(fill, check=True, capture_output=True, timeout=600)
        kept = "--storage.tsdb.retention.time=60d"
        return [
            binary,
            f"--config.file={config}",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={storage}",
            kept,
        ]

    return running("prometheus", command, directory, (), ready_path="/-/ready")


async def fill_victoria_metrics(server: PromqlServer, text: str) -> None:
    """Import the same samples, whose times are then in milliseconds."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    body = "\n".join(f"{sample} {float(at_s) * 1000:.0f}" for sample, at_s in lines).encode()
    await server.load(body, f"last_over_time({lines[-1][0].rpartition(' ')[0]}[1d])")
