"""Fixtures of the end-to-end tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.kube_api import KubeApi
from tests.integration import site as site_
from tests.integration.cluster import Cluster, Engines, LeapingClock, Run
from tests.integration.site import Site


@pytest_asyncio.fixture
async def site(kube_api: KubeApi, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of the real API server with a metrics server beside it."""
    async with site_.site(kube_api, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def cluster(site: Site) -> AsyncIterator[Cluster]:
    """Nodes, controllers and engines for that namespace."""
    clock = LeapingClock()
    engines = Engines(clock)
    async with engines.serving():
        yield Cluster(site, engines, clock)


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a daemon for the cluster within a block, in this process."""
    return lambda **settings: cluster.daemon(monkeypatch.setenv, **settings)
