"""VictoriaMetrics (single node) from Debian's `victoria-metrics`."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.harness.process import require_binary
from tests.harness.promql import PromqlServer, Target, running


def victoria_metrics(directory: Path, *targets: Target, **options: Any) -> AbstractAsyncContextManager[PromqlServer]:
    """Run a VictoriaMetrics that scrapes `targets`; `options` are those of `promql.running`.

    Asked for a series that is not there yet, it remembers for up to 10 s that there is none; `flush` makes it forget.
    """
    binary = require_binary("victoria-metrics", "apt-get install victoria-metrics")

    def command(address: str, config: Path, storage: Path) -> list[str | Path]:
        return [
            binary,
            f"-promscrape.config={config}",
            f"-httpListenAddr={address}",
            f"-storageDataPath={storage}",
            "-search.latencyOffset=10ms",  # by default the last 30 s are not shown
            "-search.disableCache",
        ]

    return running(
        "victoria-metrics",
        command,
        directory,
        targets,
        ready_path="/health",
        flush_path="/internal/force_flush",
        **options,
    )
