"""Share weights with the agents of other nodes, as the options of `weights agent` say."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.agent.peers import AgentDirectory
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.app.process import StartError
from autoscaler.config.findings import shown
from autoscaler.config.settings import KubeSettings
from autoscaler.weights.peers.directory import Directory, StaticDirectory
from autoscaler.weights.peers.peers import Peers, Tls
from autoscaler.weights.peers.token import ClusterToken, TokenError
from autoscaler.weights.store import WeightStore

log = structlog.get_logger(__name__)

Given = Mapping[str, Any]


@asynccontextmanager
async def sharing(given: Given, store: WeightStore) -> AsyncIterator[Peers | None]:
    """Serve other agents, and ask them; None: there is no token, or no list of agents. Raises CannotServe."""
    token = _token(given)
    if token is None:
        yield None
        return
    async with AsyncExitStack() as stack:
        directory: Directory = StaticDirectory(given["peer"])
        if given["peer_service"]:
            kube = await stack.enter_async_context(Kube.connect(KubeSettings(context=given["context"])))
            directory = AgentDirectory(kube, SystemClock(), *given["peer_service"])
        rate = given["peer_rate"] or 0.0
        peers = Peers(store, directory, token, given["peer_host"], given["peer_port"], rate, _tls(given))
        yield await stack.enter_async_context(peers)


def _token(given: Given) -> ClusterToken | None:
    path = given["peer_token_file"]
    if path is None:
        if given["peer"] or given["peer_service"]:
            raise StartError("--peer-token-file is missing; allowed: a file with the token that all agents share")
        return None
    if not given["peer"] and not given["peer_service"]:
        raise StartError("neither --peer nor --peer-service is given; allowed: one of them with --peer-token-file")
    if given["peer"] and given["peer_service"]:
        raise StartError("--peer and --peer-service are given; allowed: one of them")
    if not path.exists():  # the Secret of the shipped DaemonSet is optional
        log.warning("weights are not shared with other agents: there is no token", file=str(path))
        return None
    try:
        return ClusterToken(path)
    except TokenError as error:
        raise StartError(f"--peer-token-file {error}") from error


def _tls(given: Given) -> Tls | None:
    files = [given[f"peer_tls_{name}"] for name in ("cert", "key", "ca")]
    if not any(files):
        return None
    if not all(files):
        raise StartError("--peer-tls-cert, --peer-tls-key and --peer-tls-ca go together; allowed: all or none")
    tls = Tls(*files)
    try:
        tls.context(ssl.Purpose.SERVER_AUTH)
    except (OSError, ValueError) as error:
        raise StartError(f"{', '.join(shown(str(file)) for file in files)}: no certificates of TLS") from error
    return tls
