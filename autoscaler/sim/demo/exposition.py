"""`/metrics` of a simulated replica: names, labels, types, help, bounds and order as recorded from vLLM 0.32.

The constant text is laid out once per engine process; a rendering fills in the values. It differs from the recording in
three places: `python_*` and `process_*` are constants or approximate, `cache_config_info` shows the profile, and
`http_*` counts completions only.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from autoscaler.sim.demo.families import Buckets, Family, Labels, Simple, Value, engine, http, process, sleep_mode
from autoscaler.sim.demo.text import labels, number
from autoscaler.sim.engine.metrics import EngineHistogram
from autoscaler.sim.engine.replica import Replica

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class VllmExposition:
    """The `/metrics` page of one engine process."""

    def __init__(self, replica: Replica, model_name: str, started_wall_s: float, serving_wall_s: float) -> None:
        """Lay out the page. The times are Unix seconds: start of the process, and of its metrics."""
        self._replica = replica
        self._engine = {"engine": "0", "model_name": model_name}
        self._started_wall_s = started_wall_s
        self._created = number(serving_wall_s)
        self._seen: tuple[bool, ...] = ()
        self._template = ""
        self._readers: list[Callable[[list[str]], None]] = []

    def render(self) -> str:
        """Return the page with the present values."""
        metrics = self._replica.metrics
        seen = (
            metrics.http_ok > 0,
            metrics.sleep.count > 0,
            metrics.wake_up.count > 0,
        )
        if seen != self._seen:  # some series appear with their first event
            self._seen = seen
            self._lay_out(seen)
        values: list[str] = []
        for read in self._readers:
            read(values)
        return self._template % tuple(values)

    def _lay_out(self, seen: tuple[bool, ...]) -> None:
        self._readers = []
        lines: list[str] = []
        families = process(self._started_wall_s) + engine(self._engine, self._replica.profile)
        for family in families + sleep_mode(*seen[1:]) + http(seen[0]):
            self._add(lines, family)
        self._template = "".join(lines)

    def _add(self, lines: list[str], family: Family) -> None:
        replica = self._replica
        kind = family.kind if isinstance(family, Simple) else "histogram" if isinstance(family, Buckets) else "summary"
        lines.append(_head(family.name, kind, family.help))
        if isinstance(family, Simple):
            for names, value in family.series:
                lines.append(_slot(family.name, names))
                self._readers.append(_one(replica, value))
        elif isinstance(family, Buckets):
            for names, histogram in family.series:
                found = histogram(replica.metrics)
                bounds = (*map(number, found.bounds), "+Inf")
                lines += [_slot(f"{family.name}_bucket", {**names, "le": bound}) for bound in bounds]
                lines += [_slot(f"{family.name}_count", names), _slot(f"{family.name}_sum", names)]
                self._readers.append(_buckets(found))
        else:
            for names, count, total in family.series:
                lines += [_slot(f"{family.name}_count", names), _slot(f"{family.name}_sum", names)]
                self._readers += [_one(replica, count), _one(replica, total)]
        # The recorded server exports no creation time for the collectors of the Python client itself.
        if kind != "gauge" and family.series and not family.name.startswith(("python_", "process_")):
            created = family.name.removesuffix("_total") if kind == "counter" else family.name
            lines.append(_head(f"{created}_created", "gauge", family.help))
            lines += [_line(f"{created}_created", names, self._created) for names, *_ in family.series]


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _line(name: str, names: Labels, value: str) -> str:
    text = f"{name}{labels(dict(sorted(names.items())))}".replace("%", "%%")  # the page is a template
    return f"{text} {value}\n"


def _slot(name: str, names: Labels) -> str:
    return _line(name, names, "%s")


def _one(replica: Replica, value: Value) -> Callable[[list[str]], None]:
    if not callable(value):
        constant = number(value)
        return lambda values: values.append(constant)
    return lambda values: values.append(number(value(replica)))


def _buckets(histogram: EngineHistogram) -> Callable[[list[str]], None]:
    def read(values: list[str]) -> None:
        cumulative = list(accumulate(histogram.counts))
        # Much faster than `number`, and equal below a million.
        values += [f"{count}.0" if count < 1_000_000 else number(count) for count in cumulative]
        values += [number(cumulative[-1]), number(histogram.total)]

    return read
