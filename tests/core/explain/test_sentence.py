"""The sentence of a decision: the right reason, the right numbers, and plain English."""

import math
import re
from copy import copy
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain.sentence import Explanation, binding_stages, explain
from autoscaler.core.model.fleet import UNKNOWN_CLIENT, ForeignCounts, PendingCause
from autoscaler.core.model.samples import GatewaySamples, PodSamples
from autoscaler.core.model.types import Recommender, Signal, Stage
from autoscaler.core.planner.strategies import SEASONAL, STRATEGIES, Strategy
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.explain.stories import CASES, NAN, ExplainedServing, ExplainedStory, explained, headroom_story, played
from tests.core.planner.planned import PEAK_STRATEGIES
from tests.core.serving import LEARNED
from tests.core.world import fleet, samples, spec, world

pytestmark = pytest.mark.slow


def test_a_problem_ends_the_sentence_when_a_policy_is_in_force():
    story = ExplainedStory(spec())
    story.tick(fleet([1]), running=10.0, waiting=30.0)
    problem = "KEDA is refused: metadata policy: 'gold'; allowed: batch"
    assert story.explain(problem=problem).sentence.endswith(f" per replica (metrics up to 0 s old). But {problem}.")
    assert " But " not in story.explain().sentence


def test_a_follower_says_that_it_does_not_act():
    story = played("gateway")
    assert story.explain(leading=False).sentence == (
        "This replica of the daemon does not hold the lease and does not act. It would scale up from 1 to 3 replicas: "
        "concurrency recommends 2.5 for 10 running, 0 waiting and 15 at the gateway, at 10 requests per replica "
        "(metrics up to 0 s old)."
    )
    kept = played("all starting").explain(leading=False).sentence
    assert "does not hold the lease and does not act. It would keep 3 replicas:" in kept


@pytest.mark.parametrize("name", CASES)
def test_sentences_are_well_formed(name):
    sentence = explained(name).sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "nan" not in sentence.lower()
    assert "inf" not in sentence.lower().replace("inform", "")
    assert "  " not in sentence
    assert not re.search(r"\b1 replicas|[^1.\d]1 replicas|\d+e[+-]\d+", sentence)
    assert len(sentence) < 400


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "gateway",
            "Scales up from 1 to 3 replicas: concurrency recommends 2.5 for 10 running, 0 waiting and 15 at the "
            "gateway, at 10 requests per replica (metrics up to 0 s old).",
        ),
        (
            "ttft",
            "Scales up from 2 to 4 replicas: TTFT recommends 3.24 at a p95 of 1.62 s, objective 1 s "
            "(metrics up to 0 s old).",
        ),
        ("wake", "Scales up from 0 to 1 replica: wake-up recommends 1 because requests wait and no replica is ready."),
        (
            "all starting",
            "Keeps 3 replicas: no replica is ready to report the load, so the count stays at 3.",
        ),
        (
            "about to forecast",
            "Keeps 2 replicas: concurrency recommends 2.56 for 80 running and 2 waiting (for an unknown time, as no "
            "answer has ended yet), at 80% of an assumed 40 requests per replica; the planner is not ready yet and "
            "no request is known to wait longer than 1 s, "
            "so the count stays at 2 (metrics up to 0 s old).",
        ),
        (
            "silent workload",
            "Keeps 4 replicas: only 0 of 4 ready replicas report, so the count stays at 4.",
        ),
        (
            "idle",
            "Scales down from 1 to 0 replicas: concurrency recommends 0 because no request is in flight; "
            "there was no work for 15 min, the idle timeout of the policy (metrics up to 0 s old).",
        ),
        (
            "grant",
            "Scales up from 2 to 3 replicas: concurrency recommends 3.4 for 20 running and 14 waiting (for an unknown "
            "time, as no answer has ended yet), at 10 requests per replica; the pool of 3 "
            "NVIDIA-H100-80GB-HBM3 allocates 3 of 4 (metrics up to 0 s old).",
        ),
        (
            "reserve",
            "Scales down from 5 to 3 replicas: the planner recommends 6 for a load of 0.538 busy replicas, because a "
            "constant count of 6 is the cheapest now, misses included; 0% of requests "
            "missed in 13 min of traffic and its strategy is predicted to miss 0.786%, within the error budget of 1% "
            "in a day; the pool of 7 NVIDIA-H100-80GB-HBM3 allocates 3 of 6, the rest is headroom "
            "(metrics up to 10 s old).",
        ),
        ("no policy", "Keeps 2 replicas: no valid policy is in force for it."),
        (
            "guess",
            "Keeps 2 replicas: concurrency recommends 0.25 for 8 running and 0 waiting, at an assumed 32 requests per "
            "replica; scale-down stabilization (window 60 s) keeps 2 for 60 s more (metrics up to 0 s old).",
        ),
        (
            "too many",
            "Keeps 2 replicas: the planner recommends 2 for a load of 3.8 busy replicas, the maximum; "
            "its strategy is predicted to miss 3.03% of requests, more than the error budget of 1% in a day, "
            "and each miss beyond it is priced into the choice of strategy (metrics up to 10 s old).",
        ),
    ],
)
def test_the_sentence_of_a_case_is_as_written_here(name, sentence):
    assert explained(name).sentence == sentence


def test_the_planner_is_named_with_its_load_and_the_error_budget():
    case = explained("planner")
    assert re.fullmatch(
        r"Keeps 2 replicas: the planner recommends 2 for a load of \S+ busy replicas?(, because .*)?; 0% of requests "
        r"missed in 118 min of traffic and its strategy is predicted to miss \S+%, within the error budget of 1% "
        r"in a day \(metrics up to 0 s old\)\.",
        case.sentence,
    )
    assert case.inputs["planner_demand_replicas"] == pytest.approx(1, abs=0.1)
    lines = [line.name for line in case.forecast]
    assert lines == ["load", "headroom", "strategy", "shadow", "budget", "replica", "confidence"]


def with_recommendation(story: ExplainedStory, replicas: float) -> ExplainedStory:
    """Let only the planner recommend, and this many."""
    recommended = np.full_like(story.decision.recommendations, NAN)
    recommended[Signal.PLANNER] = replicas
    story.decision = replace(story.decision, recommender=np.array([Recommender.PLANNER]), recommendations=recommended)
    return story


def test_the_planner_recommends_zero_without_requests():
    story = ExplainedStory(spec(concurrency=NAN))
    story.tick(fleet([1]))
    sentence = with_recommendation(story, 0.0).explain().sentence
    assert "the planner recommends 0 because no request is in flight" in sentence


@pytest.mark.parametrize("signal", list(Signal))
def test_every_signal_is_named_when_it_is_the_strongest(signal):
    case = explained(signal.name.lower())
    assert case.signal == signal.published
    assert case.asks[case.signal] == max(case.asks.values())


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("silent pod", Stage.UNKNOWN),
        ("silent workload", Stage.UNKNOWN),
        ("stale cluster", Stage.UNKNOWN),
        ("all starting", Stage.UNKNOWN),
        ("about to forecast", Stage.UNKNOWN),
        ("burst", Stage.BURST),
        ("tolerance", Stage.TOLERANCE),
        ("stabilization", Stage.STABILIZATION),
        ("slow growth", Stage.STABILIZATION),
        ("idle soon", Stage.IDLE),
        ("computes at idle", Stage.IDLE),
        ("idle, as the budget bears", Stage.IDLE),
        ("idle without gateway", Stage.IDLE),
        ("never idle", Stage.IDLE),
        ("abandoned", Stage.IDLE),
        ("rate up", Stage.RATE_LIMIT),
        ("rate down", Stage.RATE_LIMIT),
        ("maximum", Stage.BOUNDS),
        ("minimum", Stage.BOUNDS),
        ("grant", Stage.ALLOCATION),
        ("reserve", Stage.ALLOCATION),
        ("paused", Stage.OWNER),
        ("other_owner", Stage.OWNER),
        ("owner for a while", Stage.OWNER),
        ("held", Stage.OWNER),
    ],
)
def test_the_last_stage_that_changed_the_count_is_the_bound(name, stage):
    case = explained(name)
    assert case.bound == stage.published
    step = case.steps[stage]
    assert step.stage == case.bound
    assert step.reason in case.sentence
    before, after = np.ceil([case.steps[stage - 1].replicas - 1e-6, step.replicas - 1e-6])
    assert before != after  # also where nothing was known before


def test_binding_stages_agree_with_each_explanation():
    cluster = fleet([2, 5, 4, 1, 3], paused=np.array([False, False, False, True, False]))
    story = ExplainedStory(spec(5, max_replicas=4.0))
    read_s = np.where(np.arange(15) == 8, NAN, 1005.0)
    story.tick(cluster, running=np.where(cluster.pod_workload == 4, 1.0, 9.5), time_s=read_s)
    for row, stage in enumerate(binding_stages(story.decision)):
        assert story.explain(row).bound == ("" if np.isnan(stage) else Stage(int(stage)).published)


def test_the_sentence_says_why_a_workload_does_not_go_to_zero():
    assert "no idle timeout is known to pay for" in explained("idle, as the budget bears").sentence
    assert "no gateway is known to hold requests" in explained("idle without gateway").sentence
    assert "one replica stays, because the policy does not scale to zero" in explained("never idle").sentence
    assert "budget" not in explained("idle soon").sentence
    assert "gateway" not in explained("idle soon").sentence


def test_the_sentence_says_for_how_long_a_count_of_others_holds():
    owner = "a manual change by kubectl owns the count"
    assert f"{owner} for 295 s more" in explained("owner for a while").sentence
    assert "a manual change by kubectl holds it for 295 s more" in explained("holds what is right").sentence
    assert "scaling is paused" in explained("paused").sentence
    paused = explained("paused at what is right")
    assert (paused.bound, paused.current, paused.wanted) == ("", 1, 1)
    assert "scaling is paused" in paused.sentence
    reset = explained("reset")
    assert (reset.current, reset.wanted) == (1, 4)
    assert reset.sentence.startswith("Scales up from 1 to 4 replicas: ")
    assert "helm reset the count from 4 to 1 with its manifest, which is undone" in reset.sentence


@pytest.mark.parametrize(("goes_to_zero", "owner"), [(False, UNKNOWN_CLIENT), (True, "")])
def test_nameless_zero_has_an_owner_without_scale_to_zero(goes_to_zero, owner):
    counts = ForeignCounts(np.full(2, NAN), ("", ""), np.array([True, False]), np.full(2, NAN))
    stopped = fleet([0, 0], foreign=counts).leave_stopped(np.full(2, goes_to_zero))
    assert stopped.other_owner == (owner, "")
    assert np.isinf(stopped.foreign.owned_until_s).tolist() == [not goes_to_zero, False]
    stated = replace(counts, owned_until_s=np.array([60.0, NAN]))
    ends = fleet([0, 0], foreign=stated).leave_stopped(np.full(2, goes_to_zero))
    assert (ends.other_owner, ends.foreign.owned_until_s[0]) == ((owner, ""), 60.0)


def test_both_sides_are_named_when_headroom_is_guaranteed():
    """Without the guarantee the first has three of seven GPUs, and the second the four that its load needs."""
    story = headroom_story(guaranteed=0.3)
    assert story.decision.base_replicas.tolist() == [2, 4]
    first, second = (story.explain(row).sentence for row in (0, 1))
    assert (
        "allocates 4 of 6, the rest is headroom, of which 2 replicas more than its load needs, "
        "as 30% of the pool is guaranteed to headroom before base replicas of ns/w1" in first
    )
    assert "allocates 3 of 5, after the guaranteed headroom of ns/w0" in second


def test_a_replica_is_not_called_idle_when_the_pool_takes_it():
    rules = spec(2, priority=[0.0, 10.0], idle_after_s=3600.0, down_stabilization_s=10.0)
    waits = {"pod_pending": np.array([PendingCause.NONE, PendingCause.UNSCHEDULABLE])}
    story, one_gpu = ExplainedStory(rules), fleet([1, 0], [0, 1], pool_gpus=np.array([1.0]), **waits)
    story.watch(one_gpu, 120, running=5.0)
    assert story.explain().sentence == (
        "Scales down from 1 to 0 replicas: concurrency recommends 0.5 for 5 running and 0 waiting, at 10 requests per "
        "replica; the pool of 1 NVIDIA-H100-80GB-HBM3 allocates 0 of 1 (metrics up to 0 s old)."
    )


@pytest.mark.parametrize("idle_after_s", [NAN, 900.0, math.inf])
def test_a_silent_gateway_keeps_a_replica_when_zero_is_allowed(idle_after_s):
    story = ExplainedStory(spec(idle_after_s=idle_after_s, down_stabilization_s=10.0))
    story.watch(fleet([1]), 60, gateway_waiting=0.0)
    story.watch(fleet([1]), 200)
    why = "its gateway has not reported for 200 s" if idle_after_s > 0 else "the policy does not scale to zero"
    assert f"; one replica stays, because {why} (metrics" in story.explain().sentence


def test_the_end_of_stabilization_is_named():
    story = ExplainedStory(spec(down_stabilization_s=300.0))
    story.watch(fleet([8]), 600, running=10.0)
    story.watch(fleet([8]), 100, running=1.0)
    sentence = story.explain().sentence
    left_s = float(re.search(r"stabilization \(window 5 min\) keeps 8 for (\d+) s more", sentence)[1])
    assert 200 <= left_s <= 220  # a window covers 1/15 more than its length
    while story.decision.replicas[0] == 8:
        story.watch(fleet([8]), 5, running=1.0)
        left_s -= 5
    assert -5 <= left_s <= 5


def test_the_end_is_named_when_a_window_is_not_full():
    story = ExplainedStory(spec(down_stabilization_s=300.0))
    story.watch(fleet([8]), 65, running=1.0)
    assert "stabilization (window 5 min) keeps 8 for 4 min more" in story.explain().sentence


def test_the_time_until_zero_is_named():
    until = "one replica stays until there has been no work for 15 min, 10 min from now"
    assert until in explained("idle soon").sentence


def test_no_time_until_zero_is_named_while_a_gpu_computes():
    """It would slide: no request runs, but the time without work begins when the GPU is still."""
    until = "one replica stays until there has been no work for 15 min ("
    assert until in explained("computes at idle").sentence


def test_the_end_of_a_pre_warm_window_is_named():
    assert "the pre-warm schedule recommends 4 for 2.22 h more" in explained("schedule").sentence


def test_the_end_is_named_when_a_pod_may_compute_a_long_prompt():
    story = ExplainedStory(spec())
    story.watch(fleet([2]), 60, running=5.0, gaps=7.0, generation_tokens=7.0)
    assert "a replica without progress may compute a long prompt (for 125 s more)" in story.explain().sentence


def peak(warming_up=False) -> Explanation:
    """Explain a tick without load after a load that needed three replicas."""
    story = ExplainedServing(spec(cold_start_s=60.0, **LEARNED))
    if warming_up:
        story.serve(fleet([3]), 1.6, 300)
    else:
        story.learn(fleet([1]))
        story.serve(fleet([1]), 0.9, 3600)
        story.serve(fleet([2]), 1.9, 600)
    story.serve(fleet([2]), 0.0, 90)
    return story.explain()


def test_a_held_peak_is_the_reason_when_the_load_needs_less():
    case = peak()
    assert case.wanted > 1
    assert f"recommends {case.wanted} for a load of 0 busy replicas, because a peak is held for" in case.sentence


def test_the_initial_fleet_is_the_reason_while_warming_up():
    case = peak(warming_up=True)
    assert case.wanted == 3
    assert (
        "the planner recommends 3 for a load of 0 busy replicas, because the initial fleet is kept for 270 s more, "
        "until the load is known" in case.sentence
    )


@cache
def planner_speaks() -> ExplainedServing:
    """Play until the planner recommends. Tests change a copy."""
    story = ExplainedServing(spec(cold_start_s=60.0, **LEARNED))
    story.learn(fleet([2]))
    story.serve(fleet([2]), 1.0, 300)
    return story


def planned(recommended: float = 2.0, start_s: float = 60.0, **plan: float) -> Explanation:
    """Explain a decision for which the planner recommends two replicas, with these columns of the plan."""
    story = copy(planner_speaks())
    columns = {
        "replicas": recommended,
        "strategy_replicas": recommended,
        "base_replicas": recommended,
        "observed_s": 9000.0,
        "warm_up_s": 1200.0,
        "demand": 1.5,
        "unavoidable_fraction": 0.0,
        "peak_expires_in_s": NAN,
        "initial_fleet": 1.0,
        **({"constant_count": 0.0} if "strategy" in plan else {}),
        **plan,
    }
    known = replace(story.decision.plan, **{name: np.array([float(value)]) for name, value in columns.items()})
    starts = replace(story.decision.starts, mean_s=np.array([start_s]))
    story.decision = replace(story.decision, plan=known, starts=starts)
    return with_recommendation(story, recommended).explain()


@pytest.mark.parametrize(("missed", "predicted", "anyway"), [(0.0, 0.0, 0.0), (0.01, 0.01, 0.0), (0.004, 0.006, 0.004)])
def test_misses_are_within_the_error_budget_when_both_shares_are(missed, predicted, anyway):
    case = planned(missed_fraction=missed, shadow_missed_fraction=predicted, unavoidable_fraction=anyway)
    assert case.sentence.count("within the error budget of 1% in a day") == 1


@pytest.mark.parametrize(
    ("missed", "predicted", "sentence"),
    [
        (
            NAN,
            0.004,
            "its strategy is predicted to miss 0.4% of requests, 1% may in a day, and no real misses are known yet",
        ),
        (0.004, NAN, "0.4% of requests missed in 2.5 h of traffic, 1% may in a day, and nothing is predicted yet"),
        (NAN, NAN, "the planner recommends 2 for a load of 1.5 busy replicas (metrics"),
    ],
)
def test_no_budget_is_called_kept_when_a_share_is_unknown(missed, predicted, sentence):
    case = planned(missed_fraction=missed, shadow_missed_fraction=predicted)
    assert "within the error budget" not in case.sentence
    assert sentence in case.sentence


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            {"missed_fraction": 0.0168, "shadow_missed_fraction": 0.004, "allowed_fraction": 0.006},
            "1.68% of requests missed in 2.5 h of traffic, more than the error budget of 1% in a day, "
            "so it now allows 0.6%",
        ),
        (
            {"missed_fraction": 0.0168, "shadow_missed_fraction": 0.0, "allowed_fraction": 0.001, "observed_s": 2e5},
            "1.68% of requests missed in about a day, more than the error budget of 1% in a day, so it now allows 0.1%",
        ),
        (
            {"missed_fraction": 0.05, "unavoidable_fraction": 0.03},
            "5% of requests missed in 2.5 h of traffic, more than the error budget of 1% in a day, "
            "and 3% miss at any number of replicas",
        ),
        (
            {"missed_fraction": 0.004, "shadow_missed_fraction": 0.008, "unavoidable_fraction": 0.004},
            "its strategy is predicted to miss 1.2% of requests, more than the error budget of 1% in a day, "
            "and each miss beyond it is priced into the choice of strategy",
        ),
    ],
)
def test_the_sentence_says_what_was_missed_beyond_the_budget(plan, sentence):
    case = planned(**plan)
    assert "within the error budget" not in case.sentence
    assert f"busy replicas; {sentence} (metrics" in case.sentence


SEASONAL_1_ROOT = float(STRATEGIES.index(Strategy(SEASONAL, 0.0, 1.0, 0.0)))
CONSTANT_8 = {"strategy": float(PEAK_STRATEGIES), "constant_count": 8.0}


@pytest.mark.parametrize(
    ("recommended", "plan", "why"),
    [
        (
            8.0,
            CONSTANT_8,
            "because a constant count of 8 is the cheapest now, misses included",
        ),
        (
            8.0,
            {**CONSTANT_8, "surges": 1.0, "surge_counts_s": 1500.0},
            "because a constant count of 8 is the cheapest now, misses included "
            "(the only surge counts for 25 min more)",
        ),
        (
            8.0,
            {**CONSTANT_8, "surges": 1.0, "surge_counts_s": 9000.0},
            "because a constant count of 8 is the cheapest now, misses included "
            "(the only surge counts for at least 2.5 h after its end)",
        ),
        (
            8.0,
            {**CONSTANT_8, "surges": 3.0},
            "because a constant count of 8 is the cheapest now, misses included (3 surges count)",
        ),
        (
            9.0,
            {**CONSTANT_8, "peak_expires_in_s": 90.0},
            "because a peak is held for 90 s more, in case the load returns",
        ),
        (
            9.0,
            {**CONSTANT_8, "peak_expires_in_s": NAN},
            "because the load average over 4 min has just peaked, and peaks are held for 10 cold starts",
        ),
        (4.0, {"strategy_replicas": 3.0}, "because no replica is removed while requests wait too long"),
        (
            4.0,
            {"strategy_replicas": 3.0, "start_s": 240.0},
            "because the load of 20 s counts while requests wait too long, and nothing is removed",
        ),
        (
            4.0,
            {"strategy_replicas": 6.0},
            "because no more headroom is added in the first hours of steady traffic "
            "(the strategy alone would recommend 6)",
        ),
        (2.0, {"strategy": 0.0, "demand": 2.5}, "because the load average over 20 s is lower"),
        (
            3.0,
            {"strategy": 0.0, "observed_s": 600.0, "initial_fleet": 3.0},
            "because the initial fleet is kept for 10 min more, until the load is known",
        ),
        (
            3.0,
            {"strategy": 0.0, "observed_s": 600.0, "initial_fleet": 2.0, "base_replicas": 3.0},
            "because the load average over 20 s has just peaked, and peaks are held for 10 cold starts",
        ),
        (
            3.0,
            {"strategy": 0.0, "observed_s": 1300.0, "initial_fleet": 3.0, "base_replicas": 3.0},
            "because the load average over 20 s has just peaked, and peaks are held for 10 cold starts",
        ),
        (
            4.0,
            {"strategy": SEASONAL_1_ROOT, "day_ago_load": 2.1, "week_ago_load": 0.5, "peak_expires_in_s": 90.0},
            "because the load was 2.1 busy replicas around this time a day ago",
        ),
        (
            4.0,
            {"strategy": SEASONAL_1_ROOT, "day_ago_load": NAN, "week_ago_load": 2.1},
            "because the load was 2.1 busy replicas around this time a week ago",
        ),
        (
            4.0,
            {"strategy": SEASONAL_1_ROOT, "day_ago_load": 1.2, "peak_expires_in_s": 90.0},
            "because a peak is held for 90 s more, in case the load returns",
        ),
        (
            4.0,
            {"strategy": SEASONAL_1_ROOT, "day_ago_load": 1.2},
            "because the load average over 4 min has just peaked, and peaks are held for 3 cold starts",
        ),
    ],
)
def test_the_planner_says_why_it_recommends_its_count(recommended, plan, why):
    case = planned(recommended, **{"base_replicas": 1.0, "demand": 0.5, **plan})
    assert f"the planner recommends {recommended:g} for a load of " in case.sentence
    assert f" busy replicas, {why}" in case.sentence


def test_one_replica_is_recommended_in_the_singular():
    story = ExplainedServing(spec(cold_start_s=60.0, **LEARNED))
    story.learn(fleet([1]))
    story.serve(fleet([1]), 0.3, 3600)
    assert story.explain().sentence.startswith("Keeps 1 replica: the planner recommends 1 for a load of 0.184 busy")


def test_inputs_hold_every_column_and_know_their_age():
    case = explained("concurrency")
    assert {"running", "waiting", "cold_start_s", "capacity_concurrency", "fleet_age_s"} <= case.inputs.keys()
    assert case.inputs["running"] == 40
    assert case.inputs["age_s"] == 0


def test_signals_without_an_opinion_are_left_out_and_zero_is_one():
    case = explained("never idle")
    assert case.asks == {"concurrency": 0.0}


wild = st.one_of(st.just(NAN), st.sampled_from([0.0, -1.0, 1e-9, 0.5, 1.0, 1e6, 1e18, np.inf, -np.inf]), st.floats())


@given(st.data())
def test_a_sentence_without_nan_comes_of_any_reading(data):
    cluster = fleet([2], [1], pod_pending=np.array([0, 0, data.draw(st.sampled_from(list(PendingCause)))]))
    rules = spec(
        idle_after_s=data.draw(st.sampled_from([600.0, math.inf])), concurrency=data.draw(st.sampled_from([NAN, 8.0]))
    )
    story = ExplainedStory(rules)
    for _ in range(3):
        story.now_s += 5
        pods = {f.name: np.array(data.draw(st.tuples(wild, wild, wild))) for f in fields(PodSamples)}
        front = {f.name: np.array([data.draw(wild)]) for f in fields(GatewaySamples)}
        inp = world(story.now_s, cluster, rules)
        story.input = replace(
            inp, samples=replace(samples(cluster, 0.0), pods=PodSamples(**pods), gateways=GatewaySamples(**front))
        )
        story.decision, story.memory = tick(story.input, story.memory)
        case = story.explain()
        assert not re.search(r"\bnan\b|\binf\b", case.sentence)
        assert 1 <= case.wanted <= 100 or case.wanted == case.current


def test_the_sentence_says_why_no_policy_is_in_force():
    story = ExplainedStory(replace(spec(1), max_replicas=np.array([NAN])))
    story.tick(fleet([2]), running=10.0, waiting=0.0)
    problem = "policy 'quick' does not exist, so the workload is not scaled; allowed: 'batch'"
    assert story.explain(problem=problem).sentence == f"Keeps 2 replicas: {problem}."


@pytest.mark.parametrize(("slots", "is_assumed"), [(8.0, False), (math.nan, True)])
def test_slots_that_an_engine_states_are_not_called_assumed(slots, is_assumed):
    inp = world(1000.0, fleet([2]), spec(concurrency=math.nan, min_replicas=1.0), running=8.0, max_running=slots)
    sentence = explain(inp, tick(inp, Memory.empty())[0], ["quick"], {}, 0).sentence
    assert ("an assumed" in sentence) == is_assumed
