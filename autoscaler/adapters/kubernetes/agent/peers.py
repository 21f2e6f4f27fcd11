"""Addresses of the agents of other nodes: EndpointSlices of their Service, and labels of nodes that hold a model.

Both are listed when a transfer asks for them, and kept for a while, so that no agent watches all nodes. A list that
cannot be read leaves what was known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from autoscaler.adapters.kubernetes.api.client import JSON, ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.api.reflector import ACCEPT_METADATA_LIST
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.weights.report import LABEL_PREFIX, READY_LABEL
from autoscaler.outage import Outage
from autoscaler.ports import Clock, Unavailable

log = structlog.get_logger(__name__)

AGENTS_S = 30.0  # for which a list of agents is kept
HOLDERS_S = 10.0  # likewise for the nodes that hold a model
PAGE = 500
MAX_PAGES = 20  # 10,000 objects
MAX_MODELS = 64  # whose holders are kept
PORT_NAME = "peers"


class _Meta(msgspec.Struct):
    name: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class _Object(msgspec.Struct):
    metadata: _Meta


class _NodeList(msgspec.Struct):
    metadata: _Meta
    items: list[_Object] | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    node_name: str | None = None


class _EndpointSlice(msgspec.Struct):
    ports: list[_Port] | None = None
    endpoints: list[_Endpoint] | None = None


class _Slices(msgspec.Struct):
    metadata: _Meta
    items: list[_EndpointSlice] | None = None


_NODES, _SLICES = msgspec.json.Decoder(_NodeList), msgspec.json.Decoder(_Slices)


Page = TypeVar("Page", _NodeList, _Slices)


class _Holders(NamedTuple):
    nodes: frozenset[str]
    listed_s: float


class AgentDirectory:
    """Addresses of agents as HOST:PORT. Nothing here raises: without an answer there are fewer peers."""

    def __init__(self, kube: Kube, clock: Clock, namespace: str, service: str) -> None:
        """service: headless, of the agents, with a port of the name `peers`."""
        self._kube = kube
        self._clock = clock
        self._path = object_path("/apis/discovery.k8s.io/v1", namespace, "endpointslices")
        self._selector = f"kubernetes.io/service-name={service}"
        self._agents: tuple[str, ...] = ()
        self._by_node: dict[str, str] = {}
        self._listed_s = float("-inf")
        self._holders: dict[str, _Holders] = {}
        self._outage = Outage(log, "peers cannot be listed", "peers can be listed again")

    async def agents(self) -> Sequence[str]:
        """Return all agents: the same object until they change."""
        now_s = self._clock.now_s()
        if now_s - self._listed_s >= AGENTS_S:
            self._listed_s = now_s
            try:
                found = await self._list_agents()
            except Unavailable as error:
                self._outage.fail(str(error))
            else:
                self._outage.end()
                agents = tuple(sorted(set(found.values())))
                self._agents = self._agents if agents == self._agents else agents
                self._by_node = found
        return self._agents

    async def holders(self, key: str) -> Sequence[str]:
        """Return the agents of nodes that hold a model."""
        agents, now_s = await self.agents(), self._clock.now_s()
        known = self._holders.get(key)
        if agents and (known is None or now_s - known.listed_s >= HOLDERS_S):
            while len(self._holders) >= MAX_MODELS:
                self._holders.pop(next(iter(self._holders)))
            nodes = known.nodes if known else frozenset[str]()
            try:
                nodes = await self._list_nodes(f"{LABEL_PREFIX}{key}={READY_LABEL}")
                self._outage.end()
            except Unavailable as error:
                self._outage.fail(str(error))
            known = self._holders[key] = _Holders(nodes, now_s)
        return [self._by_node[node] for node in (known.nodes if known else ()) if node in self._by_node]

    async def _list_agents(self) -> dict[str, str]:
        """Return addresses by the name of the node. Raises Unavailable."""
        found: dict[str, str] = {}
        async for page in self._pages(self._path, self._selector, _SLICES, JSON):
            for each in page.items or ():
                found.update(_addresses(each))
        return found

    async def _list_nodes(self, selector: str) -> frozenset[str]:
        """Return names of nodes. Raises Unavailable."""
        pages = self._pages("/api/v1/nodes", selector, _NODES, ACCEPT_METADATA_LIST)
        return frozenset([each.metadata.name async for page in pages for each in page.items or ()])

    async def _pages(
        self, path: str, selector: str, decoder: msgspec.json.Decoder[Page], accept: str
    ) -> AsyncIterator[Page]:
        selected: list[tuple[str, str]] = [("labelSelector", selector), ("limit", str(PAGE))]
        query: list[tuple[str, str]] = selected
        for _ in range(MAX_PAGES):
            body = await self._kube.request("GET", path, query=query, accept=accept)
            try:
                page = decode(decoder, body)
            except UNREADABLE as error:
                raise ApiError(f"GET {path}", 200, "the answer is no list") from error
            yield page
            if not page.metadata.continue_:
                return
            query = [*selected, ("continue", page.metadata.continue_)]


def _addresses(each: _EndpointSlice) -> Iterator[tuple[str, str]]:
    """Yield the node and the address of each agent of a slice."""
    port = next((port.port for port in each.ports or () if port.name == PORT_NAME and port.port), None)
    for endpoint in each.endpoints or ():
        if port is None or not endpoint.addresses or not endpoint.node_name:
            continue
        try:
            host = ipaddress.ip_address(endpoint.addresses[0])
        except ValueError:
            continue
        yield endpoint.node_name, f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
