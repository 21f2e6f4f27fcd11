"""How long manual overrides are respected, on virtual time."""

import asyncio

import pytest

from autoscaler.adapters.in_memory import LoopClock
from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.manual_overrides import FIRST_OVERRIDE_S, LONGEST_OVERRIDE_S, OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.core.snapshot import ManualOverride

pytestmark = pytest.mark.looptime


@pytest.fixture
def writes() -> OwnWrites:
    return OwnWrites(LoopClock())


class Follower:
    leading = False


class Leader:
    leading = True


@pytest.fixture
def overrides(writes: OwnWrites) -> OverrideTracker:
    return OverrideTracker(LoopClock(), writes)


@pytest.fixture
def follower(writes: OwnWrites) -> OverrideTracker:
    return OverrideTracker(LoopClock(), writes, Follower())


def write(writes: OwnWrites, overrides: OverrideTracker, count: int) -> None:
    writes.add("uid", count)
    overrides.observe_change("uid", count, "")


async def test_own_write_is_no_override_when_writer_is_unknown(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    assert overrides.owner("uid") == ""


async def test_change_is_an_override_when_daemon_never_wrote(overrides: OverrideTracker):
    overrides.observe_new("uid", "kubectl-create")
    assert overrides.owner("uid") == ""
    overrides.observe_change("uid", 4, "kubectl-scale")
    assert overrides.owner("uid") == "a manual change by kubectl-scale"


async def test_follower_ignores_unknown_writer_of_a_new_object(follower: OverrideTracker):
    follower.observe_new("uid", "kubectl-create")
    follower.observe_change("uid", 4, "")  # from zero, written by the leader
    assert follower.owner("uid") == ""


@pytest.mark.parametrize("writer", ["kubectl-create", FIELD_MANAGER])
async def test_unknown_writer_is_an_override_without_other_leader(overrides: OverrideTracker, writer: str):
    overrides.observe_new("uid", writer)
    overrides.observe_change("uid", 0, "")  # `kubectl scale --replicas=0`: the API server does not know the writer
    assert overrides.owner("uid") == "a manual change by an unknown client"


async def test_change_is_an_override_when_another_replica_wrote(overrides: OverrideTracker):
    overrides.observe_new("uid", FIELD_MANAGER)
    overrides.observe_change("uid", 9, "kubectl-edit")
    assert overrides.owner("uid") == "a manual change by kubectl-edit"


async def test_follower_ignores_the_leaders_change_from_zero(follower: OverrideTracker):
    follower.observe_new("uid", FIELD_MANAGER)
    follower.observe_change("uid", 2, "")  # from 0: the API server does not know the writer
    assert follower.owner("uid") == ""


async def test_former_leader_ignores_the_next_leaders_write(writes: OwnWrites):
    lease = Leader()
    former = OverrideTracker(LoopClock(), writes, lease)
    write(writes, former, 4)
    lease.leading = False
    former.observe_change("uid", 0, "")  # the API server does not know the writer
    lease.leading = True
    assert former.owner("uid") == ""


async def test_manual_change_is_respected_for_five_minutes(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    overrides.observe_change("uid", 7, "")
    assert overrides.owner("uid") == "a manual change by an unknown client"
    assert overrides.active() == {"uid"}
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid") == ""
    assert overrides.active() == frozenset()


async def test_duration_doubles_up_to_an_hour_when_repeated(writes: OwnWrites, overrides: OverrideTracker):
    durations_s = []
    for _ in range(7):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 2, "argocd-controller")
        began_s = asyncio.get_running_loop().time()
        while overrides.owner("uid"):  # noqa: ASYNC110  time is virtual, and there is no event to wait for
            await asyncio.sleep(10)
        durations_s.append(asyncio.get_running_loop().time() - began_s)
    assert durations_s[:4] == [FIRST_OVERRIDE_S, 2 * FIRST_OVERRIDE_S, 4 * FIRST_OVERRIDE_S, 8 * FIRST_OVERRIDE_S]
    assert durations_s[-1] == LONGEST_OVERRIDE_S


async def test_time_starts_again_when_count_changes_meanwhile(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    overrides.observe_change("uid", 7, "kubectl-scale")
    await asyncio.sleep(FIRST_OVERRIDE_S - 10)
    overrides.observe_change("uid", 8, "kubectl-scale")
    await asyncio.sleep(20)
    assert overrides.owner("uid") != ""


async def test_duration_stays_when_count_changes_meanwhile(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    for count in (7, 8):
        overrides.observe_change("uid", count, "kubectl-scale")
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid") == ""


async def test_duration_is_the_first_again_after_a_long_time(writes: OwnWrites, overrides: OverrideTracker):
    for _ in range(2):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 7, "kubectl-scale")
        await asyncio.sleep(FIRST_OVERRIDE_S + 1)
        assert overrides.owner("uid") == ""
        await asyncio.sleep(FIRST_OVERRIDE_S)


async def test_old_own_write_does_not_explain_a_change(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    write(writes, overrides, 6)
    await asyncio.sleep(600)
    overrides.observe_change("uid", 4, "")
    assert overrides.owner("uid") == "a manual change by an unknown client"


async def test_named_writer_is_an_override_at_a_count_we_wrote(writes: OwnWrites, overrides: OverrideTracker):
    for count in (5, 10):
        writes.add("uid", count)
        overrides.observe_change("uid", count, FIELD_MANAGER)
    overrides.observe_change("uid", 5, "kubectl-scale")
    assert overrides.owner("uid") == "a manual change by kubectl-scale"


OURS, THEIRS = "vllm-autoscaler/ours/lease", "vllm-autoscaler/theirs/lease"


def tracker_of_installation(leadership: Follower | Leader | None = None) -> OverrideTracker:
    return OverrideTracker(LoopClock(), OwnWrites(LoopClock(), "ours/lease"), leadership)


async def test_write_is_ours_when_any_replica_made_it():
    overrides = tracker_of_installation(Follower())
    overrides.observe_new("uid", OURS)
    overrides.observe_change("uid", 4, OURS)
    assert overrides.owner("uid") == ""


async def test_another_installation_is_respected_from_the_start():
    overrides = tracker_of_installation()
    overrides.observe_new("uid", THEIRS)
    assert overrides.owner("uid") == f"another installation, {THEIRS}"


@pytest.mark.parametrize("leadership", [Follower(), Leader()])
async def test_write_is_ours_when_installation_is_not_named(leadership: Follower | Leader):
    overrides = tracker_of_installation(leadership)
    overrides.observe_new("uid", FIELD_MANAGER)
    overrides.observe_change("uid", 4, FIELD_MANAGER)
    assert overrides.owner("uid") == ""


async def test_two_installations_write_less_and_less_often():
    """Each writes another count as soon as it may."""
    a, b = tracker_of_installation(), OverrideTracker(LoopClock(), OwnWrites(LoopClock(), "theirs/lease"))
    writes: list[tuple[float, str]] = []
    for _ in range(4 * 360):
        for overrides, other, manager in ((a, b, OURS), (b, a, THEIRS)):
            if not overrides.owner("uid") and (not writes or writes[-1][1] != manager):
                writes.append((asyncio.get_running_loop().time(), manager))
                overrides.observe_change("uid", len(writes), manager)
                other.observe_change("uid", len(writes), manager)
        await asyncio.sleep(10)
    times = [at_s for at_s, _ in writes]
    assert len(times) <= 10
    assert times[-1] - times[-2] >= LONGEST_OVERRIDE_S


async def test_installation_that_keeps_scaling_stays_respected():
    overrides = tracker_of_installation()
    for count in range(20):
        overrides.observe_change("uid", count, THEIRS)
        await asyncio.sleep(200)
        assert overrides.owner("uid") != ""
    await asyncio.sleep(FIRST_OVERRIDE_S)
    assert overrides.owner("uid") == ""


class OtherProcessClock(LoopClock):
    """The clock of another process: another monotonic zero, and the same wall clock."""

    def __init__(self) -> None:
        super().__init__(LoopClock().wall_s() - LoopClock().now_s() - 7000.0)

    def now_s(self) -> float:
        return super().now_s() + 7000.0


async def test_next_process_respects_an_override_for_its_rest(overrides: OverrideTracker):
    overrides.observe_change("uid", 0, "")
    await asyncio.sleep(FIRST_OVERRIDE_S - 30)
    saved = overrides.snapshot()
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()))
    later.observe_new("uid", "")
    later.restore(saved)
    assert later.owner("uid") == "a manual change by an unknown client"
    await asyncio.sleep(29)
    assert later.active() == {"uid"}
    await asyncio.sleep(2)
    assert later.active() == frozenset()


async def test_duration_doubles_when_repeated_after_a_restart(overrides: OverrideTracker):
    overrides.observe_change("uid", 0, "")
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    writes = OwnWrites(OtherProcessClock())
    later = OverrideTracker(OtherProcessClock(), writes)
    later.restore(overrides.snapshot())
    assert later.owner("uid") == ""
    write(writes, later, 1)
    later.observe_change("uid", 0, "")
    await asyncio.sleep(2 * FIRST_OVERRIDE_S - 1)
    assert later.owner("uid") != ""


async def test_restore_does_not_replace_newer_overrides(overrides: OverrideTracker):
    overrides.observe_change("uid", 0, "")
    old = overrides.snapshot()
    await asyncio.sleep(2 * FIRST_OVERRIDE_S + 1)
    assert overrides.snapshot() == ()
    overrides.observe_change("uid", 3, "kubectl-scale")
    overrides.restore(old)
    assert overrides.owner("uid") == "a manual change by kubectl-scale"


async def test_restored_override_is_limited_when_clock_was_set(overrides: OverrideTracker):
    overrides.restore([ManualOverride("uid", "a manual change by an unknown client", LoopClock().wall_s() + 1e9, 1e9)])
    await asyncio.sleep(LONGEST_OVERRIDE_S + 1)
    assert overrides.owner("uid") == ""
