"""Common interface of Prometheus and VictoriaMetrics: a scrape configuration, a query API, the way they start."""

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.harness.process import PATIENCE_S, Process, answers, eventually, free_port


@dataclass(frozen=True)
class Target:
    """One endpoint to scrape. `labels` go on each of its series, as pod discovery puts `namespace` and `pod` there."""

    address: str
    path: str = "/metrics"
    labels: Mapping[str, str] = field(default_factory=dict)
    job: str = "vllm"


class PromqlServer:
    """A running server that scrapes and answers PromQL at `url`."""

    def __init__(self, url: str, process: Process, flush_path: str | None) -> None:
        self.url = url
        self.process = process
        self._flush_path = flush_path

    async def flush(self) -> None:
        """Flush scraped samples so that queries see them, if the server needs it. A busy one may not answer at once."""
        if self._flush_path is not None:
            url = self.url + self._flush_path
            await eventually(lambda: answers(url), f"a flush at {url}")

    async def load(self, samples: bytes, seen: str) -> None:
        """Import samples into a VictoriaMetrics, and wait until a query for what it has `seen` is answered."""
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await session.post(f"{self.url}/api/v1/import/prometheus", data=BytesIO(samples))
        await self.wait_for(seen)

    async def query(self, promql: str) -> list[dict[str, Any]]:
        """Return the `result` of an instant query, now."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.post(f"{self.url}/api/v1/query", data={"query": promql}) as response,
        ):
            return (await response.json())["data"]["result"]

    async def wait_for(self, promql: str, series: int = 1, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the result of an instant query once it has at least `series` series."""

        async def probe() -> list[dict[str, Any]]:
            await self.flush()
            result = await self.query(promql)
            return result if len(result) >= series else []

        return await eventually(probe, f"{series} series of {promql}", timeout_s, every_s=0.1)


def scrape_config(targets: Sequence[Target], scrape_interval: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration file's content; `more` adds top-level keys such as `rule_files`."""
    jobs: dict[str, list[Target]] = {}
    for target in targets:
        jobs.setdefault(target.job, []).append(target)
    return {
        "global": {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval},
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [member.address], "labels": {"__metrics_path__": member.path, **member.labels}}
                    for member in members
                ],
            }
            for job, members in jobs.items()
        ],
        **more,
    }


@asynccontextmanager
async def running(
    name: str,
    command: Callable[[str, Path, Path], list[str | Path]],
    directory: Path,
    targets: Sequence[Target],
    *,
    ready_path: str,
    flush_path: str | None = None,
    scrape_interval: str = "1s",
    config: Mapping[str, Any] | None = None,
) -> AsyncIterator[PromqlServer]:
    """Run a server on a free port: `command` takes its address, its configuration file and its storage folder."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
    config_file = directory / "scrape.yaml"
    config_file.write_text(yaml.safe_dump(scrape_config(targets, scrape_interval, config or {})))
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    parts = command(address, config_file, directory / "data")
    process = Process(name, parts, directory, ready=lambda: answers(url + ready_path))
    try:
        await process.start()
        yield PromqlServer(url, process, flush_path)
    finally:
        await process.stop()
