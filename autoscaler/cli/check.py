"""`check`: policies and manifests, before they are applied."""

from __future__ import annotations

from pathlib import Path

import click

from autoscaler.cli.options import policy_options
from autoscaler.cli.process import exit_with


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@policy_options
def check(files: tuple[Path, ...], policies: tuple[Path, ...], default_policy: str) -> None:
    """Validate policies and manifests; - is standard input.

    Each error names file, line, key, value and what is allowed; the exit code is then 1.
    """
    from autoscaler.app import check as app

    exit_with(lambda: app.check(files, policies, default_policy))
