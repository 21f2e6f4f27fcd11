"""Options of `webhook`: what is refused before anything starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from autoscaler.cli.main import main

FILES = ["--cert=/tls/tls.crt", "--key=/tls/tls.key"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "--cert and --key are missing"),
        (["--trust"], "--trust needs --secret"),
        ([*FILES, "--host-path=/ssd"], "--host-path and --image go together"),
        ([*FILES, "--image=vllm-autoscaler"], "--host-path and --image go together"),
        ([*FILES, "--compile-cache"], "--compile-cache needs --host-path"),
        ([*FILES, "--image=i", "--host-path=ssd"], "no path, found 'ssd'; allowed: /FOLDER/FOLDER"),
        ([*FILES, "--secret=A B"], "not a name, found 'A B'"),
        ([*FILES, "--port=70000"], "70000 is not in the range"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["webhook", *arguments])
    assert result.exit_code == 2
    assert why in result.output
