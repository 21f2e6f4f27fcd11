"""The next start of a workload, as plain values."""

import pytest

from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.starts import next_start
from autoscaler.core.model.weights import PodCache
from tests.core.starts.test_starts import Starts, cluster, places
from tests.core.world import world


@pytest.mark.parametrize(
    ("where", "told"), [(None, {PodCache.UNKNOWN}), (places(4.0, held=4.0, nodes_held=4.0), set(PodCache))]
)
def test_starts_are_told_by_weights_where_nodes_report_them(where, told):
    starts = Starts()
    starts.add(where=where)
    decision = starts.see(where=where)
    inp = world(starts.story.now_s, cluster(starts.pods, where=where), starts.story.spec)
    assert next_start(TickRow(inp, decision, 0)).by_weights.keys() == {state.published for state in told}
