"""Helpers for the tests of `simulate`, `simulate fit` and `replay`."""

import gzip
from collections.abc import Iterable
from pathlib import Path

from click.testing import CliRunner, Result

from autoscaler.cli.main import main

RECORDING = Path(__file__).parents[1] / "data" / "vllm" / "load-timeseries.jsonl.gz"
PROFILE = ("--profile", "8b-h100", "--jobs", "1")  # in this process: a worker takes seconds to start
POLICY = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: mine}
spec:
  objective: {ttft: 1s, itl: ITL, attainment: 0.99}
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_trace(file: Path, rows: Iterable[object] = (), header: str = "arrival_s,prompt_tokens,output_tokens") -> Path:
    text = "\n".join([header, *(str(row) for row in rows), ""])
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file
