"""The sentence on top. It says how much was seen, and leaves out what is not well modelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.money import Money, dollars
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.report.format import amount, count, duration
from autoscaler.report.columns import ACTUAL, CONSTANT, POLICY
from autoscaler.report.report import LEAST_SEEN, FleetReport

TWICE = 2.0


@dataclass(frozen=True)
class Verdict:
    """The numbers of the sentence; all are over the services that are judged."""

    span_days: float
    seen_days: float
    services: int  # all that were found
    judged: int  # those whose figures count
    generous: int  # ran on more than twice what their objective needs
    spare_gpu_hours: float  # of these, beyond what is needed
    gpu_hours: float  # of all judged services, as it was
    spare: Money  # of `spare_gpu_hours`
    prices: str  # where the prices of these come from: "list", "list and stated"; "": not told
    missing: int  # missed their objective as it was measured, also those that are not well modelled
    missing_unmodelled: int  # of these, not well modelled: what they need is not known
    lacking_gpu_hours: float  # that these would need in addition; 0: this policy needs no more for them
    attainment: float  # that services are promised, 0..1; NaN: not all the same
    policy_gpu_hours: float  # of all judged services, under this policy
    policy_saved: Money  # of the GPU-hours that it uses less than they did; less than 0: it uses more
    breach_min: float  # of all judged services, as it was
    policy_breach_min: float  # under this policy


def judge(report: FleetReport) -> Verdict:
    """Return the numbers. A service needs what the cheaper of this policy and the least constant count used, if it met
    the objective."""
    was = report.entry(ACTUAL).outcome
    judged, ours = judged_services(report), report.entry(POLICY).outcome
    need = needed_gpu_hours(report)
    met = ~(was.attainment < report.spec.attainment - 1e-9)
    generous = judged & met & (was.gpu_hours > TWICE * need)
    spare = np.where(generous, was.gpu_hours - need, 0.0)
    measured = ~report.profiles.assumed_misses
    missed = enough_seen(report) & ~met & (report.modelled | measured)  # whatever the model makes of a measured miss
    misses = judged & missed
    rate = report.facts.usd_per_hour / report.facts.gpus
    sources = report.facts.sources
    promised = np.unique(report.spec.attainment)
    lacking = np.where(misses, np.maximum(need - was.gpu_hours, 0.0), 0.0)
    return Verdict(
        span_days=report.span_days,
        seen_days=report.seen_days,
        services=len(report.services),
        judged=int(judged.sum()),
        generous=int(generous.sum()),
        spare_gpu_hours=float(np.nansum(spare)),
        gpu_hours=float(np.nansum(np.where(judged, was.gpu_hours, 0.0))),
        spare=report.facts.money(report.services, spare * rate, generous),
        prices=" and ".join(sorted({source for source, of in zip(sources, generous, strict=False) if of and source})),
        missing=int(missed.sum()),
        missing_unmodelled=int((missed & ~judged).sum()),
        lacking_gpu_hours=float(np.nansum(lacking)),
        attainment=float(promised[0]) if len(promised) == 1 else np.nan,
        policy_gpu_hours=float(np.nansum(ours.gpu_hours[judged])),
        policy_saved=report.facts.money(report.services, (was.gpu_hours - ours.gpu_hours) * rate, judged),
        breach_min=float(np.nansum(was.breach_min[judged])),
        policy_breach_min=float(np.nansum(ours.breach_min[judged])),
    )


def needed_gpu_hours(report: FleetReport) -> FloatColumn:
    """Return the GPU-hours with which each service would have met its objective; float64[W], NaN: none found."""
    found = np.full(len(report.services), np.nan)
    for name in (POLICY, CONSTANT):
        outcome = report.entry(name).outcome
        met = ~(outcome.attainment < report.spec.attainment - 1e-9)
        found = np.fmin(found, np.where(met, outcome.gpu_hours, np.nan))
    return found


def judged_services(report: FleetReport) -> BoolColumn:
    """Return the services whose figures count: seen for long enough, well modelled, with requests; bool[W]."""
    return np.asarray(report.modelled & enough_seen(report))


def enough_seen(report: FleetReport) -> BoolColumn:
    """Return the services that were seen for long enough, with requests; bool[W]."""
    requests = report.entry(ACTUAL).outcome.requests
    return np.asarray((report.seen_share >= LEAST_SEEN) & (requests > 0))


def seen_of(seen_days: float, span_days: float) -> str:
    """Say how much of a span was seen, in hours if that is less than a day."""
    if seen_days < 1:
        seen_days, span_days, unit = 24 * seen_days, 24 * span_days, "hour"
    else:
        unit = "day"
    span = f"{span_days:.3g}"
    return f"{seen_days:.3g} of {span} {unit}{'s' * (span != '1')} seen"


def sentence(verdict: Verdict) -> str:
    """Return the verdict in words."""
    seen = f"In {seen_of(verdict.seen_days, verdict.span_days)}"
    left = verdict.services - verdict.judged
    if not verdict.judged:
        return f"{seen}, none of {count(verdict.services, 'service')} can be judged{_missed(verdict)}."
    several = np.isnan(verdict.attainment)
    need = "their objectives need" if several else f"{verdict.attainment * 100:.4g} % needs"
    said = f"{seen}, {verdict.generous} of {count(verdict.judged, 'service')} ran on more than twice what {need}"
    if verdict.generous:
        said += f": {amount(verdict.spare_gpu_hours)} of {amount(verdict.gpu_hours)} GPU-hours were not needed"
        said += f" ({verdict.spare.say(per=f'at {verdict.prices} prices' if verdict.prices else '')})"
    said += f"{_missed(verdict)}. {_policy(verdict)}"
    return said + (f" {count(left, 'service')} could not be judged." if left else "")


def _policy(verdict: Verdict) -> str:
    """Say what all judged services would have used and missed under this policy."""
    money, usd = verdict.policy_saved, ""
    if money.priced:
        of = f" for the {money.priced:,} with a price" if money.unpriced else ""
        usd = f" ({dollars(abs(money.usd))} {'more' if money.usd < 0 else 'less'}{of})"
    return (
        f"This policy would have used {amount(verdict.policy_gpu_hours)} GPU-hours in place of "
        f"{amount(verdict.gpu_hours)}{usd}, with {duration(verdict.policy_breach_min)} in breach in place of "
        f"{duration(verdict.breach_min)}."
    )


def _missed(verdict: Verdict) -> str:
    """Say which services missed their objective, and what these would need; "": none did."""
    if not verdict.missing:
        return ""
    known = verdict.missing - verdict.missing_unmodelled
    said = f"; {count(verdict.missing, 'service')} missed {'its' if verdict.missing == 1 else 'their'} objective"
    if known:
        of_them = f"{known} of them " if verdict.missing_unmodelled else ""
        need = f"need {amount(verdict.lacking_gpu_hours)} more" if verdict.lacking_gpu_hours > 0 else ""
        said += f" and {of_them}would {need or 'need no more, at other hours'}"
    if verdict.missing_unmodelled:
        whose = f"{verdict.missing_unmodelled} of them" if known else ("it" if verdict.missing == 1 else "they")
        said += f"; what {whose} would need is not known"
    return said
