"""Lent GPUs go back to their owner through the drain of the borrower, in virtual time, tick by tick."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import Obstacles, PendingCause
from tests.core.explain import claims
from tests.core.explain.stories import ExplainedStory
from tests.core.world import fleet, quotas, spec

pytestmark = pytest.mark.slow

EVERY_S, DRAIN_S, COLD_START_S = 5.0, 120.0, 60.0
OWNER, BORROWER = 0, 1


class Lending:
    """An owner of eight GPUs and a borrower that owns four, all of them in use at first.

    A pod that leaves drains for two minutes, and holds its GPU and its quota meanwhile. A pod that has no room waits
    as `waits` says: for a node, for a queue, or it is not even created (None).
    """

    def __init__(self, waits, kind, gpus, owner_base=8, **rules):
        self.waits, self.kind, self.gpus, self.owner_base = waits, kind, gpus, owner_base
        self.story = ExplainedStory(spec(2, down_stabilization_s=10.0, max_replicas=20.0, **rules))
        self.ready, self.wanted = [2, 10], [2, 10]
        self.starts: list[float] = []  # times at which pods of the owner become ready
        self.leaves: list[float] = []  # times at which pods of the borrower are gone
        self.decisions = []

    @property
    def now_s(self):
        return self.story.now_s

    def fleet(self):
        self.ready[OWNER] += sum(at <= self.now_s for at in self.starts)
        self.starts = [at for at in self.starts if at > self.now_s]
        self.leaves = [at for at in self.leaves if at > self.now_s]
        while self.starting + self.ready[OWNER] < self.wanted[OWNER] and self.held < 12:
            self.starts.append(self.now_s + COLD_START_S)
        waiting = self.wanted[OWNER] - self.ready[OWNER] - self.starting
        no_pod = waiting if self.waits is None else 0
        cluster = fleet(
            [self.ready[OWNER], self.ready[BORROWER] + len(self.leaves)],
            [self.starting + waiting - no_pod, 0],
            replicas=list(self.wanted),
            starting_since_s=self.now_s - 10.0,
            pool_gpus=[self.gpus],
            quotas=(self.kind,),
            obstacles=replace(Obstacles.none(2), creation_failed=np.array([no_pod > 0, False])),
            drain_s=np.full(2, DRAIN_S),
        )
        owned = np.flatnonzero((cluster.pod_workload == OWNER) & ~cluster.pod_ready)
        causes = np.full(len(cluster.pods), PendingCause.NONE, dtype=np.int64)
        causes[owned[self.starting :]] = self.waits or PendingCause.NONE
        leaving = np.arange(len(cluster.pods)) >= len(cluster.pods) - len(self.leaves)
        return replace(cluster, pod_pending=causes, pod_terminating=leaving)

    @property
    def starting(self):
        return len(self.starts)

    @property
    def held(self):
        return sum(self.ready) + self.starting + len(self.leaves)

    def tick(self, load):
        """Serve this many busy replicas of each workload for one interval, and carry the decision out."""
        cluster = self.fleet()
        serving = np.bincount(cluster.pod_workload[cluster.pod_ready & ~cluster.pod_terminating], minlength=2)
        each = 10.0 * np.array(load) / np.fmax(serving, 1)
        running = np.fmin(each, 10.0)[cluster.pod_workload]
        decision = self.story.tick(
            cluster, EVERY_S, running=running, waiting=(np.fmax(each - 10.0, 0.0))[cluster.pod_workload]
        )
        self.decisions.append(decision)
        self.wanted = [int(count) for count in decision.replicas]
        gone = max(self.ready[BORROWER] - self.wanted[BORROWER], 0)
        self.ready[BORROWER] -= gone
        self.leaves += [self.now_s + DRAIN_S] * gone
        self.ready[OWNER] = min(self.ready[OWNER], self.wanted[OWNER])
        return decision

    def run(self, load, for_s):
        return [self.tick(load) for _ in range(int(for_s / EVERY_S))]


COHORT = quotas([0, 1], [8, 4], cohort="all")
CASES = {
    "no node has room": Lending(PendingCause.UNSCHEDULABLE, COHORT, 12.0),
    "a pool of unknown size": Lending(PendingCause.UNSCHEDULABLE, COHORT, np.nan),
    "a queue admits no pod": Lending(PendingCause.QUEUED, COHORT, 100.0),
    "a gate of another controller": Lending(PendingCause.SCHEDULING_GATED, COHORT, np.nan),
    "no pod is created": Lending(None, COHORT, 100.0),
    "no pod is created in one namespace": Lending(None, quotas([0, 0], [12]), 100.0, priority=[9.0, 0.0]),
}


def said(lending):
    """Return what both workloads say, after a check of each claim."""
    story = lending.story
    explanations = [story.explain(row) for row in (OWNER, BORROWER)]
    for row, explanation in enumerate(explanations):
        claims.check(story.input, story.decision, row, explanation)
    return [explanation.sentence for explanation in explanations]


@pytest.mark.parametrize("case", CASES)
def test_an_owner_gets_lent_gpus_after_one_drain(case):
    lending = CASES[case]
    lending.run([2.0, 10.0], 60)
    assert lending.wanted == [2, 10]
    at_s = lending.now_s
    first = lending.tick([8.0, 10.0])
    assert first.replicas.tolist() == [8, 4]
    owner, borrower = said(lending)
    assert f"; 6 GPUs come back from quota {lending.kind.tenant[BORROWER]} within 2 min as replicas there" in owner
    assert "allocates 4 of 10" in borrower
    assert (", cohort all lends no more, 6 go back to quota 0 (" in borrower) == (lending.kind is COHORT)
    while lending.now_s <= at_s + DRAIN_S + EVERY_S:
        assert lending.tick([8.0, 10.0]).replicas.tolist() == [8, 4]
        said(lending)
    assert lending.starting == 6
    lending.run([8.0, 10.0], 2 * COLD_START_S)
    assert lending.ready == [8, 4]
    assert "come back" not in said(lending)[OWNER]
