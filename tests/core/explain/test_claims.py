"""Every claim of every sentence holds, in recorded, simulated, hand-made and generated decisions."""

import math
import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load, shipped
from autoscaler.core.explain.claims import Words
from autoscaler.core.explain.format import ListedNames, listed, number, percent, seconds
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import HpaDelays, HpaLimits, Obstacles, PendingCause, Pool
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import Signal
from autoscaler.core.model.variants import Variants
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.inputs.transform import clip
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.sim.demo import scenario as demo
from tests.core.explain import claims
from tests.core.explain.stories import CASES, NAN, ExplainedServing, ExplainedStory, played
from tests.core.recordings import series
from tests.core.serving import LEARNED
from tests.core.world import fleet, node_groups, quotas, spec
from tests.lab.replay.synthetic import generate

pytestmark = pytest.mark.slow


class Sentences:
    """Checks sentences, and counts the different ones and the kinds of their clauses."""

    def __init__(self) -> None:
        self.distinct: set[str] = set()
        self.kinds = Counter[str]()

    def check(self, inp, decision):
        names = ("",) * len(decision.replicas)
        for row in range(len(names)):
            explanation = explain(inp, decision, names, {}, row)
            if explanation.sentence not in self.distinct:
                self.kinds += claims.check(inp, decision, row, explanation)
            self.distinct.add(explanation.sentence)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("leading", [True, False])
def test_every_claim_holds_in_a_story(name, leading):
    story = played(name)
    for row in range(len(story.spec.weight)):
        claims.check(story.input, story.decision, row, story.explain(row, leading=leading), leading)


@pytest.mark.parametrize("name", ["load", "kv-bound"])
def test_every_claim_holds_in_a_recording(name):
    row = spec_row(load(()).policies["interactive"].spec)
    story, sentences, last_s = ExplainedStory(Spec(*(np.array([value]) for value in row))), Sentences(), 0.0
    for moment in series(name)[::5]:
        decision = story.tick(fleet([1]), moment.t_s - last_s, **moment.columns)
        last_s = moment.t_s
        sentences.check(story.input, decision)
    assert len(sentences.distinct) >= 10


class Explained(PolicyFleetScaler):
    """The product in a simulation, where every sentence is checked."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sentences = Sentences()

    def decide_all(self, views):
        before = self.decision
        counts = super().decide_all(views)
        if self.decision is not before:
            self.sentences.check(self.tick_input, self.decision)
        return counts


@pytest.mark.long
def test_every_claim_holds_in_a_simulated_demo():
    """The workloads of the demo share its GPUs for half an hour of the morning."""
    policies = load((shipped(), demo.POLICIES)).policies
    workloads = demo.demo_scenario(1).workloads
    cases = [
        Case(
            clip(generate(each.deployment.name, each.shape, 9 * 3600.0, number), 8.5 * 3600.0, 9 * 3600.0),
            each.deployment.profile,
            goal_from_policy(policies[each.policy]),
            cold_start_s=90.0,
            gpus_per_replica=each.deployment.devices,
            start_replicas=max(each.deployment.replicas, 1),
            scrape_s=5.0,
            seed=number,
        )
        for number, each in enumerate(workloads)
    ]
    gpus = sum(pool.nodes * pool.devices_per_node for pool in demo.POOLS)
    product = Explained(cases, [policies[each.policy] for each in workloads], gpus)
    run_fleet(cases, product, GpuPool.for_cases(cases, gpus))
    assert len(product.sentences.distinct) >= 300
    assert {"demand", "both", "kept_window_s"} <= product.sentences.kinds.keys()


def test_every_claim_holds_while_the_load_changes():
    """A busy hour, a surge with late requests, silence, and a slow return, with a pool that is too small for two."""
    rules = spec(2, cold_start_s=60.0, min_replicas=[1.0, 2.0], max_replicas=[20.0, 6.0], **LEARNED)
    story, sentences = ExplainedServing(rules), Sentences()
    story.listen = lambda: sentences.check(story.input, story.decision)
    counts = np.array([2, 2])
    for load_, late, for_s in (
        ([0.4, 0.5], 0.0, 120),
        ([0.8, 1.0], 0.0, 600),
        ([1.5, 1.8], 0.2, 300),
        ([3.0, 2.5], 0.5, 300),
        ([0.2, 3.0], 0.0, 900),
        ([0.0, 0.0], 0.0, 600),
        ([1.0, 1.0], 0.01, 1200),
    ):
        for _ in range(for_s // 60):
            cluster = fleet(counts.tolist(), pool_gpus=np.array([10.0]))
            story.serve(cluster, np.array(load_), 60, every_s=10.0, late=late)
            counts = np.fmax(story.decision.replicas, 1).astype(int)
    assert len(sentences.distinct) >= 100
    assert {"demand", "both", "missed_so_far", "pool_gpus"} <= sentences.kinds.keys()


class Worlds:
    """Worlds made of a seed: three workloads, each with pods in any state, under any policy."""

    rows = 3

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, *values):
        """Choose one value."""
        return self.random.choice(values)

    def each(self, *values):
        """Choose a value for each workload."""
        return [self.some(*values) for _ in range(self.rows)]

    def spec(self):
        return spec(
            self.rows,
            concurrency=self.each(10.0, NAN),
            prefill_tokens_per_s=self.each(NAN, 1000.0),
            decode_tokens_per_s=self.each(NAN, 1000.0),
            target_usage=self.each(1.0, 0.8),
            min_replicas=self.each(1.0, 2.0),
            max_replicas=self.each(3.0, 20.0, 20.0, NAN),
            priority=self.each(0.0, 10.0),
            tolerance=self.each(0.0, 0.1, 0.3),
            idle_after_s=self.each(NAN, 60.0, math.inf),
            up_step_replicas=self.each(NAN, 1.0),
            up_stabilization_s=self.each(0.0, 30.0),
            down_step_fraction=self.each(NAN, 0.25),
            down_stabilization_s=self.each(0.0, 60.0),
            max_wait_s=self.each(1.0, 60.0),
            on_demand_floor=self.each(NAN, NAN, 0.0, 2.0),
        )

    def cluster(self):
        ready, starting = self.each(0, 1, 2, 4), self.each(0, 0, 1, 2)
        replicas = [max(sum(pods) + self.some(0, 0, 1, -1), 0) for pods in zip(ready, starting, strict=True)]
        refused, least = np.array(self.each(NAN, NAN, NAN, 5.0, np.inf)), np.array(self.each(0.0, 3.0))
        reasons = tuple("KEDA keeps them" if one else "" for one in least)
        owners = quotas(
            self.each(-1, 0, 0, 1),
            [self.some(1.0, 3.0), self.some(2.0, 6.0)],
            [self.some(np.inf, 1.0), self.some(np.inf, 2.0)],
            self.some(np.inf, 1.0),
            self.some("", "all"),
            [self.some(0.0, 1.0), 0.0],
        )
        nobody, at_once = np.zeros(self.rows, dtype=bool), HpaDelays(*np.zeros((4, self.rows)))
        cluster = fleet(
            ready,
            starting,
            replicas=replicas,
            paused=np.array(self.each(False, False, True)),
            other_owner=tuple(self.each("", "", "HorizontalPodAutoscaler/chat")),
            pool=np.array(self.each(0, 1)),
            pools=(
                Pool("nvidia.com/gpu", "H100", "team=a"),
                Pool("nvidia.com/gpu", "H100", "team=b", "karpenter.sh/x"),
            ),
            groups=node_groups(
                [self.some(NAN, 2.0, 5.0), self.some(NAN, 3.0, 6.0), 2.0],
                *self.some(([0], [1]), ([0, 2], [1, 2]), ([0], [0, 1])),
            ),
            obstacles=Obstacles(
                listed=np.array(self.each(True, False)),
                creation_failed=np.array(self.each(False, True)),
                fits=np.array(self.each(np.inf, 3.0)),
                refused_replicas=refused,
                retry_at_s=np.where(np.isnan(refused), NAN, self.some(900.0, 9000.0)),
                messages=tuple(self.each("", "exceeded quota: gpus")),
            ),
            quotas=self.some((), (), (owners,)),
            drain_s=np.array(self.each(NAN, 30.0)),
            hpa_limits=self.some(
                None, HpaLimits(least, np.full(self.rows, np.inf), nobody, nobody, reasons, self.some(None, at_once))
            ),
        )
        classes = np.array([self.some(PendingCause.NONE, *PendingCause) for _ in cluster.pods], dtype=np.int64)
        return replace(
            cluster,
            pod_pending=np.where(cluster.pod_ready, PendingCause.NONE, classes),
            workloads=tuple(each._replace(service="chat") for each in cluster.workloads),
        )

    def readings(self, cluster):
        def pods(*values):
            return np.array([self.some(*values) for _ in cluster.pods], dtype=float)

        columns = {
            "running": pods(0.0, 3.0, 10.0),
            "waiting": pods(0.0, 0.0, 7.0),
            "asleep": pods(0.0, 0.0, 0.0, 1.0),
            "kv_usage": pods(0.1, 0.9),
            "generation_tokens": pods(0.0, 7000.0, 20000.0),
            "prompt_tokens": pods(0.0, 7000.0, 20000.0),
            "gaps": pods(0.0, 100.0, NAN),
            "ttft_s": pods(NAN, 0.2, 1.7),
            "itl_s": pods(NAN, 0.02, 0.13),
            "rejections": pods(0.0, 0.0, 50.0),
        }
        gateway = {"gateway_waiting": self.some(0.0, 5.0), "gateway_arrivals_per_s": self.some(0.0, 0.2)}
        return columns | self.some({}, gateway)

    def check(self) -> Sentences:
        """Check the sentences of a few ticks."""
        story, sentences = ExplainedStory(self.spec()), Sentences()
        spot = self.some(None, np.array([True, False, False]), np.array([False, True, True]))
        story.variants = self.some(None, Variants(np.array([0, 0, -1]), np.array([1.0, 3.0, 1.0]), spot))
        window = Schedule(*(np.full((self.rows, 1), value) for value in (1000.0, 9000.0, 4.0, NAN)))
        story.schedule = self.some(None, window)
        for _ in range(3):
            cluster, after_s = self.cluster(), self.some(5.0, 5.0, 40.0)
            steady = self.readings(cluster)
            for _ in range(self.some(1, 3, 10)):
                story.tick(cluster, after_s, **self.some(steady, self.readings(cluster)))
                if self.some(False, False, False, True):
                    story.input = replace(story.input, fleet=replace(story.input.fleet, time_s=story.now_s - 75.0))
                    story.repeat()
                sentences.check(story.input, story.decision)
        return sentences


@given(st.integers(0, 2**32))
def test_every_claim_holds_in_generated_worlds(seed):
    Worlds(seed).check()


@pytest.mark.parametrize("name", CASES)
def test_a_claim_is_refused_when_its_number_is_another(name):
    """The checks can fail: each number and name of each sentence is made wrong in turn, and then its words alone."""
    story = played(name)
    row = claims.Row(story.input, story.decision, 0)
    for stage, told in claims.by_stage(story.explain()) if name != "no policy" else ():
        for place, claim in enumerate(told):
            if isinstance(claim.value, str):
                continue
            if isinstance(claim.value, ListedNames):
                wrong, write = ListedNames((*claim.value.named, "nobody"), 0), lambda names: listed(names.named)
            else:
                wrong = 3 * claim.value + 7
                write = seconds if re.search("[^r]_s$", claim.name) else percent if "%" in claim.words else number
            for false in (claim._replace(value=wrong, words=write(wrong)), claim._replace(words=write(wrong))):
                parts = [*told[:place], false, *told[place + 1 :]]
                with pytest.raises(AssertionError):
                    claims.check_claims(row._replace(at=stage), parts)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("planner", "missed_fraction", 0.02),
        ("planner", "missed_fraction", NAN),
        ("planner", "shadow_missed_fraction", 0.02),
        ("planner", "unavoidable_fraction", 0.02),
    ],
)
def test_within_the_error_budget_is_refused_when_a_share_is_not(name, column, value):
    story = played(name)
    assert "within the error budget" in story.explain().sentence
    plan = replace(story.decision.plan, **{column: np.array([value])})
    with pytest.raises(AssertionError):
        claims.check(story.input, replace(story.decision, plan=plan), 0, story.explain())


def test_a_signal_is_refused_when_another_recommends_more():
    story = played("concurrency")
    recommended = story.decision.recommendations.copy()
    recommended[Signal.DECODE] = 100.0
    with pytest.raises(AssertionError):
        claims.check(story.input, replace(story.decision, recommendations=recommended), 0, story.explain())


def test_stages_are_refused_when_they_are_told_in_another_order():
    story = played("minimum")
    told = story.explain()
    first, second = [step.words for step in told.steps[1:] if step.words][-2:]
    parts = list(told.words.parts)
    start, end = parts.index(first.parts[0]), parts.index(second.parts[0]) + len(second.parts)
    between = parts[start + len(first.parts) : end - len(second.parts)]
    swapped = Words(*parts[:start], *second.parts, *between, *first.parts, *parts[end:])
    claims.check(story.input, story.decision, 0, told)
    with pytest.raises(AssertionError, match="the order of stages"):
        claims.check(story.input, story.decision, 0, replace(told, words=swapped, sentence=str(swapped)))


@pytest.mark.parametrize("name", [name for name in CASES if name != "no policy"])
def test_a_stage_is_refused_when_it_changed_nothing(name):
    story = played(name)
    stages = np.tile(story.decision.stages[-1], (len(story.decision.stages), 1))
    flat = replace(story.decision, stages=stages)
    if any(step.reason for step in story.explain().steps[1:]):
        with pytest.raises((AssertionError, ValueError)):
            claims.check(story.input, flat, 0, story.explain())
