from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine.cold_starts import CaseColdStarts
from autoscaler.lab.replay.engine.gpu_pool import GpuClaim, GpuPool, Machine, MachinePlace
from autoscaler.sim.engine.cold_start import Start
from tests.lab.replay import synthetic


def case(uncached_s: float = float("nan")) -> Case:
    return synthetic.case_of(synthetic.poisson([1.0], 60.0), cold_start_s=60.0, cold_start_uncached_s=uncached_s)


def node_of(kind: str) -> Machine:
    """A new node, one that is up and has the image, or one that has the weights too."""
    if kind == "fresh":
        return Machine(8)
    return Machine(8, up_s=0.0, image_s=0.0, models={"small": 0.0} if kind == "warm" else {})


def begun(of: Case, kind: str, duration_factor: float = 1.0, now_s: float = 0.0, node: Machine | None = None) -> Start:
    return CaseColdStarts(of).begin(node or node_of(kind), now_s, duration_factor)


def test_every_start_is_cached_without_a_fresh_node_time() -> None:
    assert begun(case(), "fresh") == begun(case(), "shared") == begun(case(), "warm")
    start = begun(case(), "warm")
    assert start.ready_s == 60.0
    # 0.5 s to schedule, 1 s to start, 12 s boot, 16 GB at 3 GB/s, 18 s warm-up, 3 s probe: 39.9 s.
    assert start.scheduled_s == pytest.approx(60 * 0.5 / 39.85, rel=1e-3)
    assert start.started_s == pytest.approx(60 * 1.5 / 39.85, rel=1e-3)
    assert start.serving_s == pytest.approx(60 * 36.85 / 39.85, rel=1e-3)


def test_fresh_node_starts_up_and_a_used_one_only_fetches() -> None:
    fresh, shared, warm = (begun(case(uncached_s=240.0), kind) for kind in ("fresh", "shared", "warm"))
    assert (fresh.ready_s, warm.ready_s) == pytest.approx((240.0, 60.0))
    # A fresh node adds 170.7 s: node 100 s, image 60 s, and 10.7 s for weights of 16 GB at 1.5 GB/s.
    assert shared.ready_s == pytest.approx(60 + 180 * 10.7 / 170.7, rel=1e-3)
    assert fresh.scheduled_s == pytest.approx(180 * 100 / 170.7 + 60 * 0.5 / 39.85, rel=0.01)
    assert fresh.started_s == pytest.approx(180 * 160 / 170.7 + 60 * 1.5 / 39.85, rel=0.01)


def test_duration_factor_scales_every_phase() -> None:
    mean, slow, none = (
        begun(case(uncached_s=240.0), "fresh", duration_factor, now_s=100.0) for duration_factor in (1.0, 1.5, 0.0)
    )
    assert slow.scheduled_s - 100 == pytest.approx(1.5 * (mean.scheduled_s - 100))
    assert slow.ready_s == pytest.approx(100.0 + 360.0)
    assert none == Start(100.0, 100.0, 100.0, 100.0)
    assert CaseColdStarts(case(uncached_s=240.0)).restart_s(1.5) == 90.0


def test_replica_waits_for_weights_that_its_node_fetches() -> None:
    node, of = Machine(8), case(uncached_s=240.0)
    first = begun(of, "fresh", now_s=10.0, node=node)
    second = begun(of, "warm", now_s=20.0, node=node)
    assert (second.scheduled_s, second.started_s, second.ready_s) == (first.scheduled_s, first.started_s, first.ready_s)
    assert first.ready_s == pytest.approx(250.0)
    late = begun(of, "warm", now_s=220.0, node=node)
    assert late.ready_s == pytest.approx(280.0)
    assert late.scheduled_s == pytest.approx(220.75, abs=0.01)


def test_second_model_starts_once_its_node_is_up() -> None:
    node, of = Machine(8), case(uncached_s=240.0)
    first = begun(of, "fresh", node=node)
    other = replace(of, trace=replace(of.trace, name="other"))
    alone = begun(other, "shared", now_s=1.0)
    second = begun(other, "shared", now_s=1.0, node=node)
    assert (second.scheduled_s, second.started_s) == (first.scheduled_s, first.started_s)
    assert second.ready_s - second.started_s == pytest.approx(alone.ready_s - alone.started_s)
    third = begun(other, "warm", now_s=2.0, node=node)
    assert third.ready_s == second.ready_s


ASKED = st.tuples(st.sampled_from("abc"), st.floats(0.0, 150.0), st.floats(0.2, 3.0), st.booleans())


@given(asked=st.lists(ASKED, min_size=1, max_size=20))
def test_phases_are_in_order_and_never_before_the_node(
    asked: list[tuple[str, float, float, bool]],
) -> None:
    pool, now_s, begun_on = GpuPool(24), 0.0, []
    of = case(uncached_s=240.0)
    starts = {name: CaseColdStarts(replace(of, trace=replace(of.trace, name=name))) for name in "abc"}
    for name, later_s, duration_factor, leaves in asked:
        now_s += later_s

        def on_assigned(
            at_s: float, place: MachinePlace, name: str = name, duration_factor: float = duration_factor
        ) -> None:
            begun_on.append((place.node, starts[name].begin(place.node, at_s, duration_factor)))

        claim = GpuClaim(name, 1, on_assigned)
        pool.request(claim, now_s)
        if leaves:
            pool.release_gpus(claim, now_s)
    for node, start in begun_on:
        assert start.scheduled_s <= start.started_s <= start.serving_s <= start.ready_s
        assert start.scheduled_s >= node.up_s
        assert start.started_s >= node.image_s


def test_profile_without_weights_fetches_nothing() -> None:
    fitted = replace(case(uncached_s=240.0), profile=replace(synthetic.llama(), weight_bytes=0.0))
    assert begun(fitted, "shared").ready_s == 60.0


def test_weights_of_nodes_that_always_or_never_hold_them() -> None:
    of = replace(case(uncached_s=240.0), weights_on=0.5)
    holding, other = Machine(8, holds=True), Machine(8, holds=False)
    booted, fetched = begun(of, "fresh", node=holding), begun(of, "fresh", node=other)
    assert fetched.ready_s == pytest.approx(240.0)
    assert booted.ready_s == pytest.approx(60 + 180 * 160 / 170.7, rel=1e-3)  # without the weights' share
    again, warm = (begun(of, "shared", now_s=1000.0, node=node) for node in (other, holding))
    assert warm.ready_s == pytest.approx(1060.0)
    assert again.ready_s == pytest.approx(1060 + 180 * 10.7 / 170.7, rel=1e-3)  # each start fetches


def test_start_on_a_node_that_holds_weights_waits_until_it_is_up() -> None:
    of, node = replace(case(uncached_s=240.0), weights_on=1.0), Machine(8, holds=True)
    first, second = (begun(of, "fresh", now_s=now_s, node=node) for now_s in (0.0, 10.0))
    assert (second.scheduled_s, second.started_s) == (first.scheduled_s, first.started_s)
    assert second.ready_s > second.started_s + 50


def test_start_has_image_and_weights_when_a_node_came_ahead() -> None:
    of = case(uncached_s=240.0)
    start = begun(of, "fresh", now_s=500.0, node=Machine(8, up_s=400.0))
    assert start.ready_s == pytest.approx(500 + 60 + 180 * 70.7 / 170.7, rel=1e-3)
    coming = begun(of, "fresh", now_s=500.0, node=Machine(8, up_s=530.0))
    assert coming.ready_s == pytest.approx(start.ready_s + 30)


def test_weights_that_an_agent_fetches_are_waited_for() -> None:
    of = case(uncached_s=240.0)
    begins_s = 500 + 60 * 1.5 / 39.85
    for complete_s in (480.0, 510.0):
        node = Machine(8, up_s=0.0, image_s=0.0, models={"small": complete_s})
        start = begun(of, "shared", now_s=500.0, node=node)
        assert start.started_s == pytest.approx(begins_s, rel=1e-3)
        assert start.ready_s == pytest.approx(560.0 + max(complete_s - begins_s, 0.0), rel=1e-3)
