"""Additions to a report from DCGM, from the daemon's own series and from labels of teams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoscaler.adapters.prometheus.range.gpu_readings import choose_step_s, read_gpus
from autoscaler.adapters.prometheus.range.own_use import GpuUseRow, read_own_use
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import find_engines
from autoscaler.adapters.prometheus.range.team_labels import read_teams
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.ports import Unavailable
from autoscaler.report.change_replay import ReplayInputs
from autoscaler.report.columns import POLICY
from autoscaler.report.diagnosis import count_hours, tell
from autoscaler.report.gpu_use import USE_ESTIMATED, USE_OF_DAEMON, estimate_use, of_services
from autoscaler.report.history import FleetHistory
from autoscaler.report.report import FleetReport


def of_teams(
    label: str, wanted: Sequence[str], reader: RangeReader, history: FleetHistory
) -> tuple[FleetHistory, tuple[str, ...], tuple[str, ...]]:
    """Return the history of some teams, the team of each service, and what could not be read. Raises ValueError.

    wanted: (): all, and services of no team.
    """
    span_s = (history.span.start_s, history.span.end_s)
    teams, problems = read_teams(reader, label, history.services, span_s)
    if not wanted:
        return history, teams if any(teams) else (), problems
    rows = [row for row, team in enumerate(teams) if team in wanted]
    if not rows:
        known = ", ".join(sorted({*teams} - {""})[:10]) or f"no label {label} in kube-state-metrics"
        raise ValueError("; ".join((f"no service of team {' or '.join(wanted)}; found: {known}", *problems)))
    return history.take(rows), tuple(teams[row] for row in rows), problems


def with_gpus(
    made: FleetReport,
    settings: PrometheusSettings,
    reader: RangeReader,
    whole_namespaces: bool,
    progress: Callable[[float], None],
) -> FleetReport:
    """Add what the GPUs did and were used for, as far as DCGM and the daemon show it."""
    load, notes = made.load, list(made.notes)
    span_s = (load.span.start_s, load.span.end_s)
    step_s = choose_step_s(float(load.pods.sum() / max(load.shape[0], 1)), span_s)
    try:
        found = find_engines(reader, all_spellings(settings.metric_prefixes), span_s)
        left_out = dict[str, None]()
        hours = count_hours(read_gpus(reader, found, span_s, step_s, progress, left_out), made.services, step_s)
        notes += [f"what the GPUs did: {each}" for each in left_out]
        if hours.by_diagnosis.any():
            figures = made.entry(POLICY).outcome
            inputs = ReplayInputs(load, made.profiles, made.facts, made.spec, made.holds)
            told = tell(hours, step_s, inputs, figures, made.doubts)
            made = replace(made, gpus=told)
        else:
            notes.append("what the GPUs did is not known: DCGM shows none of the pods with an engine")
    except Unavailable as error:
        notes.append(f"what the GPUs did could not be read: {error}")
    use, source = tuple[GpuUseRow, ...](), USE_OF_DAEMON
    try:
        unread = dict[str, None]()
        use = of_services(read_own_use(reader, span_s, unread), made.services, whole_namespaces)
        notes += [f"the GPU use that the daemon counted: {each}" for each in unread]
    except Unavailable as error:
        notes.append(f"the GPU use that the daemon counted could not be read: {error}")
    if not use:
        use, source = estimate_use(made), USE_ESTIMATED
    return replace(made, gpu_use=use, use_from=source, notes=tuple(notes))
