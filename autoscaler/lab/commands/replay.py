"""`replay`: a policy proved on a workload's own history, from Prometheus or from recorded ticks."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from autoscaler.adapters.prometheus.range.history import PrometheusHistory
from autoscaler.config.settings import PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.core.model.history import Past
from autoscaler.lab.commands.compare import begun, case_of, check_learned, check_longer, finish, proved
from autoscaler.lab.commands.setup import Setting, baselines, check_outputs, policy_of
from autoscaler.lab.compare.result import ACTUAL, RECORDED, Run
from autoscaler.lab.compare.run_result import play
from autoscaler.lab.compare.workload_trace import Subject, check_goal
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.from_history import Recorded, as_row, as_timeline, replicas, to_trace
from autoscaler.lab.replay.from_ticks import read as read_ticks
from autoscaler.lab.report.progress import Bar
from autoscaler.sim.engine import profile_file


def replay(
    setting: Setting,
    settings: PrometheusSettings,
    workload: tuple[str, str],
    interval: tuple[float, float],
    step_s: float,
) -> int:
    """Prove the policy on a workload's own history from Prometheus."""
    tls = settings.tls
    check_outputs(setting, settings.token_file, settings.password_file, tls.ca, tls.cert, tls.key)
    _usable(setting)
    namespace, name = workload
    start_s, end_s = interval
    if setting.learn_s:
        check_longer(f"{namespace}/{name}", round(end_s - start_s), setting.learn_s)
    console = Console(stderr=True)
    with Bar(f"reading {namespace}/{name}", console) as told:
        reading = PrometheusHistory(settings).read(namespace, name, start_s, end_s, step_s=step_s, progress=told)
        past = asyncio.run(reading)  # this alone: within a loop, Ctrl-C would wait for what computes
    return replay_past(setting, past, f"{namespace}/{name}")


def replay_ticks(setting: Setting, file: Path, workload: tuple[str, str], interval: tuple[float | None, float]) -> int:
    """Prove the policy on a workload's own history from recorded ticks."""
    check_outputs(setting, file)
    _usable(setting)
    name = "/".join(workload)
    start_s, end_s = interval
    with Bar(f"reading {file.name}", Console(stderr=True)) as told:
        past = read_ticks(file, name, -math.inf if start_s is None else start_s, end_s, told)
    return replay_past(setting, past, name)


def replay_past(setting: Setting, past: Past, name: str) -> int:
    """Show what happened, and what each policy would have done."""
    against = baselines(setting.against)
    profile_name, offer = profile_file.find(setting.profile)
    policy = policy_of(setting.policies)
    notes = [f"history: {problem}" for problem in past.problems]
    notes.append(
        "requests are reconstructed from counters: arrivals within each step, lengths around the mean of their time"
    )
    trace = to_trace(past, name, setting.seed)
    case, shortened = case_of(setting, offer, policy, trace)
    notes += shortened
    if setting.learn_s:
        check_learned(name, [case], setting.learn_s)
    counted = past.since(setting.learn_s)
    if not len(counted.pods):
        raise ValueError(
            f"{name}: --learn is {show_duration(setting.learn_s)}; it must be a whole step of "
            f"{show_duration(past.step_s)} shorter than the history, {show_duration(past.duration_s)}"
        )
    subject = Subject(name, profile_name, (case,), policy, notes=tuple(notes))
    console = Console(stderr=True)
    with Bar("preparing", console) as told:
        subject = begun(setting, subject, told)
    (case,) = subject.cases
    with Bar(f"replaying {name}", console) as told:
        proof = proved(setting, subject, against, told)
        there = replicas(past)  # whatever the policy allows
        same = replace(case, start_replicas=int(there[0]), max_replicas=max(case.max_replicas, int(there.max())))
        recorded = play(same, Recorded(past, case.cold_start_s))
    actual = as_row(counted, case.goal, offer.gpus, setting.cold_start_s)
    runs = (
        *proof.runs,
        Run(ACTUAL, False, {}, actual, as_timeline(counted)),
        Run(RECORDED, False, {}, recorded.row, recorded.timeline),
    )
    proof = replace(proof, runs=runs)
    finish(setting, [proof])
    return 0


def _usable(setting: Setting) -> None:
    """Look at what needs no history before it is read, which may take minutes: raise what a replay would."""
    baselines(setting.against)
    _, offer = profile_file.find(setting.profile)
    none = np.zeros(0, np.int64)
    case, _ = case_of(
        replace(setting, learn_s=0.0),
        offer,
        policy_of(setting.policies),
        Trace("nothing", none.astype(np.float64), none, none, 1.0),
    )
    check_goal(case)
