"""The scaling rules that `report` compares with: from files, or from the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoscaler.adapters.kubernetes.api.scaling_rules import read_cluster
from autoscaler.adapters.prometheus.decode import clean
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.scaling_queries import (
    MAX_QUERIES,
    NOT_FOLLOWED,
    read_results,
    recording_rules,
)
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.rules.read import NONE, read_files, read_objects
from autoscaler.config.rules.rule import Rule
from autoscaler.config.settings import KubeSettings
from autoscaler.lab.baselines.own_rule import OpenSeries
from autoscaler.ports import Unavailable
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.rule import RuleColumn, assign, settings_of

MOST_NOTES = 40


def check_files(files: Sequence[Path]) -> None:
    """Raise PolicyError for files that are no rules, before minutes of reading."""
    if files:
        read_files(files)


def rule_columns(
    files: Sequence[Path],
    cluster: tuple[KubeSettings, Sequence[str]] | None,
    reader: Callable[[], RangeReader] | None,
    services: Sequence[ServiceName],
    load: FleetLoad,
    profiles: Profiles,
) -> tuple[tuple[RuleColumn, ...], tuple[str, ...]]:
    """Return the column of the rules of these services, if any rule is given, and notes.

    reader: of the server with the history of other queries; None: there is none.
    """
    if not files and cluster is None:
        return (), ()
    one = reader() if reader is not None else None
    try:
        recorded, notes = _recorded(one)
        rules = list(read_files(files, recorded)) if files else []
        if cluster is not None:
            objects, problems = asyncio.run(read_cluster(*cluster))
            found, faults = read_objects(objects, recorded)
            rules += found
            notes += [*problems, *faults]
        chosen, unused = assign(rules, services)
        series, failed = _past_of_queries(chosen, one, load) if one is not None else ({}, [])
    finally:
        if one is not None:
            one.close()
    settings, told = settings_of(chosen, load.span.start_s, series, load.span.steps)
    told = [*notes, *unused, *failed, *told]
    if len(told) > MOST_NOTES:
        told = [*told[:MOST_NOTES], f"{len(told) - MOST_NOTES} more notes about scaling rules are not shown"]
    return (RuleColumn(settings, load, profiles),), tuple(told)


def _recorded(reader: RangeReader | None) -> tuple[Mapping[str, str], list[str]]:
    if reader is None:
        return NONE, [f"{NOT_FOLLOWED}, and only queries of simulated signals are evaluated: no server is asked"]
    try:
        return recording_rules(reader), []
    except Unavailable as error:
        return NONE, [f"{NOT_FOLLOWED}: {error}"]


def _past_of_queries(
    rules: Sequence[Rule | None], reader: RangeReader, load: FleetLoad
) -> tuple[dict[str, OpenSeries], list[str]]:
    """Return the results of the queries whose meaning is not known, and problems."""
    asked = list(dict.fromkeys(query for rule in rules if rule is not None for query in rule.queries))
    found: dict[str, OpenSeries] = {}
    problems = [f"{len(asked)} queries of scaling rules; only {MAX_QUERIES} are run"] * (len(asked) > MAX_QUERIES)
    span = load.span
    for query in asked[:MAX_QUERIES]:
        try:
            time_s, value, several = read_results(reader, query, span.start_s, span.end_s, span.step_s)
        except Unavailable as error:
            problems.append(f"a query of a scaling rule could not be run: {clean(query[:100])}: {error}")
        else:
            found[query] = OpenSeries(time_s - span.start_s, value, several)
    return found, problems
