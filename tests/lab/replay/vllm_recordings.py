"""Two recorded runs of the real server, and the compiled engine model with the same requests."""

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.engine import kernel
from autoscaler.lab.replay.engine.state import EngineParams, EngineState, empty_gateway
from autoscaler.lab.replay.inputs.recording import Recording, read
from autoscaler.sim.engine.profiles import Profile

RECORDED = Path(__file__).parents[2] / "data" / "vllm"
SLOTS = {"load": 4, "kv-bound": 16}  # --max-num-seqs of the recorded servers


@dataclass(frozen=True)
class Curves:
    """One row per scrape, and one TTFT per request."""

    running: FloatColumn
    waiting: FloatColumn
    kv_usage: FloatColumn
    generation_tokens: FloatColumn
    ttft_s: FloatColumn
    preemptions: float


def recording(name: str) -> Recording:
    return read(RECORDED / f"{name}-timeseries.jsonl.gz")


def real(name: str) -> Curves:
    seen = recording(name)
    ttft_s = np.array([client["ttft"] for client in _clients(name)])
    return Curves(
        seen.running, seen.waiting, seen.kv_usage, seen.generation_tokens, ttft_s, float(seen.preemptions[-1])
    )


def simulated(name: str, profile: Profile, prompt_tokens: IntColumn | None = None) -> Curves:
    """Replay the clients of a recording. Single prompt lengths are not recorded; None gives each the mean."""
    profile = replace(profile, max_num_seqs=SLOTS[name])
    seen, clients = recording(name), _clients(name)
    if prompt_tokens is None:
        prompt_tokens = np.full(len(clients), round(seen.prompt_tokens[-1] / seen.first_tokens[-1]))
    trace = Trace(
        name,
        np.array([client["t"] for client in clients]),
        prompt_tokens,
        np.array([int(client["tokens"]) for client in clients]),
        float(seen.time_s[-1]) + 1,
    )
    state, engine, gateway, row = (
        EngineState.create(trace, profile.max_num_seqs, 1),
        EngineParams.from_profile(profile),
        empty_gateway(),
        np.zeros(1, np.int64),
    )
    state.start_replica(0, 0.0)
    rows = []
    for at_s in seen.time_s:
        kernel.arrive(state, (engine,), gateway, row, at_s, True)
        kernel.advance(state, engine, 0, at_s)
        it = state.replicas[0]
        running = it["decoding"] + it["prefilling"]
        tokens = it["decode_tokens"] + it["prefill_tokens"] + running * engine.spare_tokens
        usage = min(tokens / profile.kv_capacity_tokens, 1.0)
        rows.append((running, it["waiting"] + it["preempted"], usage, it["generation_tokens"]))
    columns = np.array(rows, dtype=np.float64).T
    ttft_s = state.requests["first_s"] - trace.arrival_s
    return Curves(*columns, ttft_s=ttft_s, preemptions=float(state.replicas[0]["preemptions"]))


def prompts(name: str) -> IntColumn:
    """Return the prompt tokens of each client: the mean over clients with a first token between the same scrapes."""
    seen, clients = recording(name), _clients(name)
    order = np.argsort([client["t"] + client["ttft"] for client in clients])
    sizes = np.diff(seen.first_tokens).astype(np.int64)
    means = np.diff(seen.prompt_tokens)[sizes > 0] / sizes[sizes > 0]
    found = np.zeros(len(clients), np.int64)
    found[order] = np.repeat(means.round(), sizes[sizes > 0])
    return found


class Errors(NamedTuple):
    """Statistics of |replayed - recorded| / recorded, where the recorded value is above 0."""

    median: float
    mean: float
    p90: float


def errors(recorded: FloatColumn, replayed: FloatColumn) -> Errors:
    known = recorded > 0
    error = np.abs(replayed[known] - recorded[known]) / recorded[known]
    return Errors(float(np.median(error)), float(error.mean()), float(np.quantile(error, 0.9)))


def rates(tokens: FloatColumn, window: int) -> FloatColumn:
    """Return the tokens of the `window` seconds before each scrape; scrapes are one second apart."""
    return tokens[window:] - tokens[:-window]


def _clients(name: str) -> list[dict[str, float]]:
    with (RECORDED / f"{name}-clients.jsonl").open() as file:
        return sorted((json.loads(line) for line in file), key=lambda client: float(client["t"]))


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path
