"""Queries that tell apart the sources of a pod: the processes that it is read from, and the servers that read it.

Most pods have one source. Only pods with several servers, or with series of different age, are in these answers.
"""

from __future__ import annotations

from itertools import chain

from autoscaler.adapters.prometheus.promql.engines import for_identity, if_beside, presence_rows
from autoscaler.adapters.prometheus.promql.expressions import by, duration, or_join, selectors
from autoscaler.adapters.prometheus.promql.labels import METRIC, PART, Identity, names_pods
from autoscaler.catalog.engines import GAUGES, Engine
from autoscaler.catalog.evaluate import PROCESS
from autoscaler.catalog.series import POD_LABELS

MIN_SPREAD_S = 10.0  # of ages that is always usual: two scrapes of 5 s, or a batch of remote writes
WINDOWS_S = (15.0, 60.0, 300.0)  # in which the samples of a series are counted
SCRAPES = 20  # of which all but two must be there
BEFORE = "before"  # label `part` of series that had a sample before the longest window


def source_times_query(engine: Engine, identity: Identity) -> str:
    """Return the query for the sample times of all series of pods with several servers, or with series of other age."""
    times, pod = _times(engine, identity), _pod(identity)
    servers = f"count {by(*identity)} (count {by(*identity, 'instance')} ({times})) > 1"
    return f"({times}) and on ({', '.join(pod)}) ({_uneven(times, pod)} or {servers})"


def cadence_query(engine: Engine, identity: Identity) -> str:
    """Return the query for the number of samples of these series within `WINDOWS_S`, and for those that are older.

    Label `part` is the window in seconds, or `BEFORE`.
    """
    uneven = f"on ({', '.join(_pod(identity))}) ({_uneven(_times(engine, identity), _pod(identity))})"
    readings = {f"{window_s:g}": f"count_over_time({{}}[{duration(window_s)}])" for window_s in WINDOWS_S}
    readings[BEFORE] = f"timestamp({{}} offset {duration(max(WINDOWS_S))})"
    rows = presence_rows(for_identity(engine, identity))
    return or_join(
        f"label_replace(({or_join(reading.format(text) for row in rows for text in selectors(row, row.name))}) and "
        f'{uneven}, "{PART}", "{part}", "", "")'
        for part, reading in readings.items()
    )


def sparse_query(engine: Engine, identity: Identity, apart_s: float) -> str:
    """Return the query for pods that are scraped less often than every `apart_s`, as most of their job are.

    Counted over 20 such times, in pods that were there before. Two scrapes may be missing.
    """
    rows = presence_rows(for_identity(engine, identity))
    span = duration(SCRAPES * apart_s)

    def of_pods(reading: str) -> str:
        series = or_join(reading.format(text) for row in rows for text in selectors(row, row.name))
        return f"max {by(*identity)} ({series})"

    pod = f"and on ({', '.join(identity)})"
    now, before = of_pods("{}"), of_pods(f"{{}} offset {span}")
    few = f"{of_pods(f'count_over_time({{}}[{span}])')} < {SCRAPES - 1} {pod} ({before}) {pod} ({now})"
    return f"({few}) and on (job) (count by (job) ({few}) > on (job) 0.5 * count by (job) ({now}))"


def dead_processes_query(engine: Engine, identity: Identity) -> str:
    """Return the query for all series of gauges of pods where one rank has series of several processes.

    Label `metric` is their name.
    """
    engine = for_identity(engine, identity)
    rows = (part for column in sorted(GAUGES) for row in engine.readings.get(column, ()) for part in row.parts())
    series = [(row.name, text) for row in dict.fromkeys(rows) for text in selectors(row, row.name)]
    several = or_join(f"count without ({PROCESS}) ({text}) > 1" for _, text in series)
    named = or_join(f'label_replace({text}, "{METRIC}", "{name}", "", "")' for name, text in series)
    return f"({named}) and on ({', '.join(identity)}) ({several})"


def _times(engine: Engine, identity: Identity) -> str:
    rows = presence_rows(for_identity(engine, identity))
    return or_join(if_beside(row, f"timestamp({text})", identity) for row in rows for text in selectors(row, row.name))


def _pod(identity: Identity) -> Identity:
    """Return the labels that name a pod, without those of the scrape it comes from."""
    return tuple(chain.from_iterable(POD_LABELS)) if names_pods(identity) else ("job", "instance")


def _uneven(times: str, pod: Identity) -> str:
    return f"max {by(*pod)} ({times}) - min {by(*pod)} ({times}) > {MIN_SPREAD_S:g}"
