"""`weights agent` and `weights plan`: the weights of one node, as wishes and pods say."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.agent.node import KubeNode
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.web.agent import AgentServer, AgentStatus, PeerStatus
from autoscaler.app.process import StartError, allow_many_connections
from autoscaler.app.weights import FetchOptions, limits
from autoscaler.app.weights_peers import sharing
from autoscaler.config.settings import HttpSettings, KubeSettings
from autoscaler.config.weights.allowed import DEFAULT_RULES, SourceRules
from autoscaler.config.weights.source import ModelSource
from autoscaler.config.weights.wishes import Wishes
from autoscaler.weights.agent import Agent, AgentStep
from autoscaler.weights.listing import Origin
from autoscaler.weights.local_node import LocalNode, WishFile
from autoscaler.weights.node import AgentNode
from autoscaler.weights.peers.peers import Peers
from autoscaler.weights.problems import WeightsCause, WeightsError, as_problem
from autoscaler.weights.store import WeightStore

log = structlog.get_logger(__name__)

SYNC_S = 30.0

Given = Mapping[str, Any]


async def run(given: Given) -> int:
    """Keep the weights of this node until a signal arrives."""
    allow_many_connections()
    if (given["token_file"] or os.environ.get("HF_TOKEN")) and not given["private_source"]:
        log.warning("the hub's token is used for no source; name those that need it, and for whom, by --private-source")
    async with _node(given) as node:
        http = HttpSettings(host=given["http_host"], port=given["http_port"])
        async with sharing(given, WeightStore(given["root"])) as peers:
            agent = _agent(given, node, peers)
            if peers is not None:
                peers.server.on_refused = agent.suspect
            async with AgentServer(http, lambda: _status(agent, node, peers)) as server:
                log.info("serving HTTP", port=server.port, peers=peers is not None and peers.server.port)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(agent.run(), name="agent")
                    if isinstance(node, KubeNode):
                        tasks.create_task(node.run(), name="watches")
    return 0


async def plan(given: Given, as_json: bool) -> int:
    """Print what the agent would fetch and evict now. Nothing is changed. Return the exit code."""
    async with _node(given) as node:
        watching = asyncio.ensure_future(node.run()) if isinstance(node, KubeNode) else None
        try:
            await _synced(node)
            steps = await _agent(given, node).plan()
        except (WeightsError, OSError) as error:
            raise StartError(str(as_problem(error))) from error
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})
    if as_json:
        print(json.dumps({"steps": [_as_json(step) for step in steps]}, indent=2))
    else:
        _print(steps)
    return 1 if any(step.cause for step in steps) else 0


@asynccontextmanager
async def _node(given: Given) -> AsyncIterator[AgentNode]:
    """Open the node that the options name, or one without an API server."""
    clock = SystemClock()
    file = WishFile(given["wishes"], clock) if given["wishes"] else None
    if not given["node"]:
        if file is None:
            raise StartError("neither --node nor --wishes is given; allowed: one of them, or both")
        if given["as_node"]:
            raise StartError("--as-node is given without --node; allowed: both, or neither")
        yield LocalNode(file)
        return
    wish_file = _wish_file(file) if file is not None else None
    async with Kube.connect(KubeSettings(context=given["context"])) as kube:
        rules, as_node = _rules(given), given["as_node"]
        yield KubeNode(kube, clock, given["node"], given["namespace"], wish_file, serves=rules.serves, as_node=as_node)


def _wish_file(file: WishFile) -> Callable[[asyncio.Event], tuple[Wishes, str]]:
    return lambda changed: (file.current(changed), file.problem)


def _agent(given: Given, node: AgentNode, peers: Peers | None = None) -> Agent:
    fetching = FetchOptions(given, _rules(given))

    def open_origin(source: ModelSource) -> Origin:
        try:
            return fetching.origin(source)
        except StartError as error:  # the token; it may be there at the next attempt
            raise WeightsError(WeightsCause.DENIED, str(error)) from error

    store = WeightStore(given["root"], limits(given), makes_root=False)
    shared = peers.wrap(open_origin) if peers is not None else open_origin
    return Agent(store, shared, fetching.transfer, node, SystemClock(), _version(), given["max_cache_bytes"])


def _rules(given: Given) -> SourceRules:
    return SourceRules(given["allow_source"] or DEFAULT_RULES.allowed, given["private_source"])


def _version() -> str:
    try:
        return version("vllm-autoscaler")
    except PackageNotFoundError:
        return ""


def _status(agent: Agent, node: AgentNode, peers: Peers | None) -> AgentStatus:
    report, fetching, counts = agent.report(), agent.fetching, agent.counts
    outage = node.outage() if isinstance(node, KubeNode) else ""
    if outage and not report.cause:
        report = report._replace(cause=WeightsCause.UNREACHABLE, text=outage)
    shared = None
    if peers is not None:
        received, sent = peers.counts.peer_bytes, peers.server.transfers.sent_bytes
        shared = PeerStatus(received, sent, peers.counts.failures, peers.counts.rejected_files)
    return AgentStatus(
        report,
        fetching.source.key if fetching is not None else "",
        fetching.fetched if fetching is not None else 0,
        counts.fetched_bytes,
        counts.fetched_models,
        counts.failures,
        counts.evictions,
        counts.checks,
        agent.cache_bytes,
        shared,
    )


async def _synced(node: AgentNode) -> None:
    """Wait until pods and wishes are known. Raises StartError."""
    try:
        async with asyncio.timeout(SYNC_S):
            while isinstance(node, KubeNode) and not node.synced:
                node.changed.clear()
                await node.changed.wait()
    except TimeoutError:
        outage = node.outage() if isinstance(node, KubeNode) else ""
        raise StartError(f"pods and wishes of the node are not known: {outage or 'no answer'}") from None


def _as_json(step: AgentStep) -> dict[str, Any]:
    fields: dict[str, Any] = {"source": str(step.source), "key": step.source.key, "bytes": step.size}
    fields["action"] = "none" if step.cause else "fetch"
    return fields | {"evicts": list(step.evicted), "cause": str(step.cause), "text": step.text}


def _print(steps: list[AgentStep]) -> None:
    if not steps:
        print("nothing to do")
        return
    table = Table("model", "bytes", "evicts", "not fetched because", box=None, pad_edge=False)
    for step in steps:
        size = f"{step.size / 1e9:.3g} GB" if step.size else ""
        table.add_row(
            str(step.source), size, ", ".join(step.evicted), f"{step.cause}: {step.text}" if step.cause else ""
        )
    console = Console(soft_wrap=True)
    console.print(table) if console.is_terminal else Console(width=400).print(table)
