"""Tables of clients: how many requests each client of a service sends in each window, and how they are spread.

A service of another size has as many clients, which send more or fewer requests. So requests are drawn client by
client, and bursts of one client stay bursts of one client. Copies of a trace would burst together instead.

The columns are those of ServeGen's data: `t_s` (start of a window), `client`, `requests` (count), `cv` (of the gaps),
`dist` (`G` Gamma or `W` Weibull), `shape` of that law, `active_frac` (share of the window with requests). A table of
`*_tokens` beside `*_clients` has quantiles of the lengths: `t_s,client,field,mean,q0.01,...`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.inputs.files import open_decompressed
from autoscaler.lab.replay.inputs.trace_file import MOST_REQUESTS, TraceError

COLUMNS = ("t_s", "client", "requests", "cv", "dist", "shape", "active_frac")
FIELDS = ("input_tokens", "output_tokens")
MOST_BYTES = 200_000_000
MOST_CV = 8.0  # of a client that sends less than in the table: a burst of thousands needs a service of full size


@dataclass(frozen=True)
class ClientActivity:
    """The requests of one client in one window."""

    start_s: float
    requests: float
    is_weibull: bool
    shape: float
    active: float  # share of the window, 0..1


@dataclass(frozen=True)
class ClientTable:
    """The clients of one service."""

    name: str
    window_s: float
    duration_s: float
    clients: Mapping[int, Sequence[ClientActivity]]  # in the order of time
    # by client and field: start of each window, float64[n], probabilities, float64[q], and quantiles, float64[n, q]
    lengths: Mapping[tuple[int, str], tuple[FloatColumn, FloatColumn, FloatColumn]]


def is_client_table(path: Path) -> bool:
    """Return whether the header of a file is that of a table of clients. A pipe is none, since it is read once."""
    if not path.is_file():
        return False
    try:
        with open_decompressed(path) as (file, _):
            header = file.readline(1000)
    except OSError:
        return False
    return header.strip().decode(errors="replace").split(",") == list(COLUMNS)


def load(path: Path) -> ClientTable:
    """Read a table of clients, and the table of lengths beside it. Raises TraceError."""
    clients: dict[int, list[ClientActivity]] = {}
    starts = set()
    for number, row in _rows(path):
        try:
            start_s, client = float(row["t_s"]), int(row["client"])
            activity = ClientActivity(
                start_s, float(row["requests"]), row["dist"] == "W", float(row["shape"]), float(row["active_frac"])
            )
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        if not (start_s >= 0 and 0 <= activity.requests <= MOST_REQUESTS and 0.01 <= activity.shape <= 1e9):
            raise TraceError(f"{path}, line {number}: t_s, requests or shape is out of range: {row}")
        if not 0 < activity.active <= 1:
            raise TraceError(f"{path}, line {number}: active_frac is {activity.active:g}; allowed: above 0, at most 1")
        clients.setdefault(client, []).append(activity)
        starts.add(start_s)
    if len(starts) < 2:
        raise TraceError(f"{path}: it has {len(starts)} windows; needed: two or more")
    window_s = float(np.diff(sorted(starts)).min())
    ordered = {client: sorted(each, key=lambda one: one.start_s) for client, each in sorted(clients.items())}
    name = path.name.removesuffix(".gz").removesuffix(".csv").removesuffix("_clients")
    beside = path.with_name(path.name.replace("_clients", "_tokens"))
    if beside == path or not beside.exists():
        raise TraceError(f"{path}: no table of lengths beside it; needed: {name}_tokens.csv or .csv.gz")
    return ClientTable(name, window_s, max(starts) + window_s, ordered, _load_lengths(beside))


def draw(table: ClientTable, scale: float, seed: int, from_s: float = 0.0, to_s: float = math.inf) -> Trace:
    """Draw the requests of an interval, which begins at 0 in the trace. Each client sends `scale` times its requests.

    Above 1, each client is drawn several times, independently. Raises ValueError at more than `MOST_REQUESTS`.
    """
    to_s = min(to_s, table.duration_s)
    if not 0 <= from_s < to_s:
        raise ValueError(f"from {from_s:g} to {to_s:g} s: must be an interval within 0..{table.duration_s:g} s")
    expected = scale * sum(
        each.requests
        for activities in table.clients.values()
        for each in activities
        if from_s <= each.start_s + table.window_s and each.start_s < to_s
    )
    if expected > MOST_REQUESTS:
        raise ValueError(f"{table.name}: {expected:,.0f} requests are more than {MOST_REQUESTS:,}, the limit")
    copies = math.ceil(scale)
    random = np.random.default_rng((seed, 3))
    arrivals, senders = [], []
    for client, activities in table.clients.items():
        some = [each for each in activities if from_s <= each.start_s + table.window_s and each.start_s < to_s]
        for _ in range(copies if some else 0):
            arrival_s = _walk(some, table.window_s, scale / copies, random)
            arrival_s = arrival_s[(arrival_s >= from_s) & (arrival_s < to_s)]
            arrivals.append(arrival_s)
            senders.append(np.full(len(arrival_s), client))
    arrival_s = np.concatenate(arrivals) if arrivals else np.zeros(0)
    order = np.argsort(arrival_s, kind="stable")
    arrival_s = arrival_s[order]
    sender = np.concatenate(senders)[order] if senders else np.zeros(0, np.int64)
    prompt, output = (_draw_lengths(table, field, arrival_s, sender, random) for field in FIELDS)
    return Trace(table.name, arrival_s - from_s, prompt, output, to_s - from_s)


def _walk(
    activities: Sequence[ClientActivity], window_s: float, scale: float, random: np.random.Generator
) -> FloatColumn:
    """Return the arrivals of one client: a renewal process in expected requests, with the law of each window.

    What is left of a gap at the end of a window goes on in the next one.
    """
    found = []
    left = random.uniform()  # expected requests until the next arrival
    for place, each in enumerate(activities):
        expected = each.requests * scale
        gaps: list[FloatColumn] = [np.array([left])]
        while sum(float(np.sum(part)) for part in gaps) < expected:
            gaps.append(_gaps(each, expected, scale, max(int(expected), 8), random))
        position = np.cumsum(np.hstack(gaps))
        inside = position[position < expected]
        left = float(position[len(inside)] - expected)
        before = place > 0 and activities[place - 1].start_s + window_s >= each.start_s - 1e-6
        after = place + 1 < len(activities) and activities[place + 1].start_s <= each.start_s + window_s + 1e-6
        room_s = (1 - each.active) * window_s
        offset_s = room_s * (random.uniform() if before == after else float(after))
        found.append(each.start_s + offset_s + inside / max(expected, 1e-12) * each.active * window_s)
    return np.concatenate(found)


def _gaps(each: ClientActivity, expected: float, scale: float, count: int, random: np.random.Generator) -> FloatColumn:
    """Draw gaps with a mean of 1. Below full scale their variation is limited by the number of requests."""
    shape = each.shape
    if scale < 1:  # the limit is that of a Gamma law; a Weibull law of this shape varies about as much
        most = min(MOST_CV, math.sqrt(max(expected, 1.0)))
        shape = max(shape, (1 / most) if each.is_weibull else 1 / most**2)
    if each.is_weibull:
        gaps: FloatColumn = random.weibull(shape, count) / math.gamma(1 + 1 / shape)
        return gaps
    return random.gamma(shape, 1 / shape, count)


def _draw_lengths(
    table: ClientTable, field: str, arrival_s: FloatColumn, sender: IntColumn, random: np.random.Generator
) -> IntColumn:
    """Draw lengths from the quantiles of each client. One without any has those of the others, by their traffic."""
    known = np.array([client for client in table.clients if (client, field) in table.lengths], np.int64)
    if not len(known):
        raise ValueError(f"{table.name}: no client has lengths of {field}")
    traffic = np.array([sum(each.requests for each in table.clients[client]) for client in known.tolist()])
    source = np.where(np.isin(sender, known), sender, random.choice(known, len(sender), p=traffic / traffic.sum()))
    chance = random.uniform(size=len(arrival_s))
    tokens = np.ones(len(arrival_s))
    for client in known.tolist():
        starts_s, probabilities, quantiles = table.lengths[client, field]
        rows = np.flatnonzero(source == client)
        window = np.maximum(np.searchsorted(starts_s, arrival_s[rows], side="right") - 1, 0)
        for place in np.unique(window).tolist():
            here = rows[window == place]
            tokens[here] = np.interp(chance[here], probabilities, quantiles[place])
    return np.maximum(np.round(tokens), 1).astype(np.int64)


def _load_lengths(path: Path) -> dict[tuple[int, str], tuple[FloatColumn, FloatColumn, FloatColumn]]:
    parts: dict[tuple[int, str], list[tuple[float, list[float]]]] = {}
    probabilities = np.zeros(0)
    for number, row in _rows(path):
        names = [name for name in row if name.startswith("q")]
        try:
            probabilities = np.array([float(name[1:]) for name in names])
            quantiles = [float(row[name]) for name in names]
            key = int(row["client"]), row["field"]
            parts.setdefault(key, []).append((float(row["t_s"]), quantiles))
        except (TypeError, ValueError, KeyError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        if not quantiles or not all(0 <= each < math.inf for each in quantiles):
            raise TraceError(f"{path}, line {number}: quantiles must be numbers, 0 or more: {row}")
    return {
        key: (np.array([start for start, _ in rows]), probabilities, np.array([each for _, each in rows]))
        for key, rows in ((key, sorted(each)) for key, each in parts.items())
    }


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with its line. Raises TraceError."""
    try:
        with open_decompressed(path) as (file, _):
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: {error}") from error
    if len(data) > MOST_BYTES:
        raise TraceError(f"{path}: more than {MOST_BYTES:,} bytes, the limit")
    reader = csv.DictReader(io.StringIO(data.decode(errors="replace")))
    for row in reader:
        yield reader.line_num, row
