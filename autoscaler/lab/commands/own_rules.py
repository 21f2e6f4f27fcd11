"""The scaling rules of a workload that `replay` and `simulate` run in addition: from files and from the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoscaler.adapters.kubernetes.api.scaling_rules import read_cluster
from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.adapters.prometheus.range.scaling_queries import ScalingQueries
from autoscaler.config.rules.read import NONE, read_objects
from autoscaler.config.rules.rule import Rule
from autoscaler.config.settings import KubeSettings, PrometheusSettings
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


async def rules_in_cluster(
    kube: KubeSettings, workload: Workload, given: Sequence[Rule], recorded: Mapping[str, str] = NONE
) -> tuple[list[Rule], list[str]]:
    """Return the rules for a workload in the cluster but those given before, and problems. Raises ApiError."""
    listed, problems = await read_cluster(kube, workload[:1])
    found, faults = read_objects(listed, recorded)
    ours = [rule for rule in found if rule.is_for(*workload)]
    missing = () if ours else (f"the cluster has no scaling rule for {'/'.join(workload)}",)
    titles = {rule.title for rule in given}
    return [rule for rule in ours if rule.title not in titles], [*problems, *(fault.text for fault in faults), *missing]


async def read_own_rules(
    options: ExperimentOptions, settings: PrometheusSettings | None, workload: Workload, past: WorkloadHistory
) -> tuple[list[RuleSetting], tuple[str, ...]]:
    """Return the rules for a workload with what their queries gave in the past, and problems.

    settings: of the Prometheus that has the past; None: there is none to ask. Raises as `rules_in_files`, Unavailable.
    """
    if options.kube is None and not rules_in_files(options, workload):
        return [], ()
    problems: list[str] = []
    recorded: Mapping[str, str] = NONE
    queries = None if settings is None else ScalingQueries(settings)
    if queries is not None:
        recorded, problem = await queries.recorded()
        problems += [problem] * bool(problem)
    rules = list(rules_in_files(options, workload, recorded))
    if options.kube is not None:
        found, told = await rules_in_cluster(options.kube, workload, rules, recorded)
        rules += found
        problems += told
    asked = list(dict.fromkeys(query for rule in rules for query in rule.queries))
    series: dict[str, OpenSeries] = {}
    if queries is not None and asked:
        results, failed = await queries.read(asked, past.start_s, past.start_s + past.duration_s, STEP_S)
        problems += failed
        for query, (time_s, value, several) in results.items():
            series[query] = OpenSeries(time_s - past.start_s, value, several)
    return [RuleSetting(rule, past.start_s, series) for rule in rules], tuple(problems)
