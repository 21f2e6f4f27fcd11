"""Prometheus from Debian's `prometheus`."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.harness.process import require_binary
from tests.harness.promql import PromqlServer, Target, running


def prometheus(
    directory: Path, *targets: Target, flags: Sequence[str] = (), **options: Any
) -> AbstractAsyncContextManager[PromqlServer]:
    """Run a Prometheus that scrapes `targets`; `options` are those of `promql.running`.

    It takes 5 s until the first scrape: its discovery looks at targets, static ones too, no sooner.
    """
    binary = require_binary("prometheus", "apt-get install prometheus")

    def command(address: str, config: Path, storage: Path) -> list[str | Path]:
        return [
            binary,
            f"--config.file={config}",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={storage}",
            *flags,
        ]

    return running("prometheus", command, directory, targets, ready_path="/-/ready", **options)
