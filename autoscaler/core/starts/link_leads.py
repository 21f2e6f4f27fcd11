"""How long each link of a chain takes, from the cold starts that were measured."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.chain import Link
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.types import TickInput
from autoscaler.core.model.weights import PodCache
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.table.columns import BoolColumn, FloatColumn


def find_leads(
    inp: TickInput, observation: Observation, known: ColdStarts, starts: Starts, on_requested: BoolColumn
) -> FloatColumn:
    """Return the lead of each link, float64[L, W], seconds; 0: the link is not needed.

    on_requested: bool[W], the replicas go to nodes that are requested for them; the others where the next one goes.

    Nothing comes before a replica unless nodes are requested, or weights are fetched by plan: its lead is then the
    whole cold start. It also is where a node is created only for the pod of the replica. A requested node exists by
    then, but lacks images and weights, even if it is up already. Where nodes say which weights they hold, planned
    weights are there before it starts. Before a node was seen to be created, it counts as long as the prior says, or as
    a cold start.
    """
    lead_s = np.zeros((len(Link), len(known.mean_s)))
    lead_s[Link.REPLICA] = observation.cold_start_s
    if inp.requests_nodes is None and not inp.fetches_weights:
        return lead_s
    requested = np.zeros(len(known.mean_s), dtype=bool) if inp.requests_nodes is None else inp.requests_nodes
    new_node = starts.new_node | on_requested
    by_phase = starts.known & (~new_node | requested)
    cache = np.where(on_requested & (starts.cache == PodCache.HELD), PodCache.ABSENT, starts.cache)
    unseen = np.isnan(known.node_wait_s) & ~starts.known
    lead_s[Link.NODE] = np.where(requested, np.where(unseen, observation.cold_start_s, starts.node_s), 0.0)
    if inp.fetches_weights:
        lead_s[Link.WEIGHTS] = np.where(by_phase & (cache == PodCache.ABSENT), starts.fetch_s, 0.0)
        cache = np.where(cache == PodCache.ABSENT, PodCache.HELD, cache)
    ready_s = starts.by_cache_p90_s[cache, np.arange(len(cache))]
    ready_s = ready_s + np.where(new_node, starts.image_s, 0.0)
    lead_s[Link.REPLICA] = np.where(by_phase, ready_s, observation.cold_start_s)
    return lead_s
