"""One cluster with a real KEDA for all tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.keda import keda
from tests.harness.kube_api import KubeApi
from tests.keda.site import Site, opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def keda_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeApi]:
    """An API server with KEDA, its adapter and the controllers behind it."""
    directory = tmp_path_factory.mktemp("keda-api")
    async with KubeApi.running(directory) as api, keda(api, directory):
        yield api


@pytest_asyncio.fixture
async def site(keda_api: KubeApi, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of that cluster."""
    async with opened(keda_api, tmp_path) as made:
        yield made
