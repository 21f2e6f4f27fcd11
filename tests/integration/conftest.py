"""Fixtures of the end-to-end tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.harness.kube_api import KubeApi
from tests.integration import site as site_
from tests.integration.site import Site


@pytest_asyncio.fixture
async def site(kube_api: KubeApi, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of the real API server with a metrics server beside it."""
    async with site_.site(kube_api, tmp_path) as made:
        yield made
