"""A real helm: rendering of the chart, and its errors. Nothing of the developer's own helm is read or written."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.harness.process import FRUGAL, require_binary, where

CHART = Path(__file__).parents[2] / "charts" / "vllm-autoscaler"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the dashboard takes the slow one a while
OPERATOR = "monitoring.coreos.com/v1"  # the kinds of the Prometheus operator


class HelmFailed(Exception):
    """Helm refused; the text is what it wrote on standard error."""


def helm(*arguments: str | Path, values: Mapping[str, Any] | None = None, kubeconfig: Path | None = None) -> str:
    """Run one helm command and return what it printed; `values` go in as a file. Raises HelmFailed."""
    binary = require_binary("helm", "make helm", where("helm.sh"))
    with tempfile.TemporaryDirectory() as home:
        command = [binary, *arguments]
        if values is not None:
            file = Path(home) / "values.yaml"
            file.write_text(json.dumps(values))
            command += ["--values", file]
        own = {"HOME": home, "KUBECONFIG": str(kubeconfig or Path(home) / "none")}
        environment = {"PATH": os.environ["PATH"], **FRUGAL, **own}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise HelmFailed(done.stderr + done.stdout)
    return done.stdout


def template_text(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "vllm-autoscaler",
    namespace: str = "vllm-autoscaler",
    chart: Path = CHART,
    kubernetes: str = "1.36.0",
) -> str:
    """Return a release as helm prints it for a cluster of this version with the Prometheus operator."""
    options = ("--namespace", namespace, "--api-versions", OPERATOR, "--kube-version", kubernetes)
    return helm("template", release, chart, *options, values=values)


def template(values: Mapping[str, Any] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the documents of a release; the options are those of `template_text`."""
    return [document for document in yaml.load_all(template_text(values, **options), LOADER) if document]
