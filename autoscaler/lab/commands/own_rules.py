"""The scaling rules of a workload that `replay` runs beside ours: from files and from the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.adapters.kubernetes.api.scaling_rules import Objects, read_cluster
from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.adapters.prometheus.range.scaling_queries import ScalingQueries
from autoscaler.config.rules.read import NONE, read_objects
from autoscaler.config.rules.rule import Rule
from autoscaler.config.settings import PrometheusSettings
from autoscaler.lab.baselines.own_rule import OpenSeries, RuleSetting
from autoscaler.lab.commands.options import ExperimentOptions, read_rules

STEP_S = 15.0  # as often as an HPA looks

Workload = tuple[str, str]  # namespace and name


def rules_in_files(
    options: ExperimentOptions, workload: Workload, recorded: Mapping[str, str] = NONE
) -> tuple[Rule, ...]:
    """Return the rules for a workload in the files of `--against`.

    Raises PolicyError, or ValueError if all rules are for other workloads.
    """
    rules = read_rules(options.against, recorded)
    ours = tuple(rule for rule in rules if rule.is_for(*workload))
    if rules and not ours:
        others = ", ".join(f"{rule.title} for {rule.target}" for rule in rules)
        raise ValueError(f"--against: no scaling rule for {'/'.join(workload)} among {others}")
    return ours


async def read_own_rules(
    options: ExperimentOptions, settings: PrometheusSettings | None, workload: Workload, past: WorkloadHistory
) -> tuple[list[RuleSetting], tuple[str, ...]]:
    """Return the rules for a workload with what their queries gave in the past, and problems.

    settings: of the Prometheus that has the past; None: there is none to ask. Raises as `rules_in_files`, Unavailable.
    """
    listed: Objects = ()
    problems: list[str] = []
    if options.kube is not None:
        listed, refused = await read_cluster(options.kube, workload[:1])
        problems += refused
    elif not rules_in_files(options, workload):
        return [], ()
    recorded: Mapping[str, str] = NONE
    queries = None if settings is None else ScalingQueries(settings)
    if queries is not None:
        recorded, problem = await queries.recorded()
        problems += [problem] * bool(problem)
    rules = list(rules_in_files(options, workload, recorded))
    if options.kube is not None:
        found, faults = read_objects(listed, recorded)
        titles = {rule.title for rule in rules}
        ours = [rule for rule in found if rule.is_for(*workload) and rule.title not in titles]
        problems += faults if ours else [*faults, f"the cluster has no scaling rule for {'/'.join(workload)}"]
        rules += ours
    asked = list(dict.fromkeys(query for rule in rules for query in rule.queries))
    series: dict[str, OpenSeries] = {}
    if queries is not None and asked:
        results, failed = await queries.read(asked, past.start_s, past.start_s + past.duration_s, STEP_S)
        problems += failed
        for query, (time_s, value, several) in results.items():
            series[query] = OpenSeries(time_s - past.start_s, value, several)
    return [RuleSetting(rule, past.start_s, series) for rule in rules], tuple(problems)
