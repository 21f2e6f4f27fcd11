"""Conventions of a backend: which labels name pods, and how metric names are spelled. Query and answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoscaler.adapters.prometheus.promql.engines import engine_presence, presence_rows
from autoscaler.adapters.prometheus.promql.expressions import or_join
from autoscaler.adapters.prometheus.promql.gpus import GPU_PRESENCE
from autoscaler.adapters.prometheus.promql.labels import METRIC, POD, TARGET, Identity
from autoscaler.catalog.engines import ENGINES, Engine
from autoscaler.catalog.series import POD_LABELS, Readings
from autoscaler.catalog.spellings import PLAIN, Spelling, spelled

CONVENTIONS = "labels that name pods"  # name of this query in reports


@lru_cache(maxsize=8)  # it takes 60 ms to write
def convention_query(spellings: tuple[Spelling, ...]) -> str:
    """Return the query for the labels that name pods in a backend, and for the spelling of names.

    The answer always has at least one series, so that it shows the time of the server. See `read_conventions`.
    spellings: all spellings that names may have.
    """
    everything = engine_presence(spelled(engine, spellings) for engine in ENGINES.values())
    engines = f'label_replace({everything}, "{METRIC}", "engine/instance", "instance", ".+")'
    for _, pod in reversed(POD_LABELS):  # the first pair is written last, so it takes precedence
        engines = f'label_replace({engines}, "{METRIC}", "engine/{pod}", "{pod}", ".+")'
    histograms = (row.name for engine in ENGINES.values() for row in _histogram_of(spelled(engine, spellings)))
    native = or_join(dict.fromkeys(histograms))
    counts = {"gpu/pod": f"count({or_join(GPU_PRESENCE)})", "native": f"count({native})", "clock": "vector(1)"}
    counts |= {f"{_SPELLED}{spelling}": f"count({_presence(spelling)})" for spelling in spellings}
    others = (f'label_replace({count}, "{METRIC}", "{name}", "", "")' for name, count in counts.items())
    return or_join([*others, f"count by ({METRIC}) ({engines})"])


def spellings_query(spellings: Sequence[Spelling]) -> str:
    """Return the query for the spelling of metric names; see `read_spellings`."""
    return or_join(
        f'label_replace(count({_presence(spelling)}), "{METRIC}", "{_SPELLED}{spelling}", "", "")'
        for spelling in spellings
    )


def read_spellings(found: Iterable[str]) -> tuple[Spelling, ...]:
    """Return the spellings found, shortest prefix first; the engines' own spelling if none is found.

    found: labels `metric` of the answer to `spellings_query`.
    """
    texts = [name.removeprefix(_SPELLED) for name in found if name.startswith(_SPELLED)]
    read = (Spelling(text[:-1], text[-1]) for text in texts if text)
    return tuple(sorted(read, key=lambda spelling: (len(spelling.prefix), spelling))) or (PLAIN,)


_SPELLED = "spelled/"


def _presence(spelling: Spelling) -> str:
    """Return an expression with a series for each engine metric in this spelling.

    Names without a colon have the same spelling everywhere, so they show no other one.
    """
    required = ":" if spelling.colon != ":" else ""
    return engine_presence(
        spelled(engine, (spelling,))
        for engine in ENGINES.values()
        if any(required in row.name for row in presence_rows(engine))
    )


@dataclass(frozen=True)
class Conventions:
    """The conventions of a backend, as found by `convention_query`."""

    identities: tuple[Identity, ...] = (POD,)  # each gets its own queries; TARGET names scrape targets instead of pods
    pod_labels: tuple[tuple[str, str], ...] = (("namespace", "pod"),)  # pairs of POD_LABELS that name pods of engines
    gpus: bool = False  # there are GPU metrics
    series_without_pod: float = 0.0  # number of engine series that name no pod, but a scrape target
    series_without_target: float = 0.0  # number of those that name neither
    native: bool = False  # engines have native histograms
    spellings: tuple[Spelling, ...] = (PLAIN,)  # of engine metrics


def read_conventions(found: Mapping[str, float]) -> Conventions:
    """Return the conventions in an answer to `convention_query`. found: value of each series by its label `metric`."""
    pods = tuple(pair for pair in POD_LABELS if f"engine/{pair[1]}" in found)
    series_without_pod = "engine/instance" in found
    identities = ((POD,) if pods or not series_without_pod else ()) + ((TARGET,) if series_without_pod else ())
    return Conventions(
        identities=identities,
        pod_labels=pods or Conventions.pod_labels,
        gpus=any(name.startswith("gpu/") for name in found),
        series_without_pod=found.get("engine/instance", 0.0),
        series_without_target=found.get("", 0.0),
        native="native" in found,
        spellings=read_spellings(found),
    )


def _histogram_of(engine: Engine) -> Readings:
    """Return rows with the bare name of a histogram, which only native histograms use as a series name."""
    return engine.readings.get("ttft_met") or engine.readings.get("itl_s", ())
