"""What a cold start should take before one was seen: bytes over bandwidths, and medians of published starts.

T = node (if one is created) + image (if the node lacks it) + boot + weights / fetch rate (if the node lacks them)
+ weights / load rate + compilation + probe. A quantized model (AWQ, GPTQ, FP8) has fewer bytes, so `size_bytes` says
that already. Published times vary by an order of magnitude, so the sum of the phases is scaled to the cold start that
the policy states; learned starts replace both.
Sources: vLLM blog of 2025-10-26, the studies of Tensorfuse, KAITO and Bento, README files of the loaders.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.phases import PHASES, Phase
from autoscaler.core.table.columns import FloatColumn

IMAGE_THERE, WEIGHTS_ABSENT, WEIGHTS_HELD = PHASES, PHASES + 1, PHASES + 2
SLOTS = PHASES + 3
"""Rows of tables with a phase in each state of the node. The rows of `Phase` hold IMAGE on a new node, and WEIGHTS on a
node that does not say whether it has them; IMAGE on a node that existed before and WEIGHTS by state follow."""

MEDIANS_S = {
    Phase.NODE: 100.0,  # with driver and device plugin
    Phase.SCHEDULE: 1.0,
    Phase.IMAGE: 60.0,
    Phase.CONTAINER: 2.0,
    Phase.ENGINE: 30.0,  # 12 s for process and imports, 18 s to compile with a warm cache and to warm up
    Phase.READY: 4.0,
    Phase.FIRST_TOKEN: 5.0,
}
IMAGE_THERE_S = 1.0

PRIOR_SPREAD = 0.5  # of the logarithm of a phase: two thirds to five thirds of its median

GPU_BYTES = 16e9
"""Weights per GPU of a model of unknown size: 8 billion parameters of 16 bits."""

PEER_BYTES_PER_S = 1.2e9  # another node of the cluster has the weights
SOURCE_BYTES_PER_S = {"hf": 0.4e9, "s3": 1.5e9, "gs": 1.5e9, "az": 1.5e9, "https": 0.4e9, "file": 1.0e9}
UNKNOWN_SOURCE_BYTES_PER_S = 0.6e9

LOAD_BYTES_PER_S = 2e9  # from the node into one GPU, by the engine's own loader
LOADERS = {
    "runai_streamer": 3.0,
    "runai_streamer_sharded": 3.0,
    "fastsafetensors": 3.0,
    "instanttensor": 8.0,
    "tensorizer": 2.0,
    "sharded_state": 1.5,
    "ipc_cache": 20.0,
    "modelexpress": 4.0,
    "dummy": 100.0,
}
"""How many times as fast as its own loader the load formats of vLLM are, about."""


class Prior(NamedTuple):
    """What starts should take, by state."""

    slots_s: FloatColumn  # float64[SLOTS, W]
    loader: FloatColumn  # float64[W], identity of the load format; 0: the engine's own
    stated_s: FloatColumn  # float64[W], cold start that the policy states


def expect(fleet: Fleet, stated_s: FloatColumn) -> Prior:
    """Return what the starts of each workload should take. stated_s: float64[W], cold start that its policy states."""
    count = len(fleet.workloads)
    gpus = np.where(fleet.gpus_per_replica >= 1, fleet.gpus_per_replica, 1.0)
    number: dict[str, int] = {}
    loader = np.array([number.setdefault(workload.loader, len(number)) for workload in fleet.workloads], np.int64)
    load_rate = LOAD_BYTES_PER_S * gpus * np.array([LOADERS.get(name, 1.0) for name in number])[loader]
    size, fetch_rate = GPU_BYTES * gpus, np.full(count, UNKNOWN_SOURCE_BYTES_PER_S)
    if fleet.weights is not None:
        weights = fleet.weights
        size = np.where(weights.size_bytes > 0, weights.size_bytes, size)
        rates = [
            SOURCE_BYTES_PER_S.get(source.partition(":")[0], UNKNOWN_SOURCE_BYTES_PER_S) for source in weights.sources
        ]
        fetch_rate = np.array([*rates, UNKNOWN_SOURCE_BYTES_PER_S])[weights.source]
        peers = np.bincount(weights.places.workload, weights.places.nodes_held, minlength=count) > 0
        fetch_rate = np.where(peers, np.maximum(fetch_rate, PEER_BYTES_PER_S), fetch_rate)
    slots_s = np.empty((SLOTS, count))
    for phase, median_s in MEDIANS_S.items():
        slots_s[phase] = median_s
    slots_s[IMAGE_THERE] = IMAGE_THERE_S
    slots_s[WEIGHTS_HELD] = size / load_rate
    slots_s[[Phase.WEIGHTS, WEIGHTS_ABSENT]] = size / fetch_rate + size / load_rate
    # The policy states the start to count with, so it is the 90th percentile of the prior.
    parts_s = slots_s[_UNTIL_READY]
    most_s = parts_s.sum(axis=0) + (np.exp(PRIOR_SPREAD) - 1) * np.sqrt((parts_s**2).sum(axis=0))
    slots_s[_SCALED] *= np.where(stated_s > 0, stated_s / most_s, 1.0)
    return Prior(slots_s, np.array([identity(name) for name in number])[loader], stated_s)


@lru_cache(maxsize=1024)
def identity(name: str) -> float:
    """Return a number for a name, the same in every process; 0: there is no name."""
    return float(zlib.crc32(name.encode())) if name else 0.0


_SCALED = np.array([slot for slot in range(SLOTS) if slot not in (Phase.NODE, Phase.FIRST_TOKEN)])
_UNTIL_READY = [Phase.SCHEDULE, IMAGE_THERE, Phase.CONTAINER, Phase.WEIGHTS, Phase.ENGINE, Phase.READY]
