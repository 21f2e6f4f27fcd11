"""How long each link of a chain takes, from the cold starts that were measured."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.chain import Link
from autoscaler.core.model.types import Observation
from autoscaler.core.observe.cold_start import ColdStarts
from autoscaler.core.table.columns import FloatColumn


def find_leads(observation: Observation, known: ColdStarts) -> FloatColumn:
    """Return the lead of each link, float64[L, W], seconds; 0: the link is not needed.

    Before a node was seen to be created, it counts as long as a cold start.
    """
    lead_s = np.zeros((len(Link), len(known.mean_s)))
    lead_s[Link.NODE] = np.where(np.isnan(known.node_wait_s), observation.cold_start_s, known.node_wait_s)
    lead_s[Link.REPLICA] = observation.cold_start_s
    return lead_s
