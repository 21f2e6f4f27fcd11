"""The sentence that explains a decision: what recommended a count, which stages changed it, which pods are missing.

The page, Kubernetes events, the log, the API, `explain` and the live table all print it. `signals` words what a signal
recommends, `stages` what a stage did, `pods` which replicas do not serve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from autoscaler.core.explain import diagnosis, pairs, planner_lines, pods, signals, stages, weights
from autoscaler.core.explain.chain import NextNeed, next_need
from autoscaler.core.explain.claims import NOTHING, Words, join, tell
from autoscaler.core.explain.format import count, number, seconds
from autoscaler.core.explain.row import TickRow, is_changed
from autoscaler.core.explain.starts import NextStart, next_start
from autoscaler.core.explain.warnings import warnings
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity, Decision, Recommender, Signal, Stage, TickInput
from autoscaler.core.table.columns import FloatColumn

FOLLOWER = "This replica of the daemon does not hold the lease and does not act."
"""Comes first where a process decides, but another one acts."""

OBSERVED, CAPACITIES, FIGURES = (
    tuple(field.name for field in fields(table)) for table in (Observation, Capacity, planner_lines.Figures)
)
"""Their columns, which are published as inputs."""


@dataclass(frozen=True)
class SentenceStep:
    """One stage on the way from recommendation to decision."""

    stage: str  # published name of the Stage
    replicas: float  # NaN: nothing known
    reason: str  # "" where the stage changed nothing
    words: Words = NOTHING  # the reason with its claims


@dataclass(frozen=True)
class Explanation:
    """Why one workload has the count it has. Plain values, ready for JSON; the adapter turns NaN into null."""

    workload: str  # "namespace/name"
    policy: str
    current: int  # spec.replicas
    wanted: int  # the decision
    ready: int
    recommender: str  # name of the Recommender that speaks
    signal: str  # name of the Signal that recommends the most; "": none has an opinion
    bound: str  # name of the last Stage that changed the count; "": none did
    asks: dict[str, float]  # recommended replicas by signal, NaN left out
    steps: tuple[SentenceStep, ...]
    forecast: tuple[planner_lines.PlannerLine, ...]  # what the planner goes by; empty: no policy is in force
    gpus: diagnosis.GpuWords  # what its GPUs do
    inputs: dict[str, float]  # observation, capacity and planner in numbers, NaN where unknown
    sentence: str
    warnings: tuple[str, ...] = ()  # about the workload, whatever was decided
    pair: str = ""  # its prefill and decode pair, without a full stop; "": none
    start: NextStart | None = None  # the start that the next replica would have, and those under way
    weights: str = ""  # which nodes hold those of its model, without a full stop; "": their source is not known
    chain: NextNeed | None = None  # the next window or rise, and what begins when for it; None: there is none soon
    words: Words = NOTHING  # the sentence with its claims


def explain(
    inp: TickInput,
    decision: Decision,
    policies: Sequence[str],
    problems: Mapping[int, str],
    row: int,
    leading: bool = True,
    with_age: bool = True,
) -> Explanation:
    """Put one row of a decision into words.

    policies: [W], name of each workload's policy. problems: by row, why there is none, or what else is wrong with its
    declarations. leading: False where this process does not hold the lease, so that it acts on nothing. with_age: the
    sentence tells how old the metrics are. Costs some 100 us, so it is made for rows that changed or were asked for.
    """
    data = TickRow(inp, decision, row)
    signal = strongest_signal(decision, row)
    reasons = [stages.reason(stage, data) if data.changed(stage) else NOTHING for stage in Stage]
    steps = tuple(
        SentenceStep(stage.published, data.after(stage), str(words), words)
        for stage, words in zip(Stage, reasons, strict=True)
    )
    changing = [step.stage for step in steps if step.reason and step.stage != Stage.DEMAND.published]
    desired, current = int(decision.replicas[row]), int(inp.fleet.present_replicas[row])
    age = _age(data, signal) if with_age else NOTHING
    words = _sentence(data, signal, reasons, current, desired, problems.get(row, ""), leading, age)
    return Explanation(
        workload=str(inp.fleet.workloads[row].ref),
        policy=policies[row],
        current=current,
        wanted=desired,
        ready=int(decision.observation.ready[row]),
        recommender=data.recommender.published,
        signal=signal.published if signal is not None else "",
        bound=changing[-1] if changing else "",
        asks={s.published: data.recommended(s) for s in Signal if not math.isnan(data.recommended(s))},
        steps=steps,
        forecast=planner_lines.lines(data.figures, inp, decision, row),
        gpus=diagnosis.describe(data),
        inputs=_inputs(data),
        sentence=str(words),
        warnings=warnings(data),
        pair=pairs.describe(data),
        start=next_start(data),
        weights=weights.describe(data),
        chain=next_need(data),
        words=words,
    )


def strongest_signal(decision: Decision, row: int) -> Signal | None:
    """Return the signal that recommends the most; None where none has an opinion."""
    recommended = decision.recommendations[:, row]
    return tuple(Signal)[np.nanargmax(recommended)] if not np.isnan(recommended).all() else None


def binding_stages(decision: Decision) -> FloatColumn:
    """Return for each workload the last stage after demand that changed the count; float64[W], NaN: none did."""
    stage = np.arange(1, len(Stage), dtype=np.float64)[:, None]
    changed = is_changed(decision.stages[:-1], decision.stages[1:])
    return np.asarray(np.fmax.reduce(np.where(changed, stage, np.nan), axis=0))


def _inputs(row: TickRow) -> dict[str, float]:
    observation = {column: row.observed(column) for column in OBSERVED}
    capacity = {f"capacity_{column}": row.capacity(column) for column in CAPACITIES}
    planner = {f"planner_{figure}": float(getattr(row.figures, figure)) for figure in FIGURES}
    idle_s = float(row.decision.idle_s[row.row])
    others = {"fleet_age_s": row.view_age_s, "kept_for_s": row.kept_for_s, "idle_s": idle_s}
    return observation | capacity | planner | others


def _sentence(
    row: TickRow,
    signal: Signal | None,
    stage_reasons: list[Words],
    current: int,
    desired: int,
    problem: str,
    leading: bool,
    age: Words,
) -> Words:
    keeps, scales = ("Keeps", "Scales") if leading else (f"{FOLLOWER} It would keep", f"{FOLLOWER} It would scale")
    told = {"verb": keeps if desired == current else scales, "desired": count(desired), "current": number(current)}
    told |= {"direction": "up" if desired > current else "down"}
    change = tell(
        "{verb} {desired}: " if desired == current else "{verb} {direction} from {current} to {desired}: ", **told
    )
    if row.recommender is Recommender.NO_POLICY:
        why = tell("{problem}", problem=problem or "no valid policy is in force for it")
        return change + join("; ", (why, stage_reasons[Stage.OWNER] if desired != current else NOTHING)) + "."
    reasons = [
        signals.reason(signal, row) if signal is not None else NOTHING,
        _idle(row) if desired == 0 < current and row.after(Stage.IDLE) == 0 else NOTHING,
        *stage_reasons[1:],
        _reset(row, current, desired),
        _held(row),
        *pods.reasons(row),
    ]
    but = tell(" But {problem}.", problem=problem) if problem else NOTHING
    return change + join("; ", reasons) + age + "." + but


def _idle(row: TickRow) -> Words:
    """Word why the workload goes to zero; nothing where the idle stage itself does."""
    if row.changed(Stage.IDLE):
        return NOTHING
    work = "no request waited at the gateway" if row.observed("ready") == 0 else "there was no work"
    allowed = "the shortest that the error budget allows" if math.isinf(row.spec("idle_after_s")) else "of the policy"
    return tell(
        "{no_work} for {idle_after_s}, the idle timeout {whose}",
        no_work=work,
        idle_after_s=seconds(row.idle_after_s),
        whose=allowed,
    )


def _reset(row: TickRow, current: int, desired: int) -> Words:
    """Word that a tool has reset the count with its manifest, and that the former one is in force, where one has."""
    foreign = row.inp.fleet.foreign
    if foreign is None or math.isnan(foreign.reset_to[row.row]):
        return NOTHING
    by = foreign.reset_by[row.row] or "an update that left the count out"
    return tell(
        "{reset_by} reset the count from {reset_from} to {reset_to} with its manifest{undone}",
        reset_by=by,
        reset_from=number(row.observed("replicas")),
        reset_to=number(current),
        undone=tell("{undone:, which is undone}") if desired > current else NOTHING,
    )


def _held(row: TickRow) -> Words:
    """Word what would keep the count, where the decision is the same count: a pause, or who has set it for a while."""
    foreign, owner = row.inp.fleet.foreign, row.inp.fleet.other_owner[row.row]
    if not owner and row.inp.fleet.paused[row.row] and not row.changed(Stage.OWNER):
        return tell("{paused:scaling is paused}")
    if not owner or foreign is None or math.isnan(foreign.owned_until_s[row.row]) or row.changed(Stage.OWNER):
        return NOTHING
    return tell("{holder} holds it", holder=owner) + stages.owned_for(row)


def _age(row: TickRow, signal: Signal | None) -> Words:
    """Word the age of the oldest engine metrics behind the count; the planner's may be older than the last scrape."""
    age_s = row.observed("age_s")
    if signal is Signal.PLANNER:
        age_s = float(np.fmax(age_s, row.inp.now_s - float(row.decision.plan.last_updated_s[row.row])))
    if math.isnan(age_s):
        return NOTHING
    return tell(" (metrics up to {metrics_age_s} old)", metrics_age_s=seconds(max(age_s, 0.0)))
