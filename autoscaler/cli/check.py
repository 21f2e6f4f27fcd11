"""`check`: policies and manifests, before they are applied."""

from __future__ import annotations

from pathlib import Path

import click

from autoscaler.cli.options import policy_options
from autoscaler.cli.process import exit_with


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@policy_options
@click.option("--fit", is_flag=True, help="Refuse workloads whose model does not fit on the devices that they request.")
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --fit: directory with models, by name, or a cache of the hub. It is read before the hub.",
)
@click.option(
    "--hub",
    default="https://huggingface.co",
    show_default=True,
    envvar="HF_ENDPOINT",
    help="With --fit: URL of the hub that is asked for models.",
)
@click.option("--offline", is_flag=True, help="With --fit: ask no hub.")
def check(
    files: tuple[Path, ...],
    policies: tuple[Path, ...],
    default_policy: str,
    fit: bool,
    models: Path | None,
    hub: str,
    offline: bool,
) -> None:
    """Validate policies and manifests; - is standard input.

    Each error names file, line, key, value and what is allowed; the exit code is then 1.
    """
    from autoscaler.app import check as app
    from autoscaler.app.check_fit import FitCheck

    if (models or offline) and not fit:
        raise click.UsageError("--models and --offline need --fit")
    fit_check = FitCheck(models, "" if offline else hub) if fit else None
    exit_with(lambda: app.check(files, policies, default_policy, fit_check))
