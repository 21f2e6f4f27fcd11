"""`simulate`: a policy proved on trace files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from autoscaler.config.policy.schema import Policy
from autoscaler.config.values import show_duration
from autoscaler.lab.commands.compare import begun, case_of, check_learned, finish, proved
from autoscaler.lab.commands.setup import Setting, baselines, check_outputs, policy_of
from autoscaler.lab.compare.workload_trace import Subject, check_goal
from autoscaler.lab.replay import trace as traces
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.files import part_of
from autoscaler.lab.report.progress import Bar
from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import Offer


def simulate(setting: Setting, files: Sequence[Path], scale: float, interval: tuple[float, float]) -> int:
    """Prove the policy on an interval, (0, infinity) for all, of trace files.

    Raises ValueError for what cannot be used, before anything runs.
    """
    check_outputs(setting, *files)
    against = baselines(setting.against)
    name, offer = profile_file.find(setting.profile)
    policy = policy_of(setting.policies)
    if offer.gpus > setting.gpus:
        raise ValueError(
            f"--gpus is {setting.gpus:g}; allowed: at least the {offer.gpus:g} that one replica of {name} takes"
        )
    console = Console(stderr=True)
    with Bar("reading traces", console) as told:
        read = [(file, traces.load(file, part_of(told, number, len(files)))) for number, file in enumerate(files)]
    with Bar("preparing", console) as told:
        titles = _titles(files)
        subjects = [
            _subject(setting, name, offer, policy, file, titles[file], models, scale, interval) for file, models in read
        ]
        for subject in subjects:
            check_goal(*subject.cases)
        subjects = [
            begun(setting, subject, part_of(told, number, len(subjects))) for number, subject in enumerate(subjects)
        ]
    proofs = []
    for subject in subjects:
        with Bar(f"simulating {subject.trace}", console) as told:
            proofs.append(proved(setting, subject, against, told))
        if not setting.outputs:  # then there is nothing to write before it is shown
            finish(setting, [proofs.pop()])
    finish(setting, proofs)
    return 0


def _titles(files: Sequence[Path]) -> dict[Path, str]:
    """Return what each trace is called: its name, or its path where several have one name. Raises ValueError."""
    seen: dict[Path, Path] = {}
    for file in files:
        if (other := seen.setdefault(file.resolve(), file)) is not file:
            raise ValueError(f"--trace {file}: it was given before, as {other}; allowed: each file once")
    names = [file.name for file in files]
    called = {file: str(file) if names.count(file.name) > 1 else file.name for file in files}
    return {
        file: title.encode(errors="replace").decode().removesuffix(".gz").removesuffix(".csv")
        for file, title in called.items()
    }


def _subject(
    setting: Setting,
    name: str,
    offer: Offer,
    policy: Policy,
    file: Path,
    title: str,
    models: Sequence[Trace],
    scale: float,
    interval: tuple[float, float],
) -> Subject:
    cases, notes = [], []
    if interval != (0.0, math.inf):
        models = _within(file, models, interval)
        start_s = interval[0]
        end_s = start_s + models[0].duration_s
        notes.append(f"{title}: only from {show_duration(start_s)} to {show_duration(end_s)}")
    for trace in models:
        case, shortened = case_of(setting, offer, policy, traces.scale(trace, scale, setting.seed), len(models))
        cases.append(case)
        notes += shortened
    if not any(len(case.trace.arrival_s) for case in cases):
        raise ValueError(f"{file}: no request is left at a scale of {scale:g}; allowed: a larger scale")
    if setting.learn_s:
        check_learned(str(file), cases, setting.learn_s)
    if len(cases) > 1:
        notes.append(f"{len(cases)} models, each with replicas of its own; figures are summed over them")
    if math.isfinite(setting.gpus):
        notes.append(
            "a replica that finds no free GPU waits for one, first come, first served, and costs nothing meanwhile"
        )
    return Subject(title, name, tuple(cases), policy, scale, tuple(notes), setting.gpus)


def _within(file: Path, models: Sequence[Trace], interval: tuple[float, float]) -> list[Trace]:
    """Return what a trace file would give that held this interval and no more. Raises ValueError."""
    start_s, end_s = interval
    length_s = models[0].duration_s
    if start_s >= length_s:
        raise ValueError(
            f"{file}: --start is {show_duration(start_s)}; it must be before the end of the trace, "
            f"{show_duration(length_s)}"
        )
    if length_s < end_s < math.inf:
        raise ValueError(
            f"{file}: --end is {show_duration(end_s)}; allowed: at most the length of the trace, "
            f"{show_duration(length_s)}"
        )
    end_s = min(end_s, length_s)
    asked = traces.part(models, start_s, end_s)
    if not asked:
        raise ValueError(f"{file}: no request from {show_duration(start_s)} to {show_duration(end_s)}")
    return asked
