"""The scaling rules that `report` compares with: from files, or from the cluster."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
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
from autoscaler.adapters.turns import in_turns
from autoscaler.config.findings import shown
from autoscaler.config.rules.read import NONE, read_files, read_objects
from autoscaler.config.rules.rule import Rule, RuleNote
from autoscaler.config.settings import KubeSettings
from autoscaler.lab.baselines.own_rule import OpenSeries
from autoscaler.lab.report.format import count
from autoscaler.ports import Unavailable
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.rule import RuleColumn, assign, settings_of

MOST_NOTES = 40
QUERIES_S = 1800.0
"""Time for the queries of all rules, half of what a report may take. Namespaces have equal shares of it."""


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
        recorded, problem = _recorded(one)
        notes = [RuleNote("", problem)] * bool(problem)
        rules = list(read_files(files, recorded)) if files else []
        if cluster is not None:
            objects, problems = asyncio.run(read_cluster(*cluster))
            found, faults = read_objects(objects, recorded)
            rules += found
            notes += [*(RuleNote("", each) for each in problems), *faults]
        chosen, unused = assign(rules, services)
        series, failed = past_of_queries(chosen, one, load) if one is not None else ({}, [])
    finally:
        if one is not None:
            one.close()
    settings, told = settings_of(chosen, load.span.start_s, series, load.span.steps)
    return (RuleColumn(settings, load, profiles),), bounded([*notes, *unused, *failed, *told])


def bounded(notes: Sequence[RuleNote]) -> tuple[str, ...]:
    """Return as many notes as a page has room for, of each namespace in turn, and how many more there are."""
    order = in_turns(notes, lambda note: note.namespace)
    shown, rest = (tuple(note.text for note in part) for part in (order[:MOST_NOTES], order[MOST_NOTES:]))
    spaces = {note.namespace for note in order[MOST_NOTES:]}
    more = f"not shown: {count(len(rest), 'more note')} about scaling rules of {count(len(spaces), 'namespace')}"
    return (*shown, *([f"{more}; --namespace shows those of one"] if rest else []))


def _recorded(reader: RangeReader | None) -> tuple[Mapping[str, str], str]:
    if reader is None:
        return NONE, f"{NOT_FOLLOWED}, and only queries of simulated signals are evaluated: no server is asked"
    try:
        return recording_rules(reader), ""
    except Unavailable as error:
        return NONE, f"{NOT_FOLLOWED}: {error}"


def past_of_queries(
    rules: Sequence[Rule | None], reader: RangeReader, load: FleetLoad, most_s: float = QUERIES_S
) -> tuple[dict[str, OpenSeries], list[RuleNote]]:
    """Return the results of the queries whose meaning is not known, and problems. Namespaces take turns.

    most_s: time for all. A namespace whose queries took more than its share is asked no more.
    """
    owned = [(query, rule.namespace) for rule in rules if rule is not None for query in rule.queries]
    asked: dict[str, str] = {}
    for query, namespace in in_turns(owned, lambda each: each[1]):
        asked.setdefault(query, namespace)
    found: dict[str, OpenSeries] = {}
    most = f"{len(asked)} queries of scaling rules; only {MAX_QUERIES} are run, of each namespace in turn"
    problems = [RuleNote("", most)] * (len(asked) > MAX_QUERIES)
    span, share_s = load.span, most_s / max(len({*asked.values()}), 1)
    taken_s, not_run = dict.fromkeys(asked.values(), 0.0), Counter[str]()
    for query, namespace in [*asked.items()][:MAX_QUERIES]:
        if taken_s[namespace] > share_s:
            not_run[namespace] += 1
            continue
        begun_s = time.monotonic()
        try:
            time_s, value, several = read_results(reader, query, span.start_s, span.end_s, span.step_s)
        except Unavailable as error:
            said = f"a query of a scaling rule could not be run: {clean(query[:100])}: {error}"
            problems.append(RuleNote(namespace, said))
        else:
            found[query] = OpenSeries(time_s - span.start_s, value, several)
        taken_s[namespace] += time.monotonic() - begun_s
    for namespace, queries in not_run.items():
        said = f"{queries} of the queries of scaling rules of namespace {shown(namespace)} are not run"
        allowed = f"allowed: {share_s:,.0f} s, an equal part"
        problems.append(RuleNote(namespace, f"{said}: those before took {taken_s[namespace]:,.0f} s; {allowed}"))
    return found, problems
