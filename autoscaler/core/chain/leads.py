"""How long each link of a chain takes, from the cold starts that were measured."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.chain import Link
from autoscaler.core.model.phases import Phase, Starts
from autoscaler.core.model.types import Observation
from autoscaler.core.model.weights import PodCache
from autoscaler.core.observe.cold_start import ColdStarts
from autoscaler.core.table.columns import FloatColumn


def find_leads(observation: Observation, known: ColdStarts, starts: Starts) -> FloatColumn:
    """Return the lead of each link, float64[L, W], seconds; 0: the link is not needed.

    Where nodes say which weights they hold, the weights are fetched before the replica is requested, so that it finds
    them. Before a node was seen to be created, it counts as long as the prior says, or as a cold start.
    """
    lead_s, by_phase = np.zeros((len(Link), len(known.mean_s))), starts.known
    lead_s[Link.NODE] = np.where(np.isnan(known.node_wait_s) & ~by_phase, observation.cold_start_s, starts.node_s)
    reports = starts.cache != PodCache.UNKNOWN
    lead_s[Link.WEIGHTS] = np.where(starts.cache == PodCache.ABSENT, starts.fetch_s, 0.0)
    by_cache_s = starts.by_cache_p90_s
    replica_s = np.where(reports, by_cache_s[PodCache.HELD], by_cache_s[PodCache.UNKNOWN])
    replica_s = replica_s + np.where(starts.new_node, starts.p50_s[Phase.IMAGE], 0.0)
    lead_s[Link.REPLICA] = np.where(by_phase, replica_s, observation.cold_start_s)
    return lead_s
