"""A real kube-apiserver with one namespace and a metrics server, for benchmarks of the command."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from tests.harness.kube_api import KubeApi
from tests.integration.site import Site
from tests.integration.site import site as tests_site


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """Start the servers, and clean up after them. Exits with a hint if kube-apiserver or etcd is missing."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        directory = Path(folder)
        try:
            async with KubeApi.running(directory) as api, tests_site(api, directory) as made:
                yield made
        except pytest.skip.Exception as missing:
            raise SystemExit(f"this needs a real API server: {missing}") from None
