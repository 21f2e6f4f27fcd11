"""What `simulate`, `simulate fit` and `replay` are made of, beside `app`: files and servers in, proofs out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from autoscaler.adapters.prometheus.history import PrometheusHistory
from autoscaler.adapters.terminal import printing
from autoscaler.config.model import Policy
from autoscaler.config.policy import load, read_policies
from autoscaler.config.settings import PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.core.past import Past
from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import Offer
from autoscaler.sim.proof.played import play
from autoscaler.sim.proof.prove import prove
from autoscaler.sim.proof.report import outputs
from autoscaler.sim.proof.report.document import to_json
from autoscaler.sim.proof.report.page import page
from autoscaler.sim.proof.report.progress import Bar
from autoscaler.sim.proof.report.table import print_proof
from autoscaler.sim.proof.report.words import count, seconds
from autoscaler.sim.proof.result import ACTUAL, RECORDED, Proof, Run
from autoscaler.sim.proof.subject import Subject, check_goal, goal_of, started
from autoscaler.sim.study import trace as traces
from autoscaler.sim.study.baselines import BASELINES
from autoscaler.sim.study.case import Case, Trace
from autoscaler.sim.study.files import Told, part_of
from autoscaler.sim.study.fit import LEAST_BUDGET_TOKENS, MOST_BUDGET_TOKENS, Fitted
from autoscaler.sim.study.fit import fit as fit_profile
from autoscaler.sim.study.gpus import NODE_GPUS, GpuPool
from autoscaler.sim.study.past import Recorded, as_row, as_timeline, replicas, to_trace
from autoscaler.sim.study.recording import read as read_recording
from autoscaler.sim.study.ticks import read as read_ticks

ALL = "all"
MOST_REPLICAS = 1000  # of one model
TABLE_COLUMNS = 180  # of a terminal that does not say how wide it is


@dataclass(frozen=True)
class Setting:
    """What all trials have in common."""

    profile: str  # by name, or a file
    policies: tuple[Path, ...]  # one policy; none: the shipped `interactive`
    against: tuple[str, ...]
    tuned: bool
    planned: bool  # also a schedule made with the whole trace in hand
    cold_start_s: float
    cold_start_uncached_s: float  # on a node that was never used; NaN: every node has image and weights
    cold_start_spread: float  # sigma of the logarithm; 0: all alike
    crash_every_s: float  # mean, of a replica that serves
    router: str  # "least-requests" or "round-robin"
    patience_s: float  # clients who still wait by then leave
    drain_s: float  # that a replica on its way out may take to finish what it runs
    scrape_s: float  # between two scrapes
    seed: int
    learn_s: float  # of the beginning, that policies may learn from; figures count from then on
    start_replicas: int | None  # None: the fewest whose first ten minutes meet the goal
    gpus: float  # that all models of a trace share; infinity: as many as each asks for
    json: Path | None
    html: Path | None
    ray: bool
    jobs: int | None

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.json, self.html) if path is not None)


def simulate(setting: Setting, files: Sequence[Path], scale: float, interval: tuple[float, float]) -> int:
    """Prove the policy on an interval, (0, infinity) for all, of trace files.

    Raises ValueError for what cannot be used, before anything runs.
    """
    _check_outputs(setting, *files)
    against = baselines(setting.against)
    name, offer = profile_file.find(setting.profile)
    policy = _policy(setting.policies)
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
            _begun(setting, subject, part_of(told, number, len(subjects))) for number, subject in enumerate(subjects)
        ]
    proofs = []
    for subject in subjects:
        with Bar(f"simulating {subject.trace}", console) as told:
            proofs.append(_prove(setting, subject, against, told))
        if not setting.outputs:  # then there is nothing to write before it is shown
            _finish(setting, [proofs.pop()])
    _finish(setting, proofs)
    return 0


def fit(file: Path, out: Path | None, max_num_seqs: int | None, max_num_batched_tokens: int | None, gpus: float) -> int:
    """Fit a profile to a recording, print how well it explains it, and write it."""
    if out is not None:
        outputs.check([out], [file])
    console = Console(stderr=True)
    with Bar(f"reading {file.name}", console) as told:
        recording = read_recording(file, told)
    try:
        fitted = fit_profile(recording, max_num_seqs, max_num_batched_tokens)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    text = profile_file.write(Offer(fitted.profile, gpus))
    if out is None:
        with printing():
            print(text, end="")
    else:
        outputs.write([(out, text)])
    slots = "" if fitted.slots_known or max_num_seqs else "; max_num_seqs is the largest batch seen, not a known limit"
    budget = "" if max_num_batched_tokens else f"; max_batched_tokens is a guess, {_guess(fitted)}"
    console.print(
        f"{fitted.intervals} busy intervals; the profile explains them within {fitted.error_fraction:.1%} (median)"
        f"{slots}{budget}",
        highlight=False,
        soft_wrap=True,
    )
    for doubt in fitted.doubts:
        console.print(f"warning: {doubt}", highlight=False, soft_wrap=True)
    return 0


def _guess(fitted: Fitted) -> str:
    """Say what the budget of a step is and where it comes from."""
    within, budget = fitted.steps_within_tokens, fitted.profile.max_batched_tokens
    defaults = {LEAST_BUDGET_TOKENS: "most", MOST_BUDGET_TOKENS: "the largest"}
    default = f" (vLLM's default on {defaults[budget]} GPUs)" if budget in defaults else ""
    if within is None:
        return f"{budget}{default}: the recording has no buckets of steps"
    if math.isinf(within):
        return f"{budget}{default}: some steps had more tokens than the buckets tell"
    return f"{budget}{default}: no step had more than {within:g} tokens"


def replay(
    setting: Setting,
    settings: PrometheusSettings,
    workload: tuple[str, str],
    interval: tuple[float, float],
    step_s: float,
) -> int:
    """Prove the policy on a workload's own history from Prometheus."""
    tls = settings.tls
    _check_outputs(setting, settings.token_file, settings.password_file, tls.ca, tls.cert, tls.key)
    _usable(setting)
    namespace, name = workload
    start_s, end_s = interval
    if setting.learn_s:
        _check_longer(f"{namespace}/{name}", round(end_s - start_s), setting.learn_s)
    console = Console(stderr=True)
    with Bar(f"reading {namespace}/{name}", console) as told:
        reading = PrometheusHistory(settings).read(namespace, name, start_s, end_s, step_s=step_s, told=told)
        past = asyncio.run(reading)  # this alone: within a loop, Ctrl-C would wait for what computes
    return replay_past(setting, past, f"{namespace}/{name}")


def replay_ticks(setting: Setting, file: Path, workload: tuple[str, str], interval: tuple[float | None, float]) -> int:
    """Prove the policy on a workload's own history from recorded ticks."""
    _check_outputs(setting, file)
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
    policy = _policy(setting.policies)
    notes = [f"history: {problem}" for problem in past.problems]
    notes.append(
        "requests are reconstructed from counters: arrivals within each step, lengths around the mean of their time"
    )
    trace = to_trace(past, name, setting.seed)
    case, shortened = _case(setting, offer, policy, trace)
    notes += shortened
    if setting.learn_s:
        _check_learned(name, [case], setting.learn_s)
    counted = past.since(setting.learn_s)
    if not len(counted.pods):
        raise ValueError(
            f"{name}: --learn is {show_duration(setting.learn_s)}; it must be a whole step of "
            f"{show_duration(past.step_s)} shorter than the history, {show_duration(past.duration_s)}"
        )
    subject = Subject(name, profile_name, (case,), policy, notes=tuple(notes))
    console = Console(stderr=True)
    with Bar("preparing", console) as told:
        subject = _begun(setting, subject, told)
    (case,) = subject.cases
    with Bar(f"replaying {name}", console) as told:
        proof = _prove(setting, subject, against, told)
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
    _finish(setting, [proof])
    return 0


def baselines(named: Sequence[str]) -> tuple[str, ...]:
    """Return the baselines meant. Raises ValueError for an unknown one, with those there are."""
    names = [name for each in named for name in each.replace(",", " ").split()]
    unknown = [name for name in names if name not in (ALL, *BASELINES)]
    if unknown or (named and not names):
        raise ValueError(f"no baseline {(unknown or named)[0]!r}; allowed: {ALL}, {', '.join(BASELINES)}")
    return tuple(BASELINES) if ALL in names else tuple(dict.fromkeys(names))


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
        case, shortened = _case(setting, offer, policy, traces.scale(trace, scale, setting.seed), len(models))
        cases.append(case)
        notes += shortened
    if not any(len(case.trace.arrival_s) for case in cases):
        raise ValueError(f"{file}: no request is left at a scale of {scale:g}; allowed: a larger scale")
    if setting.learn_s:
        _check_learned(str(file), cases, setting.learn_s)
    if len(cases) > 1:
        notes.append(f"{len(cases)} models, each with replicas of its own; figures are summed over them")
    if math.isfinite(setting.gpus):
        notes.append(
            "a replica that finds no free GPU waits for one, first come, first served, and costs nothing meanwhile"
        )
    return Subject(title, name, tuple(cases), policy, scale, tuple(notes), setting.gpus)


def _check_learned(name: str, cases: Sequence[Case], learn_s: float) -> None:
    """Raise ValueError if there is nothing to learn from, or nothing that counts."""
    _check_longer(name, cases[0].trace.duration_s, learn_s)
    late = np.concatenate([case.trace.arrival_s >= learn_s for case in cases])
    if late.all() or not late.any():
        when = "before" if late.all() else "after"
        raise ValueError(f"{name}: --learn is {show_duration(learn_s)}; no request arrives {when} that")


def _check_longer(name: str, duration_s: float, learn_s: float) -> None:
    if learn_s >= duration_s:
        raise ValueError(
            f"{name}: --learn is {show_duration(learn_s)}; it must be shorter than the whole, "
            f"{show_duration(duration_s)}"
        )


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


def _usable(setting: Setting) -> None:
    """Look at what needs no history before it is read, which may take minutes: raise what a replay would."""
    baselines(setting.against)
    _, offer = profile_file.find(setting.profile)
    none = np.zeros(0, np.int64)
    case, _ = _case(
        replace(setting, learn_s=0.0),
        offer,
        _policy(setting.policies),
        Trace("nothing", none.astype(np.float64), none, none, 1.0),
    )
    check_goal(case)


def _case(setting: Setting, offer: Offer, policy: Policy, trace: Trace, models: int = 1) -> tuple[Case, list[str]]:
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


def _begun(setting: Setting, subject: Subject, told: Told) -> Subject:
    """Return the subject with the replicas that each of its cases begins with. Without a number given it takes long."""
    cases = []
    for case in subject.cases:
        if setting.start_replicas is None:
            cases.append(started(case))
        else:
            cases.append(replace(case, start_replicas=setting.start_replicas))
        told(len(cases) / len(subject.cases))
    return replace(subject, cases=tuple(cases))


def _prove(setting: Setting, subject: Subject, against: Sequence[str], told: Bar) -> Proof:
    return prove(
        replace(subject, notes=(*subject.notes, *_unusual(setting))),
        against,
        tuned=setting.tuned,
        planned=setting.planned,
        workers=setting.jobs,
        ray=setting.ray,
        told=told,
    )


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


def _fitting(setting: Setting, offer: Offer) -> float:
    """Return how many replicas the GPUs hold."""
    return GpuPool(setting.gpus, max(NODE_GPUS, offer.gpus)).fitting(offer.gpus)


def _ceiling(setting: Setting, policy: Policy) -> float:
    """Return how many replicas anybody may ask for: what a given policy allows, and no limit by the shipped one."""
    return policy.spec.replicas.max if setting.policies else MOST_REPLICAS


def _policy(paths: tuple[Path, ...]) -> Policy:
    """Return the one policy of a file, or the shipped `interactive`. Raises PolicyError, or ValueError for several."""
    if not paths:
        book = load(())
        return book.policies[book.default]
    policies = read_policies(paths)
    if len(policies) != 1:
        raise ValueError(f"{paths[0]}: {len(policies)} policies: {', '.join(sorted(policies))}; allowed: one")
    return next(iter(policies.values()))


def _check_outputs(setting: Setting, *inputs: Path | None) -> None:
    """Look at the outputs before the work: hours of simulation should not end at a folder that is not there."""
    profile = Path(setting.profile) if setting.profile.endswith(".json") else None
    outputs.check(setting.outputs, [path for path in (profile, *setting.policies, *inputs) if path is not None])


def _finish(setting: Setting, proofs: Sequence[Proof]) -> None:
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
