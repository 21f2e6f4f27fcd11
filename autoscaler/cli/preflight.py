"""`preflight`: what would hurt, before it hurts, in manifests or a cluster of anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoscaler.cli.options import context_option, policy_options, prometheus_options
from autoscaler.cli.param_types import DurationParam, ObjectName
from autoscaler.cli.process import run_to_end


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@prometheus_options
@click.option("--cluster", is_flag=True, help="Read the cluster too; without FILES its own workloads are checked.")
@context_option
@click.option(
    "--namespace", type=ObjectName(), multiple=True, help="With --cluster: the only namespaces that are read."
)
@policy_options
@click.option("--json", "form", flag_value="json", help="Print one JSON document.")
@click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for code scanning.")
@click.option("--github", "form", flag_value="github", help="Print annotations of GitHub Actions.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note", "never"]),
    default="error",
    show_default=True,
    help="Exit with 1 for findings that are at least so severe.",
)
@click.option(
    "--deadline", type=DurationParam(), default="50s", show_default=True, help="Time limit for all queries together."
)
def preflight(
    files: tuple[Path, ...], cluster: bool, form: str | None, fail_on: str, deadline: float, **given: Any
) -> None:
    """Say what would hurt: engines, autoscalers and their queries, pods, the cluster. Changes nothing.

    FILES are manifests, folders of them, or - for standard input. What was not checked is listed with the reason.
    """
    from autoscaler.app import preflight as app
    from autoscaler.app.logging import configure_log
    from autoscaler.cli.settings import prometheus_settings
    from autoscaler.config.settings import KubeSettings

    if not files and not cluster:
        raise click.UsageError("nothing to check: name FILES, or --cluster")
    if given["namespace"] and not cluster:
        raise click.UsageError("--namespace has no effect without --cluster")
    configure_log("console", "error")
    options = app.PreflightOptions(
        files,
        policies=given["policies"],
        default_policy=given["default_policy"],
        prometheus=prometheus_settings(given),
        kube=KubeSettings(context=given["context"]) if cluster else None,
        namespaces=given["namespace"],
        form=form or "text",
        fail_on=fail_on,
        deadline_s=deadline,
    )
    run_to_end(app.preflight(options), endless=False)
