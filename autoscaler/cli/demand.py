"""`demand`: the model of demand, from Prometheus alone, and drafts of policies that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoscaler.cli.options import policy_options, price_option, prometheus_options, team_options
from autoscaler.cli.param_types import FOLDER, OUT, DurationParam, NumberParam, ObjectName, SpanParam, WholeNumber
from autoscaler.cli.process import run_interruptibly
from autoscaler.cli.report import YEAR_S
from autoscaler.cli.settings import prometheus_settings


def _zone(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    from autoscaler.config.values import TimeZone

    try:
        return TimeZone().read(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, found {value!r}; allowed: {TimeZone.allowed}") from None


@click.command(short_help="Model demand from history, and draft policies for its shape.")
@prometheus_options
@policy_options
@price_option
@click.option(
    "--since", type=SpanParam(YEAR_S), default="14d", show_default=True, help="Length of the history, until now."
)
@click.option(
    "--namespace", type=ObjectName(), multiple=True, help="Namespace of services, may be repeated; default: all."
)
@team_options
@click.option("--timezone", callback=_zone, default="UTC", show_default=True, help="Time zone of hours and weekdays.")
@click.option("--html", type=OUT, metavar="FILE", help="Write the page, with a picture of each input.")
@click.option("--json", type=OUT, metavar="FILE", help="Write the model as JSON.")
@click.option(
    "--drafts", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Write the drafts of policies."
)
@click.option(
    "--record",
    type=FOLDER,
    metavar="DIR",
    help="Record of the daemon, whose history of a year says when GPUs were short; default: its metrics in Prometheus.",
)
@click.option(
    "--queued-over",
    type=DurationParam(),
    default="30m",
    show_default=True,
    help="Ask for GPUs where a workload lacked some, or stood at its ceiling, for longer within a day.",
)
@click.option(
    "--pool-over",
    type=NumberParam(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="Ask for GPUs where this share of a pool was in use, in the mean of --pool-days.",
)
@click.option("--pool-days", type=WholeNumber(1, 366), default=30, show_default=True, help="Days of that mean.")
def demand(timezone: str, drafts: Path | None, json: Path | None, **given: Any) -> None:
    """Show the shape of demand of all services, and draft a policy for each that follows from it.

    Reads the history in Prometheus alone and changes nothing. Each draft is made from the first half of the history,
    and replayed on the second.
    """
    settings = prometheus_settings(given)
    if settings is None:
        raise click.UsageError("--prometheus URL is missing: demand reads history from there")

    def work() -> int:
        from autoscaler.app.demand import DemandOptions
        from autoscaler.app.demand import demand as app
        from autoscaler.app.report_reading import ReportOptions
        from autoscaler.demand.capacity import BuyLimits
        from autoscaler.report.piece_cache import default_file

        report = ReportOptions(
            prometheus=settings,
            since_s=given["since"],
            policies=given["policies"],
            default_policy=given["default_policy"],
            namespaces=given["namespace"],
            prices=dict(given["price"]),
            step_s=None,
            cache=default_file(),
            html=given["html"],
            json=json,
            team_label=given["team_label"],
            teams=given["team"],
        )
        limits = BuyLimits(given["queued_over"], given["pool_over"], given["pool_days"])
        return app(DemandOptions(report, timezone, drafts, given["record"], limits))

    run_interruptibly(work)
