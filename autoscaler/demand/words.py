"""The four answers, and the verdict over the cluster, as sentences."""

from __future__ import annotations

import math

from autoscaler.config.values import show_duration
from autoscaler.demand.draft import Draft, Line
from autoscaler.demand.model import DemandModel, GpuExcess
from autoscaler.lab.report.format import amount, count, seconds, share


def verdict(demand: DemandModel) -> str:
    """Return the sentence on top."""
    excess, report = demand.excess, demand.report
    least, most = (round(value) for value in excess.band)
    services = count(len(demand.services), "service")
    seen = f"In {report.seen_days:.3g} days seen, {services} held at most {amount(excess.held)} GPUs"
    shape = (
        f"their shape needs {amount(excess.needed_high)} in the highest hour and no more than "
        f"{amount(excess.needed_usual)} in 95 % of the hours"
    )
    return f"{seen}; {shape}: this cluster is {_larger(least, most)} larger than its shape.{_of_weeks(excess)}"


def _larger(least: int, most: int) -> str:
    if most <= 0:
        return "not"
    if least <= 0:
        return f"up to {count(most, 'GPU')}"
    return count(least, "GPU") if least == most else f"{least} to {most} GPUs"


def _of_weeks(excess: GpuExcess) -> str:
    """Return the same for weeks to come, with its rate; "": too few days were seen."""
    week = excess.week
    if math.isnan(week.low):
        return ""
    larger = _larger(round(excess.held - week.high), round(excess.held - week.low))
    needs = f"the highest hour needs {week.low:.0f} to {week.high:.0f} GPUs"
    return f" In 9 of 10 weeks like these {needs}, so it is {larger} larger than they need."


def answers(demand: DemandModel, w: int) -> tuple[str, str, str, str]:
    """Return the four answers about one service: floor, bursts, residency, and what can wait."""
    return _floor(demand, w), _bursts(demand, w), _residency(demand, w), _wait(demand, w)


def say_without(draft: Draft, line: Line) -> str:
    """Return what the draft would be without one of its lines."""
    if math.isnan(line.saved_gpu_hours):
        return "the replay cannot judge this line"
    return f"without this line {figures_without(draft, line)}"


def figures_without(draft: Draft, line: Line) -> str:
    return f"{draft.gpu_hours + line.saved_gpu_hours:,.1f} GPU-hours at {share(line.attainment_without)}"


def _floor(demand: DemandModel, w: int) -> str:
    c = demand.concurrency
    if math.isnan(c.floor[w]):
        return f"The concurrency floor cannot be known: {c.hours[w]:.0f} hours were seen, and it needs 24."
    high, replicas = amount(float(c.high[w])), amount(float(c.high_replicas[w]))
    above = f"in 5 % of the hours it is more than {high}, or {replicas} replicas."
    if not demand.mix.requests[w] > 0:
        return f"No request came in {c.hours[w]:.0f} hours, so there is no floor."
    if not c.floor[w] > 0:
        return f"Nothing runs in more than 5 % of the hours, so there is no floor; {above}"
    return (
        f"{amount(float(c.floor[w]))} requests at once are reached in 95 % of the hours and keep "
        f"{amount(float(c.floor_replicas[w]))} replicas busy; {above}"
    )


def _bursts(demand: DemandModel, w: int) -> str:
    b = demand.burst_profile
    cold = show_duration(round(float(demand.report.profiles.cold_start_s[w])))
    step = show_duration(demand.report.step_s)
    if not b.bursts[w]:
        return f"No burst: no step of {step} had far more requests than the hours around it."
    height, rest = float(b.height_max[w]), b.bursts[w] - b.noise[w]
    highest = f"{amount(height)} times the hours around it" if math.isfinite(height) else "out of silence"
    said = f"{count(float(b.bursts[w]), 'burst')}, the highest {highest}"
    more = f"keep up to {amount(float(b.extra_replicas[w]))} more replicas busy"
    if not b.noise[w]:
        return f"{said}. None is shorter than the cold start of {cold}; they {more}."
    those = f"{b.noise[w]:.0f} of {b.bursts[w]:.0f}" if rest else "All"
    noise = f"{those} are shorter than the cold start of {cold}: noise, which queues by design"
    return f"{said}. {noise}" + (f"; the others {more}." if rest else ".")


def _residency(demand: DemandModel, w: int) -> str:
    r, d = demand.residency, demand.durations
    if math.isnan(r.ratio[w]):
        return "Its weights were in no GPU."
    said = (
        f"Weights stayed in GPU memory for {amount(float(r.loaded_h[w]))} replica-hours; in {share(float(r.ratio[w]))} "
        "of them the engine computed"
    )
    if not math.isnan(d.p50_s[w]):
        longest = float(d.longest_s[w])
        end = (
            f"at most {seconds(longest)}" if math.isfinite(longest) else "longer than the last bucket of the histogram"
        )
        said += (
            f". A request stays {seconds(float(d.p50_s[w]))}, one in a hundred {seconds(float(d.p99_s[w]))} or more, "
            f"the longest {end}"
        )
    return said + "."


def _wait(demand: DemandModel, w: int) -> str:
    q, t = demand.queue, demand.tolerance
    limit_s = float(t.ttft_objective_s[w])
    if math.isnan(t.ttft_slack[w]):
        said = "No histogram shows what users waited for"
    elif t.ttft_slack[w] >= 1:
        promised = float(demand.report.spec.attainment[w])
        reached = limit_s / float(t.ttft_slack[w])
        said = (
            f"The first token came within {seconds(reached)} for {share(promised)} of requests, and "
            f"{seconds(limit_s)} is allowed: they may wait for {seconds(limit_s - reached)} more"
        )
    else:
        said = f"The first token came after {seconds(limit_s)} for more requests than allowed: none may wait longer"
    if not q.queued_min[w]:
        return f"{said}. Nothing queued."
    half = seconds(float(q.wait_p50_s[w]))
    said += f". There was a queue in {q.queued_min[w]:.0f} minutes, in which half of the requests waited {half} or more"
    if math.isnan(q.breach_depth[w]):
        return f"{said}; up to {amount(float(q.deepest[w]))} for each replica it was no breach."
    return f"{said}; from {amount(float(q.breach_depth[w]))} for each replica on, most requests missed."
