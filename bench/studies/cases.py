"""Cases of a benchmark: traces of a folder or generated ones, windows of them, scaled to a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autoscaler.lab.bounds.lower_bound import compute_lower_bound
from autoscaler.lab.compare.experiment import with_start_replicas
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import trace_file, transform
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from tests.lab.replay import synthetic

CLOSE = 1.15  # accepted ratio of the mean count to the size


def generate_traces() -> list[list[Trace]]:
    """Generate half an hour with a ramp, and one with bursts."""
    lengths = Lengths(600, 0.8, 4000), Lengths(120, 0.8, 1000)
    ramp = Shape(2.0, *lengths, day=(1.0, 7.0) + (1.0,) * 22)
    burst = Shape(1.5, *lengths, bursts=(Bursts(6.0, 90.0, 0.6, 5.0),))
    return [[synthetic.generate(name, shape, 1800.0, seed=11)] for name, shape in (("ramp", ramp), ("bursts", burst))]


def load_traces(folder: Path) -> Iterator[list[Trace]]:
    """Load every trace of a folder, and skip tables without requests. Raises ValueError if there is no trace."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    none = True
    for file in sorted(folder.glob("*.csv*")):
        try:
            loaded = trace_file.load(file)
        except trace_file.TraceError as error:
            if "no column" not in str(error):
                raise
            continue
        none = False
        yield [replace(each, name=each.name.removesuffix("_requests")) for each in loaded]
    if none:
        raise ValueError(f"{folder}: no trace in it, a *.csv or *.csv.gz with {','.join(trace_file.COLUMNS)}")


def clip_window(models: Sequence[Trace], window_s: float, seed: int) -> Sequence[Trace]:
    """Clip the traces of all models to a window that begins at a random request of the seed.

    Models without a request in it are left out; shorter traces stay whole.
    """
    duration_s = min(model.duration_s for model in models)
    starts = np.concatenate([model.arrival_s[model.arrival_s <= duration_s - window_s] for model in models])
    if not len(starts):
        return models
    start_s = float(np.random.default_rng((seed, 2)).choice(starts))
    return transform.clip_all(models, start_s, min(start_s + window_s, duration_s))


def scale_to_size(trace: Trace, size: float, case: Case, most_requests: int) -> Case:
    """Scale a trace until the mean count of the lower bound is about `size`; clip it to `most_requests`."""
    prefill_s, decode_s = request_work_s(case)
    factor = size / max(float((prefill_s + decode_s).sum()) / trace.duration_s, 1e-12)
    for _ in range(2):
        part = trace
        if len(trace.arrival_s) * factor > most_requests:
            kept = max(int(most_requests / factor), 2)
            end_s = float(trace.arrival_s[min(kept, len(trace.arrival_s) - 1)])
            part = transform.clip(trace, 0.0, max(min(end_s, trace.duration_s), 60.0))
        scaled = replace(case, trace=transform.scale(part, factor, case.seed))
        mean = compute_lower_bound(scaled).replica_s / scaled.trace.duration_s
        if 1 / CLOSE <= mean / size <= CLOSE or mean <= 0:
            break
        factor *= size / mean
    return with_start_replicas(scaled)
