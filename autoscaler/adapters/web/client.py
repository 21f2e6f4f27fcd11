"""Client of a running daemon for one explanation. The server may be anything, so time and size are bounded."""

from __future__ import annotations

import math
import os
from datetime import datetime

import aiohttp
import msgspec
from yarl import URL

from autoscaler.config.findings import UNREADABLE
from autoscaler.core.explain.format import seconds
from autoscaler.ports import Unavailable

TIMEOUT_S = 10.0
ASK = (
    "is the daemon running, and its port forwarded? In a cluster: "
    "kubectl -n vllm-autoscaler port-forward svc/vllm-autoscaler 8080"
)
MAX_ANSWER_BYTES = 1 << 20  # an explanation without history has some 10,000
NO_HISTORY = {"since": 2**53}
LONGEST_S = 1e7  # a longer start is not believed
NAME_CHARS = 12  # of the planner's lines

NODES = {"held": "a node with the weights", "absent": "a node without the weights", "unknown": "a node that exists"}
"""By published name of a cache state."""

FORECASTS = {"day_ago": "by the load of a day ago", "week_ago": "by the load of a week ago"}
"""By published name of the cause of a need."""

OLD = "What follows may no longer be so: {}."


class NoExplanation(Exception):
    """The daemon has no explanation; the message is the daemon's."""


class _ExplanationLine(msgspec.Struct):
    name: str
    text: str


class _Link(msgspec.Struct):
    link: str
    wall_s: float


class _Chain(msgspec.Struct):
    window: str
    wall_s: float
    replicas: int
    places: int
    links: list[_Link]
    cause: str = "window"


class _Quantiles(msgspec.Struct):
    p50_s: float | None = None
    p90_s: float | None = None


class _StartingPod(msgspec.Struct):
    pod: str
    phase: str
    for_s: float | None = None
    usual_s: float | None = None
    left_s: float | None = None
    late: bool = False


class _Start(msgspec.Struct):
    takes_s: float | None = None
    by_phase: bool = False
    starts: int = 0
    weights: str = "unknown"
    new_node: bool = False
    phases: dict[str, _Quantiles] = {}
    by_weights: dict[str, _Quantiles] = {}
    starting: list[_StartingPod] = []


class _Gpus(msgspec.Struct):
    sentence: str
    change: str = ""


class _Explanation(msgspec.Struct):
    sentence: str
    forecast: list[_ExplanationLine]
    warnings: list[str] = []
    pair: str = ""
    weights: str = ""
    chain: _Chain | None = None
    start: _Start | None = None
    gpus: _Gpus | None = None


class _ExplainAnswer(msgspec.Struct):
    stale: str = ""
    explanation: _Explanation | None = None
    error: str = ""


async def explanation(url: str, namespace: str, name: str, kind: str = "", timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return the explanation of one workload, line by line, fit for a terminal. kind: "" if one has the name.

    Raises Refused, or Unavailable where no daemon answers; neither repeats the URL's password and query.
    """
    base = URL(url)
    public = base.with_user(None).with_query(None).with_fragment(None)
    address = (
        (base / "api/v1/workloads" / namespace / name)
        .with_query(base.query)
        .update_query(NO_HISTORY | ({"kind": kind} if kind else {}))
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            body = await _read(response)
    except TimeoutError as error:
        raise Unavailable(f"no answer within {timeout_s:g} s from {public}; {ASK}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unavailable(f"no answer from {public}: {_reason(error)}; {ASK}") from error
    answer = _decode(body) if body is not None else _ExplainAnswer()
    if answer.error:
        raise NoExplanation(_printable(f"{public}: {answer.error}"))
    if answer.explanation is None:
        what = f"more than {MAX_ANSWER_BYTES} bytes" if body is None else f"HTTP {response.status}"
        raise Unavailable(f"{public} does not answer like the daemon ({what}); is another server running there?")
    lines = [f"  {line.name:<{NAME_CHARS}}{line.text}" for line in answer.explanation.forecast]
    if weights := answer.explanation.weights:
        lines = [f"  {'weights':<{NAME_CHARS}}{weights}", *lines]
    if pair := answer.explanation.pair:
        lines = [f"  {'pair':<{NAME_CHARS}}{pair}", *lines]
    if (chain := answer.explanation.chain) is not None:
        lines = [f"  {'next':<{NAME_CHARS}}{_next(chain)}", *lines]
    if (gpus := answer.explanation.gpus) is not None:
        lines.append(f"  {'gpus':<{NAME_CHARS}}{gpus.sentence}")
        lines += [f"  {'consider':<{NAME_CHARS}}{gpus.change}"] if gpus.change else []
    if answer.explanation.start is not None:
        lines += _start(answer.explanation.start)
    lines = [*(f"Warning: {warning}." for warning in answer.explanation.warnings), *lines]
    first = [OLD.format(answer.stale)] if answer.stale else []
    return [_printable(line) for line in (*first, answer.explanation.sentence, *lines)]


def _next(chain: _Chain) -> str:
    """Word the links of the next need, "12:40 node, 12:50 replica, for 13:00 window office (4 replicas)".

    Times are local. Raises nothing for times that are out of bounds.
    """
    links = ", ".join(f"{_clock(each.wall_s)} {each.link}" for each in chain.links)
    name = FORECASTS.get(chain.cause) or (f"window {chain.window}" if chain.window else "window")
    nodes = f"; places are on request for {chain.places}" if chain.places else ""
    return f"{links}, for {_clock(chain.wall_s)} {name} ({chain.replicas} replicas{nodes})"


def _start(start: _Start) -> list[str]:
    """Word the next start by phase, and each starting pod: "start 40 s on a node with the weights: image 1 s, ...".

    A phase that takes no time here, such as that of a node that exists, or whose time is unknown is left out.
    """
    where = "a new node" if start.new_node else NODES.get(start.weights, NODES["unknown"])
    heading = f"{_seconds(start.takes_s)} on {where}" if start.by_phase else _seconds(start.takes_s)
    phases = [
        f"{name.replace('_', ' ')} {_seconds(each.p50_s)} to {_seconds(each.p90_s)}"
        for name, each in start.phases.items()
        if _is_known(each.p50_s) and _is_known(each.p90_s) and each.p90_s
    ]
    learned = f", from {start.starts} {'start' if start.starts == 1 else 'starts'}" if start.starts else ""
    learned = ", assumed" if not start.starts and _is_known(start.takes_s) else learned
    lines = [f"  {'start':<{NAME_CHARS}}{heading}{learned}{': ' if phases else ''}{', '.join(phases)}"]
    states = [f"{_seconds(each.p90_s)} if {name}" for name, each in start.by_weights.items() if _is_known(each.p90_s)]
    if len(states) > 1:
        lines.append(f"  {'weights':<{NAME_CHARS}}on a node that exists, {', '.join(states)}")
    for pod in start.starting:
        usual = f", usually {_seconds(pod.usual_s)}" if pod.usual_s is not None else ""
        left = "; it is late" if pod.late else f"; ready in {_seconds(pod.left_s)}" if pod.left_s is not None else ""
        doing = f"{pod.phase.replace('_', ' ')} for {_seconds(pod.for_s)}"
        lines.append(f"  {'starting':<{NAME_CHARS}}{pod.pod}: {doing}{usual}{left}")
    return lines


def _seconds(value: float | None) -> str:
    return seconds(value if value is not None and _is_known(value) else math.nan)


def _is_known(value: float | None) -> bool:
    return value is not None and 0 <= value <= LONGEST_S


def _clock(wall_s: float) -> str:
    """Format a Unix time as the local time of day, with the date unless it is today."""
    try:
        moment = datetime.fromtimestamp(wall_s).astimezone()
        today = datetime.now().astimezone().date()
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{moment:%H:%M}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the body, or None if it is too large."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            return None
    return b"".join(parts)


def _decode(body: bytes) -> _ExplainAnswer:
    """Decode the body. Returns an empty answer if it is not the daemon's JSON."""
    try:
        return msgspec.json.decode(body, type=_ExplainAnswer)
    except UNREADABLE:
        return _ExplainAnswer()


def _reason(error: Exception) -> str:
    """Describe a failure without the library's own text, which may repeat the URL."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its name is not known"
        case aiohttp.ClientSSLError():
            return "no TLS there, or a certificate that is not trusted"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "it closed the connection"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return type(error).__name__


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
