"""What a test can ask for. Every test sees these; `tests/conftest.py` registers them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.certificates import Certificates
from tests.harness.kube_api import KubeApi


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """A certificate authority of this test's own."""
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Certificates(directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kube_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeApi]:
    """The API server that all tests share; a test keeps to namespaces and ClusterRole names of its own."""
    async with KubeApi.running(tmp_path_factory.mktemp("kube-api")) as api:
        yield api


@pytest_asyncio.fixture
async def namespace(kube_api: KubeApi) -> str:
    """A fresh namespace in the shared API server."""
    return await kube_api.namespace()
