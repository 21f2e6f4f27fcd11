"""Measure a report over services x days: CPU time, memory and queries, without the server's own time.

    python bench/micro/report.py [--services 200] [--days 14] [--step 180] [--rules] [--json]

With `--rules` each service has a ScaledObject, half of them by the queue and half by the quantile of a latency.

A stand-in answers range queries with a generated history, in the format of Prometheus' API, from a process of its own.
It exists because filling a real server with 14 days of 600 pods takes an hour. The small histories of the tests are in
real servers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import urllib.parse
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from autoscaler.app.report import make_report
from autoscaler.app.report_reading import ReportOptions
from autoscaler.config.settings import PrometheusSettings
from autoscaler.report.document import to_json
from autoscaler.report.verdict import judge, sentence
from bench.micro.result import machine, show

DAY_S = 86_400.0
PODS = 3
WORK_S, GAP_S, PROMPT, OUTPUT = 0.0557, 0.01, 600.0, 200.0


class StandIn(BaseHTTPRequestHandler):
    """Answers range queries by what their expression names."""

    services = 200
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        given = urllib.parse.parse_qs(self.rfile.read(length).decode() or urllib.parse.urlsplit(self.path).query)
        if "query_range" in self.path:
            start, end, step = (float(given[name][0]) for name in ("start", "end", "step"))
            result = self._result(given["query"][0], np.arange(start, end + 0.5, step), step)
            kind = "matrix"
        else:
            result, kind = [], "vector"
        body = json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass

    def _result(self, query: str, times: np.ndarray, step_s: float) -> list[object]:
        if "engine/pod" in query:
            found = ({"metric": "engine/pod"}, {"metric": "spelled/:"}, {"metric": "clock"})
            return [{"metric": labels, "values": _pairs(times, np.ones(len(times)))} for labels in found]
        if "count_over_time" in query:
            return [{"metric": {}, "values": _pairs(times, np.full(len(times), 40.0))}]
        if query.startswith("topk(1000"):
            of_each = _pairs(times, np.full(len(times), self.services / 20))
            return [{"metric": {"namespace": f"team-{number}"}, "values": of_each} for number in range(20)]
        if "topk" in query:
            return [
                {"metric": {"le": le}, "values": _pairs(times, np.full(len(times), 600.0))}
                for le in ("0.5", "1.0", "2.5", "10.0", "+Inf")
            ]
        if '"vllm"' in query and "group" not in query:
            return [{"metric": {"metric": "vllm"}, "values": _pairs(times, np.full(len(times), 600.0))}]
        if "group" not in query or "kube_" in query or "DCGM" in query:
            return []
        return [
            {
                "metric": {"namespace": f"team-{number % 20}", "group": f"service-{number}"},
                "values": _pairs(times, values),
            }
            for number in range(self.services)
            if (values := _values(query, number, times, step_s)) is not None
        ]


def _values(query: str, number: int, times: np.ndarray, step_s: float) -> np.ndarray | None:
    rng = np.random.default_rng(number)
    low, high, peak = rng.uniform(0.2, 4), rng.uniform(5, 45), rng.uniform(0, 24)
    rate = low + (high - low) * (0.5 + 0.5 * np.cos((times / 3600 - peak) / 12 * np.pi))
    served, busy = rate * step_s, np.minimum(rate * WORK_S / PODS, 0.95)
    gap_s = GAP_S / (1 - busy)
    by_name = (
        ("last_over_time", np.full(len(times), float(PODS))),
        ("requests_running", rate * OUTPUT * gap_s),
        ("requests_waiting", np.zeros(len(times))),
        ("cache_usage", busy / 2),
        ("first_token_seconds_count", served),
        ("first_token_seconds_bucket", served * 0.998),
        ("request_success", served),
        ("prompt_tokens", served * PROMPT),
        ("generation_tokens", served * OUTPUT),
        ("inter_token_latency_seconds_sum", served * OUTPUT * gap_s),
        ("inter_token_latency_seconds_count", served * OUTPUT),
        ("request_time_per_output_token_seconds_count", served),
        ("request_time_per_output_token_seconds_bucket", served * 0.999),
    )
    return next((values for name, values in by_name if name in query), None)


def _pairs(times: np.ndarray, values: np.ndarray) -> list[list[object]]:
    return [[at_s, f"{value:.6g}"] for at_s, value in zip(times.tolist(), values.tolist(), strict=True)]


def serve(stand_in: type[StandIn], services: int, port: multiprocessing.Queue[int]) -> None:
    stand_in.services = services
    server = ThreadingHTTPServer(("127.0.0.1", 0), stand_in)
    port.put(server.server_address[1])
    server.serve_forever()


RULE = """\
kind: ScaledObject
metadata: {{name: rule-{number}, namespace: team-{team}}}
spec:
  scaleTargetRef: {{name: service-{number}}}
  minReplicaCount: 1
  maxReplicaCount: 10
  triggers: [{{type: prometheus, metadata: {{query: '{query}', threshold: "{threshold}"}}}}]
"""
QUEUE = 'sum(vllm:num_requests_waiting{model_name="m"})'
LATENCY = 'histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="m"}[2m])))'


def rules_of(services: int) -> str:
    """Return a scaling rule for each service."""
    kinds = ((QUEUE, 5), (LATENCY, 2))
    texts = [
        RULE.format(number=number, team=number % 20, query=kinds[number % 2][0], threshold=kinds[number % 2][1])
        for number in range(services)
    ]
    return "---\n".join(texts)


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the size of the history."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--step", type=float, help="Seconds; default: as the command chooses.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    return parser


def start_server(options: argparse.Namespace, stand_in: type[StandIn]) -> tuple[multiprocessing.Process, ReportOptions]:
    """Start a process that answers, and return it with what is asked of it."""
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=serve, args=(stand_in, options.services, port), daemon=True)
    process.start()
    settings = PrometheusSettings(url=f"http://127.0.0.1:{port.get()}", timeout_s=60)
    asked = ReportOptions(settings, options.days * DAY_S, (), "interactive", (), {}, options.step, None, None, None)
    return process, asked


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rules", action="store_true", help="Evaluate a scaling rule of each service, too.")
    options = parser.parse_args()
    process, asked = start_server(options, StandIn)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(rules_of(options.services))
        file.flush()
        began_s, cpu_s = time.monotonic(), time.process_time()
        made = make_report(replace(asked, against=(Path(file.name),) * options.rules), Console(stderr=True))
        computed_s, whole_s = time.process_time() - cpu_s, time.monotonic() - began_s
    document = to_json(made)
    process.terminate()
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show(
        {
            "machine": machine(),
            "services": options.services,
            "days": options.days,
            "step_s": made.step_s,
            "rules": options.rules,
            "cpu_s": round(computed_s, 2),
            "wall_s": round(whole_s, 2),
            "peak_mib": round(memory_mib),
            "document_kib": round(len(document) / 1024),
            "rules_gpu_hours": round(float(made.entries[-1].outcome.gpu_hours.sum())) if options.rules else None,
            "verdict": sentence(judge(made)),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
