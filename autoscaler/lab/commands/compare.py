"""From a trace to a proof, and to what is written and shown of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console

from autoscaler.adapters.console import printing
from autoscaler.config.policy.schema import Policy
from autoscaler.config.values import show_duration
from autoscaler.lab.commands.setup import Setting
from autoscaler.lab.compare.compare import prove
from autoscaler.lab.compare.result import Proof
from autoscaler.lab.compare.workload_trace import Subject, goal_of, started
from autoscaler.lab.replay import trace as traces
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.files import Told
from autoscaler.lab.replay.shared_gpus import NODE_GPUS, GpuPool
from autoscaler.lab.report import outputs
from autoscaler.lab.report.document import to_json
from autoscaler.lab.report.page import page
from autoscaler.lab.report.progress import Bar
from autoscaler.lab.report.table import print_proof
from autoscaler.lab.report.words import count, seconds
from autoscaler.sim.engine.profiles import Offer

MOST_REPLICAS = 1000  # of one model
TABLE_COLUMNS = 180  # of a terminal that does not say how wide it is


def case_of(setting: Setting, offer: Offer, policy: Policy, trace: Trace, models: int = 1) -> tuple[Case, list[str]]:
    """Return the case of one of so many models, with notes. Raises ValueError."""
    _check_start(setting, offer, policy, models)
    trace, shortened = traces.cut(trace, offer.profile.max_model_len)
    longest = f"the {offer.profile.max_model_len:,} tokens that the profile takes"
    notes = [f"{trace.name}: shortened to {longest}: {count(shortened, 'request')}"] if shortened else []
    case = Case(
        trace=trace,
        profile=offer.profile,
        goal=goal_of(policy),
        cold_start_s=setting.cold_start_s,
        cold_start_uncached_s=setting.cold_start_uncached_s,
        cold_start_spread=setting.cold_start_spread,
        crash_every_s=setting.crash_every_s,
        router=setting.router,
        patience_s=setting.patience_s,
        drain_s=setting.drain_s,
        scrape_s=setting.scrape_s,
        gpus_per_replica=offer.gpus,
        max_replicas=int(min(_fitting(setting, offer), _ceiling(setting, policy))),
        seed=setting.seed,
        counted_from_s=setting.learn_s,
    )
    return case, notes


def begun(setting: Setting, subject: Subject, told: Told) -> Subject:
    """Return the subject with the replicas that each of its cases begins with. Without a number given it takes long."""
    cases = []
    for case in subject.cases:
        if setting.start_replicas is None:
            cases.append(started(case))
        else:
            cases.append(replace(case, start_replicas=setting.start_replicas))
        told(len(cases) / len(subject.cases))
    return replace(subject, cases=tuple(cases))


def proved(setting: Setting, subject: Subject, against: Sequence[str], told: Bar) -> Proof:
    return prove(
        replace(subject, notes=(*subject.notes, *_unusual(setting))),
        against,
        tuned=setting.tuned,
        planned=setting.planned,
        workers=setting.jobs,
        ray=setting.ray,
        told=told,
    )


def finish(setting: Setting, proofs: Sequence[Proof]) -> None:
    """Write the files, then show the tables: who reads those may be gone. Raises ValueError."""
    contents = [(setting.json, to_json), (setting.html, page)]
    outputs.write([(path, content(proofs)) for path, content in contents if path is not None])
    with printing():
        console = Console()
        if not console.is_terminal:
            console = Console(width=TABLE_COLUMNS)
        with console.capture() as captured:
            for proof in proofs:
                print_proof(proof, console)
        print(captured.get(), end="")


def _unusual(setting: Setting) -> list[str]:
    """Return a note on all that replicas, router and clients do not do by default."""
    notes = []
    if setting.cold_start_spread != Case.cold_start_spread:
        notes.append(f"cold starts differ: sigma of their logarithm {setting.cold_start_spread:g}")
    if math.isfinite(setting.crash_every_s):
        every = seconds(setting.crash_every_s)
        notes.append(f"a serving replica crashes every {every} on average and loses the requests it holds")
    if setting.router != Case.router:
        notes.append("requests go to replicas round robin, however many they hold")
    if math.isfinite(setting.patience_s):
        notes.append(f"clients still waiting after {seconds(setting.patience_s)} leave")
    if setting.drain_s != Case.drain_s:
        given = f"are given {seconds(setting.drain_s)} to finish" if setting.drain_s else "abort"
        notes.append(f"replicas on their way out {given} what they run")
    if setting.scrape_s != Case.scrape_s:
        notes.append(f"replicas are scraped every {seconds(setting.scrape_s)}")
    return notes


def _check_start(setting: Setting, offer: Offer, policy: Policy, models: int) -> None:
    """Raise ValueError if there is no room for the replicas that are there at the start."""
    start = setting.start_replicas or 0
    if start > (most := _ceiling(setting, policy)):
        raise ValueError(
            f"--start-replicas is {start}; allowed: at most replicas.max of {setting.policies[0]}, {most:g}"
        )
    if start * models > (room := _fitting(setting, offer)):
        each = f" for each of {models} models" if models > 1 else ""
        raise ValueError(
            f"--start-replicas is {start}{each}; allowed: at most the {room:g} that fit on --gpus {setting.gpus:g}, in "
            f"nodes of {max(NODE_GPUS, offer.gpus):g} and of what is left"
        )


def check_learned(name: str, cases: Sequence[Case], learn_s: float) -> None:
    """Raise ValueError if there is nothing to learn from, or nothing that counts."""
    check_longer(name, cases[0].trace.duration_s, learn_s)
    late = np.concatenate([case.trace.arrival_s >= learn_s for case in cases])
    if late.all() or not late.any():
        when = "before" if late.all() else "after"
        raise ValueError(f"{name}: --learn is {show_duration(learn_s)}; no request arrives {when} that")


def check_longer(name: str, duration_s: float, learn_s: float) -> None:
    if learn_s >= duration_s:
        raise ValueError(
            f"{name}: --learn is {show_duration(learn_s)}; it must be shorter than the whole, "
            f"{show_duration(duration_s)}"
        )


def _fitting(setting: Setting, offer: Offer) -> float:
    """Return how many replicas the GPUs hold."""
    return GpuPool(setting.gpus, max(NODE_GPUS, offer.gpus)).fitting(offer.gpus)


def _ceiling(setting: Setting, policy: Policy) -> float:
    """Return how many replicas anybody may ask for: what a given policy allows, and no limit by the shipped one."""
    return policy.spec.replicas.max if setting.policies else MOST_REPLICAS
