"""Decisions of the whole tick over a while, as counts: a change that only renames or moves leaves them as they are.

python -m tests.regression.recorded                         # compare, and show what differs
python -m tests.regression.recorded --write                 # after decisions were changed on purpose
python -m tests.regression.recorded --traces FOLDER [...]   # the windows of trace files as well
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load, shipped
from autoscaler.config.policy.schema import Policy
from autoscaler.core.model.spec import Spec
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Trace, View
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.inputs import trace_file, transform
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.sim.demo import scenario
from autoscaler.sim.engine.profile_file import find
from bench.studies.shapes import generate
from tests.core.recordings import replay
from tests.lab.replay import synthetic

DATA = Path(__file__).parent.parent / "data" / "decisions"

Counts = list[list[float]]
"""Seconds and the count of each workload from then on, oldest first; a tick that changes none is left out."""


class Window(NamedTuple):
    """A part of a trace file."""

    file: str
    start_h: float
    hours: float = 1.0
    scale: float = 1.0


WINDOWS = {
    "aibrix": Window("aibrix_8min_up_and_down.csv.gz", 0),
    "azure-code-2023": Window("azure2023_code.csv.gz", 0),
    "azure-code-2024-day": Window("azure2024_code_week_requests.csv.gz", 30, 8, 2.0),
    "azure-code-2024-night": Window("azure2024_code_week_requests.csv.gz", 46, 8, 2.0),
    "burstgpt-day": Window("burstgpt_days0-3_requests.csv.gz", 6, 16, 10.0),
    "burstgpt-night": Window("burstgpt_days0-3_requests.csv.gz", 40, 16, 10.0),
    "deepseek-r1": Window("servegen_deepseek-r1_1d_requests.csv.gz", 8, 3, 0.2),
    "m-large-day": Window("servegen_m-large_14d_requests.csv.gz", 32, 8, 3.0),
    "m-large-night": Window("servegen_m-large_14d_requests.csv.gz", 44, 8, 3.0),
    "m-mid-day": Window("servegen_m-mid_week1_requests.csv.gz", 56, 8, 3.0),
    "m-mid-night": Window("servegen_m-mid_week1_requests.csv.gz", 68, 8, 3.0),
    "mooncake": Window("mooncake_conv_30min.csv.gz", 0),
}


class Recorder(PolicyFleetScaler):
    """Keeps what is decided."""

    def __init__(self, cases: Sequence[Case], policies: Sequence[Policy], gpus: float = np.nan) -> None:
        super().__init__(cases, policies, gpus)
        self.counts: Counts = []

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        counts = super().decide_all(views)
        self.counts.append([views[0].now_s, *counts])
        return counts


def changes(counts: Counts) -> Counts:
    """Return the first of each run of equal counts."""
    return [next(run) for _, run in groupby(counts, lambda row: row[1:])]


def of_recording(name: str) -> Counts:
    """Decide on what a real vLLM server said, read every five seconds."""
    row = spec_row(load(()).policies["interactive"].spec)
    spec = Spec(*(np.array([value]) for value in row))
    return changes([[t_s, float(decision.replicas[0])] for t_s, decision in replay(name, spec, every=5)])


def of_demo() -> Counts:
    """Decide for the workloads of the demo on its shared GPUs, from 8 to 9 o'clock; requests are simulated."""
    policies = load((shipped(), scenario.POLICIES)).policies
    cases = []
    for number, workload in enumerate(scenario.demo_scenario(1).workloads):
        day = synthetic.generate(workload.deployment.name, workload.shape, 9 * 3600.0, number)
        cases.append(
            Case(
                transform.clip(day, 8 * 3600.0, 9 * 3600.0),
                workload.deployment.profile,
                goal_from_policy(policies[workload.policy]),
                cold_start_s=90.0,
                gpus_per_replica=workload.deployment.devices,
                start_replicas=max(workload.deployment.replicas, 1),
                scrape_s=5.0,
                seed=number,
            )
        )
    gpus = sum(pool.nodes * pool.devices_per_node for pool in scenario.POOLS)
    recorder = Recorder(cases, [policies[workload.policy] for workload in scenario.demo_scenario(1).workloads], gpus)
    run_fleet(cases, recorder, GpuPool.for_cases(cases, gpus))
    return changes(recorder.counts)


def of_trace(trace: Trace) -> Counts:
    """Decide on slices of a GPU under the policy `interactive`; a cold start takes four minutes."""
    policy = load(()).policies["interactive"]
    _, replica_spec = find("8b-h100-3g")
    trace, _ = transform.truncate(trace, replica_spec.profile.max_model_len)
    case = with_start_replicas(
        Case(trace, replica_spec.profile, goal_from_policy(policy), 240.0, gpus_per_replica=replica_spec.gpus)
    )
    recorder = Recorder([case], [policy])
    run_fleet([case], recorder)
    return changes(recorder.counts)


def of_window(window: Window, folder: Path) -> Counts:
    """Decide on a part of a trace file."""
    (trace,) = trace_file.load(folder / window.file)
    start_s = window.start_h * 3600
    part = transform.clip(trace, start_s, min(start_s + window.hours * 3600, trace.duration_s))
    return of_trace(transform.scale(part, window.scale, 1))


STORIES: Mapping[str, Callable[[], Counts]] = {
    "recording-load": partial(of_recording, "load"),
    "recording-kv-bound": partial(of_recording, "kv-bound"),
    "demo": of_demo,
    "season": lambda: of_trace(generate("season", 1, 6.0)),
}


def path(name: str) -> Path:
    return DATA / f"{name}.json"


def expected(name: str) -> Counts:
    counts: Counts = json.loads(path(name).read_text())
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep what is decided now")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="trace files, for the windows of them")
    given = parser.parse_args()
    stories = dict(STORIES)
    if given.traces:
        stories |= {name: partial(of_window, window, given.traces) for name, window in WINDOWS.items()}
    different = 0
    for name, story in stories.items():
        counts = story()
        if given.write:
            path(name).write_text("[" + ",\n ".join(map(json.dumps, counts)) + "]\n")
        same = expected(name) == counts
        different += not same
        print(f"{name}: {len(counts)} changes, {'the same' if same else 'different'}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
