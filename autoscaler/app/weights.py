"""`weights`: fetch, list, verify and remove the weights on this machine's disk."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from autoscaler.app.process import StartError
from autoscaler.config.findings import shown
from autoscaler.config.weights.allowed import EVERY_SOURCE, EVERYBODY, PrivateSources, SourceRules
from autoscaler.config.weights.report import State
from autoscaler.config.weights.source import InvalidSourceError, ModelSource, parse
from autoscaler.weights.budget import Limits
from autoscaler.weights.fetch import Transfer
from autoscaler.weights.listing import Origin
from autoscaler.weights.origins.https import Https
from autoscaler.weights.origins.object_store import Objects
from autoscaler.weights.problems import WeightsCause, WeightsError, as_problem
from autoscaler.weights.rate_limit import RateLimit
from autoscaler.weights.store import PublishedModel, WeightStore

LOCK_POLL_S = 0.5
STORES = ("s3", "gs", "az")  # whose requests are signed
MAX_TOKEN_BYTES = 4096
MAX_SHOWN_PATTERNS = 5
SHOWN_REFRESHES_PER_S = 4


class FetchOptions:
    """How models are fetched, as the options say."""

    def __init__(self, given: Mapping[str, Any], rules: SourceRules) -> None:
        """given: options of the command."""
        self._rules = rules
        self._hub: str = given["hub"]
        self._token_file: Path | None = given["token_file"]
        self._pickled: bool = given["allow_pickled"]
        self.transfer = Transfer(given["workers"], rate=RateLimit(given["rate"]) if given["rate"] else None)

    def origin(self, source: ModelSource) -> Origin:
        """Return the origin of a source, without asking it. Raises WeightsError and StartError."""
        if not self._rules.allows(source):
            patterns = ", ".join(pattern.text for pattern in self._rules.patterns[:MAX_SHOWN_PATTERNS])
            raise WeightsError(WeightsCause.NOT_ALLOWED, f"{source} may not be fetched; allowed: {patterns}")
        is_private = self._rules.is_private(source)
        if source.scheme != "hf":
            if source.scheme == "https":
                return Https(source, self._pickled)
            anonymous = source.scheme in STORES and not is_private
            return Objects(source, self._pickled, {"skip_signature": True} if anonymous else None)
        try:
            from autoscaler.weights.origins.hub import Hub  # noqa: PLC0415  half of the time that a command needs to start
        except ImportError as error:
            text = f"models of a hub need {error.name}, which is not installed: pip install 'vllm-autoscaler[weights]'"
            raise StartError(text) from error
        return Hub(source, self._hub, self._token() if is_private else "", self._pickled)

    def _token(self) -> str:
        if self._token_file is None:
            return os.environ.get("HF_TOKEN", "")
        try:
            with self._token_file.open("rb") as opened:
                token = opened.read(MAX_TOKEN_BYTES + 1).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"--token-file {shown(str(self._token_file))} cannot be read") from error
        if len(token) > MAX_TOKEN_BYTES or not token.isprintable():
            raise StartError(f"--token-file {shown(str(self._token_file))} holds no token")
        return token


def own_rules(given: Mapping[str, Any]) -> SourceRules:
    """Return the rules of a command whose credentials are those of whoever runs it."""
    allowed = given["allow_source"] or EVERY_SOURCE.allowed
    return SourceRules((), tuple(PrivateSources(pattern, frozenset([EVERYBODY])) for pattern in allowed))


def limits(given: Mapping[str, Any]) -> Limits:
    """Return what weights may take of the disk, as the options say."""
    return Limits(given["max_bytes"] or float("inf"), *given["min_free"])


async def pull(root: Path, limits: Limits, sources: Sequence[str], fetching: FetchOptions, wait_s: float) -> int:
    """Fetch models one after the other, and print where engines load each. Return the exit code.

    wait_s: for another process that changes the folder.
    """
    failed = 0
    with _expected():
        parsed = [parse(text) for text in sources]
        store = WeightStore(root, limits)
        with ExitStack() as stack:
            held = False
            for source in parsed:
                try:
                    origin = fetching.origin(source)
                    listing = await origin.describe()
                    if whole := store.find_whole(listing):  # also on a disk that cannot be written
                        print(f"{source}: {whole.path}")
                        continue
                    if not held:
                        await _hold(store, stack, wait_s)
                        held = True
                    with _progress(str(source), listing.size) as advance:
                        model = await store.pull(origin, fetching.transfer, advance, listing)
                    print(f"{source}: {model.path}")
                except (WeightsError, OSError) as found:
                    error = as_problem(found)
                    if error.cause is WeightsCause.BUSY:
                        raise
                    print(f"{error.cause}: {error}")
                    failed += 1
    return 1 if failed else 0


async def _hold(store: WeightStore, stack: ExitStack, wait_s: float) -> None:
    """Hold the folder until the stack ends. Raises WeightsError if another process holds it for longer."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            stack.enter_context(store.changing())
            return
        except WeightsError as error:
            if error.cause is not WeightsCause.BUSY or time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(min(LOCK_POLL_S, max(deadline_s - time.monotonic(), 0.0)))


def show(root: Path) -> int:
    """Print the models that are there. Return the exit code."""
    with _expected():
        store = WeightStore(root)
        models = store.models()
        for model in models:
            problem = store.find_incomplete(model)
            place = f"incomplete: {problem}" if problem else f"{model.path}{'  former' if model.is_former else ''}"
            print(f"{model.listing.source}  {_gigabytes(model.listing.size)}  {place}")
        report = store.read_report()
        if report is not None and report.cause:
            print(f"{report.cause}: {report.text}")
        complete = {model.listing.source.key for model in models}
        for key, reported in report.models.items() if report is not None else ():
            if reported.state is not State.READY and key not in complete:
                cause = f"  {reported.cause}: {reported.text}" if reported.cause else ""
                print(f"{reported.source}  {reported.state}{cause}")
    return 0


def verify(root: Path, sources: Sequence[str]) -> int:
    """Read models whole and print what is wrong with them. Return the exit code."""
    failed = 0
    with _expected():
        store = WeightStore(root)
        for model in _named(store, sources) if sources else store.models():
            with _progress(str(model.listing.source), model.listing.size) as advance:
                wrong = store.verify(model, advance)
            failed += bool(wrong)
            print(
                "\n".join(
                    f"{model.listing.source}: {problem}" for problem in wrong or ["complete, all checksums right"]
                )
            )
    return 1 if failed else 0


def remove(root: Path, sources: Sequence[str]) -> int:
    """Remove models. Return the exit code."""
    with _expected():
        store = WeightStore(root)
        with store.changing():
            begun = [text for text in sources if store.is_begun(parse(text).key)]
            for model in _named(store, [text for text in sources if text not in begun]):
                store.remove(model)
                print(f"{model.listing.source}: removed, {_gigabytes(model.listing.size)}")
            for text in begun:
                store.discard(parse(text).key)
                print(f"{text}: removed what a transfer has left")
    return 0


def _named(store: WeightStore, sources: Sequence[str]) -> list[PublishedModel]:
    """Return the models of these sources, and the former versions that they have left."""
    models, found = store.models(), []
    for text in sources:
        source = parse(text)
        if store.find(source.key) is None:
            raise StartError(f"{shown(text)} is not in {shown(str(store.root))}")
        found += [model for model in models if model.listing.source == source]
    return found


@contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and nothing in a file or a pipe."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=SHOWN_REFRESHES_PER_S
    ) as bar:
        task = bar.add_task(name, total=size)
        yield lambda count: bar.advance(task, count)


@contextmanager
def _expected() -> Iterator[None]:
    try:
        yield
    except InvalidSourceError as error:
        raise StartError(str(error)) from error
    except (WeightsError, OSError) as error:
        raise StartError(str(as_problem(error))) from error


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
