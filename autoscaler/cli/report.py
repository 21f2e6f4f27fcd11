"""`report`: what all services cost and missed, and what other counts would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoscaler.cli.experiment import Greedy
from autoscaler.cli.options import (
    context_option,
    is_given,
    policy_options,
    price_options,
    prometheus_options,
    refuse_unused,
    team_options,
)
from autoscaler.cli.param_types import FOLDER, OUT, READABLE_FILE, DurationParam, ObjectName, PolicyForParam, SpanParam
from autoscaler.cli.process import run_interruptibly
from autoscaler.cli.settings import prometheus_settings, stated_prices

YEAR_S = 366 * 86_400


@click.command(cls=Greedy, short_help="Show what your services cost and missed, from Prometheus alone.")
@prometheus_options
@click.option("--record", type=FOLDER, metavar="DIR", help="Record to read instead of Prometheus; see `run --record`.")
@policy_options
@click.option(
    "--policy-for",
    type=PolicyForParam(),
    multiple=True,
    help="Policy of some services, with * for any characters; the first that matches counts. Default: the policy that "
    "the annotation of the workload names, where kube-state-metrics shows it, else the default policy.",
)
@price_options
@click.option(
    "--since", type=SpanParam(YEAR_S), default="14d", show_default=True, help="Length of the history, until now."
)
@click.option(
    "--namespace", type=ObjectName(), multiple=True, help="Namespace of services, may be repeated; default: all."
)
@click.option(
    "--step",
    type=DurationParam(3600, least_s=15),
    help="Resolution at which the server sums; default: 1 to 5 minutes, by scrape interval and number of services.",
)
@click.option(
    "--cache",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that keeps what was read for two days, so that another run goes on; default: in the user's cache.",
)
@click.option("--no-cache", is_flag=True, help="Keep nothing for the next run.")
@click.option(
    "--against",
    type=READABLE_FILE,
    multiple=True,
    metavar="FILE…",
    help="Your own scaling rules: ScaledObjects, HPAs, Knative annotations.",
)
@team_options
@click.option("--cluster", is_flag=True, help="Read your own scaling rules from the cluster.")
@context_option
@click.option(
    "--html", type=OUT, metavar="FILE", default="report.html", show_default=True, help="Write the page to this file."
)
@click.option("--json", type=OUT, metavar="FILE", help="Write the report as JSON.")
def report(cache: Path | None, no_cache: bool, **given: Any) -> None:
    """Show what the counts of all services cost and missed, and what this policy and a constant count would have.

    Reads the history in Prometheus alone and changes nothing. Needs no access to a cluster, unless --cluster is given.
    """
    settings = prometheus_settings(given)
    if (settings is None) == (given["record"] is None):
        raise click.UsageError("give either --prometheus URL or --record DIR: report reads history from there")
    if given["record"] is not None:
        others = {"cache": cache, "no_cache": no_cache, **given}
        refuse_unused(others, ("cache", "no_cache", "step", "policy_for"), "with --record")
        refuse_unused(others, ("team_label",), "with --record: it has the teams of the label that its daemon was given")
        if not is_given("default_policy"):
            given["default_policy"] = ""  # each service by its own
    if cache is not None and no_cache:
        raise click.UsageError("--cache FILE and --no-cache exclude each other")
    if given["context"] and not given["cluster"]:
        raise click.UsageError("--context has no effect without --cluster")

    def work() -> int:
        from autoscaler.app.report import report as app
        from autoscaler.app.report_reading import ReportOptions
        from autoscaler.config.settings import KubeSettings
        from autoscaler.report.piece_cache import default_file

        try:
            from autoscaler.report.sample import sample
        except ModuleNotFoundError as error:
            if error.name != "numba":
                raise
            sample = None  # type: ignore[assignment]
        return app(
            ReportOptions(
                prometheus=settings,
                since_s=given["since"],
                policies=given["policies"],
                default_policy=given["default_policy"],
                namespaces=given["namespace"],
                prices=dict(stated_prices(given)),
                step_s=given["step"],
                cache=None if no_cache else cache or default_file(),
                html=given["html"],
                json=given["json"],
                record=given["record"],
                against=given["against"],
                policy_for=given["policy_for"],
                kube=KubeSettings(context=given["context"]) if given["cluster"] else None,
                sample=sample,
                team_label=given["team_label"],
                teams=given["team"],
            )
        )

    run_interruptibly(work)
