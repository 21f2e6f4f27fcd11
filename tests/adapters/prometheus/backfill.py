"""Writes the metrics of a simulated run into a real server, as if it had scraped them."""

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autoscaler.lab.replay.case import Case, ReplicaRows, RunOutcome, Scaler, Totals, View
from autoscaler.lab.replay.engine.state import GAP_BOUNDS, TTFT_BOUNDS
from autoscaler.lab.replay.run import run
from tests.harness.process import require_binary

SAFE = "bcdfghjklmnpqrstvwxz2456789"
NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "finished": "vllm:request_success_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "gap_s": "vllm:inter_token_latency_seconds_sum",
    "gaps": "vllm:inter_token_latency_seconds_count",
}


@dataclass(frozen=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    time_s: float
    value: float

    def line(self, scale: float) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value!r} {self.time_s * scale:.3f}"


@dataclass
class Witness:
    """A scaler that lets another decide and keeps what each scrape showed."""

    other: Scaler
    period_s: float = 15.0
    name: str = "witness"
    pods: list[ReplicaRows] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)

    def decide(self, view: View) -> int:
        self.pods.append(view.pods)
        self.totals.append(view.totals)
        return self.other.decide(view)


def witnessed(case: Case, scaler: Scaler) -> tuple[Witness, RunOutcome]:
    witness = Witness(scaler)
    return witness, run(case, witness)


def pod_name(workload: str, number: int) -> str:
    suffix = "".join(SAFE[number // len(SAFE) ** place % len(SAFE)] for place in range(5))
    return f"{workload}-7d9f8b6c5-{suffix}"


def request_gaps(
    witness: Witness, case: Case, outcome: RunOutcome, start_s: float, namespace: str, workload: str
) -> Iterable[Sample]:
    """Yield the histogram of the mean gap of each request, which an engine has from 0.11 on, on the first pod."""
    labels = {"namespace": namespace, "model_name": "llama", "engine": "0", "instance": "10.0.0.1:8000"}
    labels["pod"] = pod_name(workload, 0)
    end_s = case.trace.arrival_s + outcome.e2e_s
    for totals in witness.totals:
        gaps_s = outcome.itl_s[end_s <= totals.time_s]
        for bound in GAP_BOUNDS.tolist():
            le = "+Inf" if bound == np.inf else repr(bound)
            count = float((gaps_s <= bound).sum())
            name = "vllm:request_time_per_output_token_seconds_bucket"
            yield Sample(name, {**labels, "le": le}, start_s + totals.time_s, count)


def samples(witness: Witness, start_s: float, namespace: str, workload: str) -> Iterable[Sample]:
    """Yield what was scraped, at the times of scraping; the histograms of all pods stand on the first one."""
    model = {"namespace": namespace, "model_name": "llama", "engine": "0", "instance": "10.0.0.1:8000"}
    for rows, totals in zip(witness.pods, witness.totals, strict=True):
        for row in np.flatnonzero(~np.isnan(rows.time_s)).tolist():
            labels = {**model, "pod": pod_name(workload, int(rows.id[row]))}
            for column, name in NAMES.items():
                yield Sample(name, labels, start_s + rows.time_s[row], float(getattr(rows, column)[row]))
        first = {**model, "pod": pod_name(workload, 0)}
        for name, bounds, counts in (
            ("vllm:time_to_first_token_seconds", TTFT_BOUNDS, totals.latencies["ttft"].counts),
            ("vllm:inter_token_latency_seconds", GAP_BOUNDS, totals.latencies["itl"].counts),
        ):
            for bound, count in zip(bounds.tolist(), counts.tolist(), strict=True):
                le = "+Inf" if bound == np.inf else repr(bound)
                yield Sample(f"{name}_bucket", {**first, "le": le}, start_s + totals.time_s, count)


def open_metrics(given: Iterable[Sample]) -> str:
    """Return OpenMetrics text: all samples of one metric family together, as the format requires."""
    families: dict[str, list[str]] = {}
    for sample in given:
        families.setdefault(sample.name, []).append(sample.line(1.0))
    split_learning = [f"# TYPE {name} unknown\n" + "\n".join(lines) for name, lines in families.items()]
    return "\n".join([*split_learning, "# EOF", ""])


def blocks(directory: Path, given: Sequence[Sample]) -> Callable[[Path], None]:
    """Return a function that puts the samples into the storage folder of a Prometheus that has not started yet."""
    file = directory / "history.om"
    file.write_text(open_metrics(given))

    def fill(storage: Path) -> None:
        promtool = require_binary("promtool", "apt-get install prometheus")
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=24h", file, storage]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    return fill


def import_lines(given: Iterable[Sample]) -> bytes:
    """Return the body of VictoriaMetrics' /api/v1/import/prometheus: times in milliseconds."""
    return "\n".join(sample.line(1000.0) for sample in given).encode()
