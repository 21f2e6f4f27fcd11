"""`weights wait`: an engine starts from the weights on its node, or from its own if they do not get there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoscaler.app.process import StartError
from autoscaler.app.weights import FetchOptions, pull
from autoscaler.config.findings import shown
from autoscaler.config.weights.source import InvalidSourceError, parse
from autoscaler.weights import pod_view
from autoscaler.weights.budget import Limits
from autoscaler.weights.problems import WeightsError
from autoscaler.weights.store import PublishedModel, WeightStore

POLL_S = 0.5


async def wait(root: Path, into: Path, text: str, timeout_s: float, fetching: FetchOptions) -> int:
    """Link the node's copy of a model into a folder of the pod, or fetch it there. Return the exit code.

    root: of the node, only read. timeout_s: in which nothing arrives there, before the pod fetches for itself.
    """
    try:
        source = parse(text)
    except InvalidSourceError as error:
        raise StartError(str(error)) from error
    print(f"waiting until {root} holds {source}", flush=True)
    model = await published(WeightStore(root), source.key, timeout_s)
    with _writing(into):
        if model is not None:
            print(f"{source}: {pod_view.link(into, root, model)}")
            return 0
        pod_view.clear_links(into, source)
    print(f"nothing arrived in {root} for {timeout_s:g} s; {source} is fetched for this pod alone", flush=True)
    code = await pull(into, Limits(), [text], fetching, timeout_s)
    model = WeightStore(into).find(source.key)
    if model is not None:
        with _writing(into):
            pod_view.name(into, model)
    return code


@contextmanager
def _writing(into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(f"{shown(str(into))} cannot be written: {error.strerror}") from error


async def published(store: WeightStore, key: str, patience_s: float) -> PublishedModel | None:
    """Return a model when it is published; None: nothing of it arrives any more."""
    trace, since_s = store.trace(key), time.monotonic()
    while True:
        try:
            model = store.find(key)
            if model is not None and not store.find_incomplete(model):
                return model
        except (WeightsError, OSError):
            pass  # the disk of the node: the pod goes on without it
        now_s, found = time.monotonic(), store.trace(key)
        if found != trace:
            trace, since_s = found, now_s
        elif now_s - since_s >= patience_s:
            return None
        await asyncio.sleep(POLL_S)
