"""The command line. Exit codes: 0 done, 1 it found a problem, 2 bad usage or configuration, 128 + signal if cut short.

Only `click` is imported here and in the commands; each command imports the rest when it runs, so that `--help` answers
at once.
"""

from __future__ import annotations

import click

from autoscaler.cli.check import check
from autoscaler.cli.demand import demand
from autoscaler.cli.demo import demo
from autoscaler.cli.dry_run import dry_run
from autoscaler.cli.explain import explain
from autoscaler.cli.keda_stand_in import keda_stand_in
from autoscaler.cli.preflight import preflight
from autoscaler.cli.replay import replay
from autoscaler.cli.report import report
from autoscaler.cli.run import run
from autoscaler.cli.simulate import simulate
from autoscaler.cli.webhook import webhook
from autoscaler.cli.weights import weights


@click.group(context_settings={"auto_envvar_prefix": "VLLM_AUTOSCALER", "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-autoscaler", prog_name="vllm-autoscaler")
def main() -> None:
    """Decide how many replicas each LLM inference Deployment should have, and make it so.

    Every option can also be set in the environment as VLLM_AUTOSCALER_COMMAND_OPTION, such as
    VLLM_AUTOSCALER_RUN_HTTP_PORT.
    """


for command in (
    run,
    dry_run,
    report,
    demand,
    demo,
    explain,
    check,
    preflight,
    simulate,
    replay,
    weights,
    webhook,
    keda_stand_in,
):
    main.add_command(command)
