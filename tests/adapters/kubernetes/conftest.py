"""Fixtures for the real API server: a namespace to fill, and a client with exactly the shipped permissions."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from tests.adapters.kubernetes.node_world import Nodes
from tests.adapters.kubernetes.world import World, shipped_roles
from tests.harness.kube_api import KubeApi, User
from tests.harness.process import PATIENCE_S

Connect = Callable[..., Awaitable[Kube]]


@pytest_asyncio.fixture
async def world(kube_api: KubeApi, namespace: str) -> World:
    await kube_api.install_crds()
    return World(kube_api, namespace)


@pytest_asyncio.fixture
async def daemon(kube_api: KubeApi, namespace: str) -> User:
    """The daemon's user, with the Role of manifests/direct."""
    return await kube_api.service_account(namespace, "daemon", *in_namespace(shipped_roles("direct"), namespace))


@pytest_asyncio.fixture
async def connect(kube_api: KubeApi) -> AsyncIterator[Connect]:
    """Open clients: `await connect(user)`; they are closed after the test."""
    async with AsyncExitStack() as stack:

        async def opened(user: User, timeout_s: float = PATIENCE_S) -> Kube:
            return await stack.enter_async_context(Kube.using(kube_api.configuration(user), timeout_s))

        yield opened


@pytest_asyncio.fixture
async def kube(connect: Connect, daemon: User) -> Kube:
    """The daemon's own connection."""
    return await connect(daemon)


@pytest_asyncio.fixture
async def clock() -> SystemClock:
    return SystemClock()


@pytest_asyncio.fixture
async def nodes(kube_api: KubeApi, world: World) -> Nodes:
    return Nodes(kube_api, world)


def in_namespace(roles: list[dict], namespace: str) -> list[dict]:
    """Move namespaced Roles to a test's namespace, like an operator's overlay, but that in `kube-system`."""
    return [
        role | {"metadata": role["metadata"] | {"namespace": namespace}}
        if role["metadata"].get("namespace", "kube-system") != "kube-system"
        else role
        for role in roles
    ]
