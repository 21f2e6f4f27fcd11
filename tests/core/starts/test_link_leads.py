"""Leads of the links of a chain: what of a cold start something else does before the replica is requested."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.chain import Link
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.weights import PodCache
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.starts.link_leads import find_leads
from tests.core.world import fleet, spec, world

UNKNOWN, ABSENT, HELD = PodCache.UNKNOWN, PodCache.ABSENT, PodCache.HELD
COLD_S, NODE_S, FETCH_S, IMAGE_S = 900.0, 240.0, 300.0, 60.0
READY_S = {UNKNOWN: 350.0, ABSENT: 500.0, HELD: 200.0}


def leads(
    cache: PodCache,
    new_node: bool,
    *,
    nodes: bool = False,
    weights: bool = False,
    known: bool = True,
    requested: bool = False,
) -> dict[Link, float]:
    starts = Starts.unknown(1, 0)
    starts = replace(
        starts,
        known=np.array([known]),
        cache=np.array([int(cache)]),
        new_node=np.array([new_node]),
        by_cache_p90_s=np.array([[READY_S[each]] for each in PodCache]),
        node_s=np.array([NODE_S]),
        image_s=np.array([IMAGE_S]),
        fetch_s=np.array([FETCH_S]),
    )
    observation = replace(Observation.filled(1), cold_start_s=np.array([COLD_S]))
    inp = replace(
        world(0.0, fleet([1]), spec()),
        requests_nodes=np.ones(1, dtype=bool) if nodes else None,
        fetches_weights=weights,
    )
    found = find_leads(inp, observation, ColdStarts.blank(1), starts, np.array([requested]))
    return {link: float(found[link, 0]) for link in Link}


@pytest.mark.parametrize("cache", PodCache)
@pytest.mark.parametrize("new_node", [False, True])
def test_a_replica_alone_takes_the_whole_cold_start(cache: PodCache, new_node: bool):
    assert leads(cache, new_node) == {Link.NODE: 0, Link.WEIGHTS: 0, Link.REPLICA: COLD_S}


def test_a_requested_node_takes_its_wait_from_the_replica():
    assert leads(ABSENT, True, nodes=True) == {
        Link.NODE: NODE_S,
        Link.WEIGHTS: 0,
        Link.REPLICA: READY_S[ABSENT] + IMAGE_S,
    }


def test_planned_weights_take_their_fetch_from_the_replica():
    assert leads(ABSENT, False, weights=True) == {Link.NODE: 0, Link.WEIGHTS: FETCH_S, Link.REPLICA: READY_S[HELD]}
    assert leads(HELD, False, weights=True)[Link.WEIGHTS] == 0


def test_both_come_before_the_replica():
    found = leads(ABSENT, True, nodes=True, weights=True)
    assert found == {Link.NODE: NODE_S, Link.WEIGHTS: FETCH_S, Link.REPLICA: READY_S[HELD] + IMAGE_S}


def test_requested_node_lacks_image_and_weights_when_it_is_up():
    found = leads(HELD, False, nodes=True, weights=True, requested=True)
    assert found == {Link.NODE: NODE_S, Link.WEIGHTS: FETCH_S, Link.REPLICA: READY_S[HELD] + IMAGE_S}
    assert leads(HELD, False, nodes=True, requested=True)[Link.REPLICA] == READY_S[ABSENT] + IMAGE_S


def test_weights_cannot_come_before_a_node_that_nothing_requests():
    assert leads(ABSENT, True, weights=True) == {Link.NODE: 0, Link.WEIGHTS: 0, Link.REPLICA: COLD_S}


def test_nodes_that_do_not_report_get_no_weights_before():
    found = leads(UNKNOWN, False, weights=True)
    assert found == {Link.NODE: 0, Link.WEIGHTS: 0, Link.REPLICA: READY_S[UNKNOWN]}


def test_an_unknown_start_counts_as_stated():
    found = leads(ABSENT, True, nodes=True, weights=True, known=False)
    assert found == {Link.NODE: COLD_S, Link.WEIGHTS: 0, Link.REPLICA: COLD_S}
