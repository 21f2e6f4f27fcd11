"""Which labels name pods in a backend, and how metric names are spelled there: the query and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.adapters.prometheus.promql.engines import clock_of, engines_presence
from autoscaler.adapters.prometheus.promql.expressions import either
from autoscaler.adapters.prometheus.promql.gpus import GPU_PRESENCE
from autoscaler.adapters.prometheus.promql.labels import METRIC, POD, TARGET, Identity
from autoscaler.catalog.engines import ENGINES, Engine
from autoscaler.catalog.series import POD_LABELS, Readings
from autoscaler.catalog.spellings import PLAIN, Spelling, spelled

CONVENTIONS = "labels that name pods"  # what problems call the query for them


def convention_query(spellings: Sequence[Spelling]) -> str:
    """Return the query that tells which labels name pods in this backend, and how names are spelled.

    spellings: that names may have. See `read_conventions`.

    It has one series even where no engine and no GPU is known, so that its answer always tells the server's time.
    """
    everything = engines_presence(spelled(engine, spellings) for engine in ENGINES.values())
    way = f'label_replace({everything}, "{METRIC}", "engine/instance", "instance", ".+")'
    for _, pod in reversed(POD_LABELS):  # the first pair is written last: it decides
        way = f'label_replace({way}, "{METRIC}", "engine/{pod}", "{pod}", ".+")'
    whole = (row.name for engine in ENGINES.values() for row in _histogram_of(spelled(engine, spellings)))
    native = either(dict.fromkeys(whole))
    counts = {"gpu/pod": f"count({either(GPU_PRESENCE)})", "native": f"count({native})", "clock": "vector(1)"}
    counts |= {f"{_SPELLED}{spelling}": f"count({_presence(spelling)})" for spelling in spellings}
    others = (f'label_replace({count}, "{METRIC}", "{name}", "", "")' for name, count in counts.items())
    return either([*others, f"count by ({METRIC}) ({way})"])


def spellings_query(spellings: Sequence[Spelling]) -> str:
    """Return the query that tells how names are spelled; see `read_spellings`."""
    return either(
        f'label_replace(count({_presence(spelling)}), "{METRIC}", "{_SPELLED}{spelling}", "", "")'
        for spelling in spellings
    )


def read_spellings(found: Iterable[str]) -> tuple[Spelling, ...]:
    """Return how names are spelled, the shortest first; as the engines themselves do, where nothing is found.

    found: the labels `metric` of the answer to `spellings_query`.
    """
    texts = [name.removeprefix(_SPELLED) for name in found if name.startswith(_SPELLED)]
    read = (Spelling(text[:-1], text[-1]) for text in texts if text)
    return tuple(sorted(read, key=lambda spelling: (len(spelling.prefix), spelling))) or (PLAIN,)


_SPELLED = "spelled/"


def _presence(spelling: Spelling) -> str:
    """Return an expression that has a series wherever an engine's name is spelled so; without a colon none is."""
    named = ":" if spelling.colon != ":" else ""
    return engines_presence(
        spelled(engine, (spelling,))
        for engine in ENGINES.values()
        if any(named in row.name for row in clock_of(engine))
    )


@dataclass(frozen=True)
class Conventions:
    """Which labels name pods in a backend, as `convention_query` found it."""

    identities: tuple[Identity, ...] = (POD,)  # each is asked for; those of TARGET name scrape targets alone
    pod_labels: tuple[tuple[str, str], ...] = (("namespace", "pod"),)  # pairs of POD_LABELS that name engines' pods
    gpus: bool = False  # there are readings of GPUs
    nameless: float = 0.0  # series of engines that name no pod
    native: bool = False  # there are native histograms of engines, which have no buckets as series
    spellings: tuple[Spelling, ...] = (PLAIN,)  # of the names of engines' metrics


def read_conventions(found: Mapping[str, float]) -> Conventions:
    """Return what the answer to `convention_query` says: the value of each series by its label `metric`."""
    pods = tuple(pair for pair in POD_LABELS if f"engine/{pair[1]}" in found)
    nameless = "engine/instance" in found
    identities = ((POD,) if pods or not nameless else ()) + ((TARGET,) if nameless else ())
    return Conventions(
        identities=identities,
        pod_labels=pods or Conventions.pod_labels,
        gpus=any(name.startswith("gpu/") for name in found),
        nameless=found.get("engine/instance", 0.0),
        native="native" in found,
        spellings=read_spellings(found),
    )


def _histogram_of(engine: Engine) -> Readings:
    """Return the rows that name a histogram whole, as a native one is named, by which it is told that there are any."""
    return engine.readings.get("ttft_met") or engine.readings.get("itl_s", ())
