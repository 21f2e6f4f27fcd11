"""How long manual overrides are respected, on virtual time."""

import asyncio
import math

import pytest

from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.count_writers import UNNAMED, Writer
from autoscaler.adapters.kubernetes.manual_overrides import (
    FIRST_OVERRIDE_S,
    LONGEST_OVERRIDE_S,
    NOTE_LIMIT,
    REDEPLOYED_S,
    REMEMBERED_S,
    RESTORED_S,
    OverrideTracker,
)
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.core.snapshot import ManualOverride
from tests.harness.in_memory import LoopClock

pytestmark = pytest.mark.looptime


COUNT = 4  # any but zero


def by(manager: str, operation: str = "Update", subresource: str = "scale") -> Writer:
    return Writer(manager, operation, subresource)


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
    overrides.observe_change("uid", count)


async def test_own_write_is_no_override_when_writer_is_unknown(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    assert overrides.owner("uid", COUNT) == ""


async def test_change_is_an_override_when_daemon_never_wrote(overrides: OverrideTracker):
    overrides.observe_new("uid", 1, by("kubectl-create"))
    assert overrides.owner("uid", COUNT) == ""
    overrides.observe_change("uid", 4, by("kubectl-scale"))
    assert overrides.owner("uid", COUNT) == "a manual change by kubectl-scale"


async def test_follower_ignores_unknown_writer_of_a_new_object(follower: OverrideTracker):
    follower.observe_new("uid", 1, by("kubectl-create"))
    follower.observe_change("uid", 4)  # from zero, written by the leader
    assert follower.owner("uid", COUNT) == ""


@pytest.mark.parametrize("writer", ["kubectl-create", FIELD_MANAGER])
async def test_unknown_writer_is_an_override_without_other_leader(overrides: OverrideTracker, writer: str):
    overrides.observe_new("uid", 1, by(writer))
    overrides.observe_change("uid", 0)  # `kubectl scale --replicas=0`: the API server does not know the writer
    assert overrides.owner("uid", 0) == "a manual change by an unknown client"


async def test_change_is_an_override_when_another_replica_wrote(overrides: OverrideTracker):
    overrides.observe_new("uid", 1, by(FIELD_MANAGER))
    overrides.observe_change("uid", 9, by("kubectl-edit"))
    assert overrides.owner("uid", COUNT) == "a manual change by kubectl-edit"


async def test_follower_ignores_the_leaders_change_from_zero(follower: OverrideTracker):
    follower.observe_new("uid", 1, by(FIELD_MANAGER))
    follower.observe_change("uid", 2)  # from 0: the API server does not know the writer
    assert follower.owner("uid", COUNT) == ""


async def test_former_leader_ignores_the_next_leaders_write(writes: OwnWrites):
    lease = Leader()
    former = OverrideTracker(LoopClock(), writes, lease)
    write(writes, former, 4)
    lease.leading = False
    former.observe_change("uid", 0)  # the API server does not know the writer
    lease.leading = True
    assert former.owner("uid", COUNT) == ""


async def test_manual_change_is_respected_for_five_minutes(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    overrides.observe_change("uid", 7)
    assert overrides.owner("uid", COUNT) == "a manual change by an unknown client"
    assert overrides.active() == {("uid", True)}
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid", COUNT) == ""
    assert overrides.active() == frozenset()


async def test_duration_doubles_up_to_an_hour_when_repeated(writes: OwnWrites, overrides: OverrideTracker):
    durations_s = []
    for _ in range(7):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 2, by("kubectl-scale"))
        began_s = asyncio.get_running_loop().time()
        while overrides.owner("uid", COUNT):  # noqa: ASYNC110  time is virtual, and there is no event to wait for
            await asyncio.sleep(10)
        durations_s.append(asyncio.get_running_loop().time() - began_s)
    assert durations_s[:4] == [FIRST_OVERRIDE_S, 2 * FIRST_OVERRIDE_S, 4 * FIRST_OVERRIDE_S, 8 * FIRST_OVERRIDE_S]
    assert durations_s[-1] == LONGEST_OVERRIDE_S


async def test_time_starts_again_when_count_changes_meanwhile(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    overrides.observe_change("uid", 7, by("kubectl-scale"))
    await asyncio.sleep(FIRST_OVERRIDE_S - 10)
    overrides.observe_change("uid", 8, by("kubectl-scale"))
    await asyncio.sleep(20)
    assert overrides.owner("uid", COUNT) != ""


async def test_duration_stays_when_count_changes_meanwhile(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    for count in (7, 8):
        overrides.observe_change("uid", count, by("kubectl-scale"))
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid", COUNT) == ""


async def test_duration_is_the_first_again_after_a_long_time(writes: OwnWrites, overrides: OverrideTracker):
    for _ in range(2):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 7, by("kubectl-scale"))
        await asyncio.sleep(FIRST_OVERRIDE_S + 1)
        assert overrides.owner("uid", COUNT) == ""
        await asyncio.sleep(FIRST_OVERRIDE_S)


async def test_old_own_write_does_not_explain_a_change(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    write(writes, overrides, 6)
    await asyncio.sleep(600)
    overrides.observe_change("uid", 4)
    assert overrides.owner("uid", COUNT) == "a manual change by an unknown client"


async def test_named_writer_is_an_override_at_a_count_we_wrote(writes: OwnWrites, overrides: OverrideTracker):
    for count in (5, 10):
        writes.add("uid", count)
        overrides.observe_change("uid", count, by(FIELD_MANAGER))
    overrides.observe_change("uid", 5, by("kubectl-scale"))
    assert overrides.owner("uid", COUNT) == "a manual change by kubectl-scale"


OURS, THEIRS = "vllm-autoscaler/ours/lease", "vllm-autoscaler/theirs/lease"


def tracker_of_installation(leadership: Follower | Leader | None = None) -> OverrideTracker:
    return OverrideTracker(LoopClock(), OwnWrites(LoopClock(), "ours/lease"), leadership)


async def test_write_is_ours_when_any_replica_made_it():
    overrides = tracker_of_installation(Follower())
    overrides.observe_new("uid", 1, by(OURS))
    overrides.observe_change("uid", 4, by(OURS))
    assert overrides.owner("uid", COUNT) == ""


async def test_another_installation_is_respected_from_the_start():
    overrides = tracker_of_installation()
    overrides.observe_new("uid", 1, by(THEIRS))
    assert overrides.owner("uid", COUNT) == f"another installation, {THEIRS}"


@pytest.mark.parametrize("leadership", [Follower(), Leader()])
async def test_write_is_ours_when_installation_is_not_named(leadership: Follower | Leader):
    overrides = tracker_of_installation(leadership)
    overrides.observe_new("uid", 1, by(FIELD_MANAGER))
    overrides.observe_change("uid", 4, by(FIELD_MANAGER))
    assert overrides.owner("uid", COUNT) == ""


async def test_two_installations_write_less_and_less_often():
    """Each writes another count as soon as it may."""
    a, b = tracker_of_installation(), OverrideTracker(LoopClock(), OwnWrites(LoopClock(), "theirs/lease"))
    writes: list[tuple[float, str]] = []
    for _ in range(4 * 360):
        for overrides, other, manager in ((a, b, OURS), (b, a, THEIRS)):
            if not overrides.owner("uid", COUNT) and (not writes or writes[-1][1] != manager):
                writes.append((asyncio.get_running_loop().time(), manager))
                overrides.observe_change("uid", len(writes), by(manager))
                other.observe_change("uid", len(writes), by(manager))
        await asyncio.sleep(10)
    times = [at_s for at_s, _ in writes]
    assert len(times) <= 10
    assert times[-1] - times[-2] >= LONGEST_OVERRIDE_S


async def test_installation_that_keeps_scaling_stays_respected():
    overrides = tracker_of_installation()
    for count in range(20):
        overrides.observe_change("uid", count, by(THEIRS))
        await asyncio.sleep(200)
        assert overrides.owner("uid", COUNT) != ""
    await asyncio.sleep(FIRST_OVERRIDE_S)
    assert overrides.owner("uid", COUNT) == ""


class OtherProcessClock(LoopClock):
    """The clock of another process: another monotonic zero, and the same wall clock."""

    def __init__(self) -> None:
        super().__init__(LoopClock().wall_s() - LoopClock().now_s() - 7000.0)

    def now_s(self) -> float:
        return super().now_s() + 7000.0


async def test_next_process_respects_an_override_for_its_rest(overrides: OverrideTracker):
    overrides.observe_change("uid", 6)
    await asyncio.sleep(FIRST_OVERRIDE_S - 30)
    saved = overrides.snapshot()
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()))
    later.observe_new("uid", 1)
    later.restore(saved)
    assert later.owner("uid", COUNT) == "a manual change by an unknown client"
    await asyncio.sleep(29)
    assert later.active() == {("uid", True)}
    await asyncio.sleep(2)
    assert later.active() == frozenset()


async def test_duration_doubles_when_repeated_after_a_restart(overrides: OverrideTracker):
    overrides.observe_change("uid", 6)
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    writes = OwnWrites(OtherProcessClock())
    later = OverrideTracker(OtherProcessClock(), writes)
    later.restore(overrides.snapshot())
    assert later.owner("uid", COUNT) == ""
    write(writes, later, 1)
    later.observe_change("uid", 6)
    await asyncio.sleep(2 * FIRST_OVERRIDE_S - 1)
    assert later.owner("uid", COUNT) != ""


async def test_restore_does_not_replace_newer_overrides(overrides: OverrideTracker):
    overrides.observe_change("uid", 6)
    old = overrides.snapshot()
    await asyncio.sleep(REMEMBERED_S + 1)
    assert overrides.snapshot() == ()
    overrides.observe_change("uid", 3, by("kubectl-scale"))
    overrides.restore(old)
    assert overrides.owner("uid", COUNT) == "a manual change by kubectl-scale"


async def test_restored_override_is_limited_when_clock_was_set(overrides: OverrideTracker):
    overrides.restore([ManualOverride("uid", "a manual change by an unknown client", LoopClock().wall_s() + 1e9, 1e9)])
    await asyncio.sleep(LONGEST_OVERRIDE_S + 1)
    assert overrides.owner("uid", COUNT) == ""


HELM, FLUX = by("helm", "Update", ""), by("kustomize-controller", "Apply", "")


async def test_zero_lasts_until_somebody_raises_the_count(overrides: OverrideTracker):
    overrides.observe_change("uid", 0, former=3)
    await asyncio.sleep(100 * LONGEST_OVERRIDE_S)
    assert overrides.owner("uid", 0) == "a manual change by an unknown client"
    assert overrides.until_s("uid") == math.inf
    overrides.observe_change("uid", 2, by("kubectl"), former=0)
    assert overrides.owner("uid", 2) == "a manual change by kubectl"
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid", 2) == ""


@pytest.mark.parametrize("raised", [False, True])
async def test_zero_is_known_to_the_next_leader_by_the_note(overrides: OverrideTracker, raised: bool):
    overrides.observe_change("uid", 0, former=3)
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()), Follower())
    later.observe_new("uid", 3 if raised else 0, by("kubectl") if raised else UNNAMED)
    later.read_note(overrides.note())
    assert (later.owner("uid", 3 if raised else 0) != "") is not raised
    later.observe_change("uid", 0, by(FIELD_MANAGER))  # our own zero is none of others
    assert later.owner("uid", 0) == ""


async def test_note_is_bounded_and_a_damaged_one_is_ignored(overrides: OverrideTracker):
    for number in range(2000):
        overrides.observe_change(f"uid-{number}", 0, former=3)
    note = overrides.note()
    assert 10_000 < len(note) <= NOTE_LIMIT + 2
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()))
    later.read_note(note[:-3])
    assert later.active() == frozenset()
    later.read_note(note)
    assert later.owner("uid-0", 0) == "a manual change by an unknown client"


async def test_reset_by_a_deployment_is_undone_and_not_respected(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 4)
    overrides.observe_change("uid", 1, HELM, former=4, redeployed=True)
    assert (overrides.owner("uid", 1), overrides.former("uid", 1)) == ("", 4)
    assert overrides.active() == {("uid", False)}
    writes.add("uid", 4)
    overrides.observe_change("uid", 4, by(FIELD_MANAGER))
    assert overrides.former("uid", 1) == -1


async def test_reset_is_no_more_undone_when_refused_or_late(writes: OwnWrites, overrides: OverrideTracker):
    overrides.observe_change("uid", 1, HELM, former=4)
    writes.add_refusal("uid", 4, 1, "denied")
    assert overrides.former("uid", 1) == -1
    writes.clear_refusal("uid")
    assert overrides.former("uid", 1) == 4
    await asyncio.sleep(RESTORED_S + 1)
    assert overrides.former("uid", 1) == -1


async def test_raising_by_a_deployment_is_left_to_the_decision(overrides: OverrideTracker):
    overrides.observe_change("uid", 6, HELM, former=2, redeployed=True)
    assert (overrides.owner("uid", 6), overrides.former("uid", 6)) == ("", -1)


@pytest.mark.parametrize("period_s", [1.0, 30.0, 600.0, 3 * 3600.0])
async def test_reset_that_repeats_is_respected_whatever_its_period(
    writes: OwnWrites, overrides: OverrideTracker, period_s: float
):
    held = []
    for _ in range(7):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 1, FLUX, former=4)
        held.append(overrides.until_s("uid") - asyncio.get_running_loop().time())
        await asyncio.sleep(max(period_s, held[-1] + 1))
    assert held == pytest.approx([0, 300, 600, 1200, 2400, 3600, 3600])
    assert overrides.owner("uid", 1) == "" or period_s < 1


async def test_new_deployments_hours_apart_are_undone_each(writes: OwnWrites, overrides: OverrideTracker):
    for _ in range(3):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 1, FLUX, former=4, redeployed=True)
        assert overrides.former("uid", 1) == 4
        await asyncio.sleep(REDEPLOYED_S)


async def test_repetition_is_known_after_a_restart(writes: OwnWrites, overrides: OverrideTracker):
    overrides.observe_change("uid", 1, FLUX, former=4)
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()))
    later.restore(overrides.snapshot())
    later.observe_change("uid", 1, FLUX, former=4)
    assert later.owner("uid", 1) == "the deployment tool kustomize-controller"


async def test_person_who_sets_a_count_thrice_is_respected_longer(writes: OwnWrites, overrides: OverrideTracker):
    held = []
    for _ in range(4):
        write(writes, overrides, 4)
        overrides.observe_change("uid", 1, by("kubectl"), former=4)
        held.append(overrides.until_s("uid") - asyncio.get_running_loop().time())
        await asyncio.sleep(3 * 3600)
    assert held == pytest.approx([300, 300, 600, 1200])


async def test_count_of_a_manifest_that_has_changed_is_a_wish(overrides: OverrideTracker):
    overrides.observe_new("uid", 1, HELM)
    overrides.observe_change("uid", 6, HELM, former=4)
    assert overrides.owner("uid", 6) == "a new count in the manifest of helm"
    overrides.observe_change("uid", 0, HELM, former=6)
    await asyncio.sleep(2 * LONGEST_OVERRIDE_S)
    assert overrides.owner("uid", 0) == "a new count in the manifest of helm"


@pytest.mark.parametrize(("writer", "is_nameless"), [(UNNAMED, True), (HELM, False), (by(FIELD_MANAGER), False)])
async def test_zero_found_at_the_start_may_be_nameless(overrides: OverrideTracker, writer: Writer, is_nameless: bool):
    overrides.observe_new("uid", 0, writer)
    assert overrides.is_nameless_zero("uid", 0, writer) is is_nameless
    assert not overrides.is_nameless_zero("uid", 1, writer)


async def test_zero_by_an_edit_is_known_at_the_start(overrides: OverrideTracker):
    overrides.observe_new("uid", 0, by("kubectl-edit", "Update", ""))
    assert overrides.owner("uid", 0) == "a manual change by kubectl-edit"


def at_time(after_s: float) -> float:
    """Return a Unix time this many seconds from now."""
    return LoopClock().wall_s() + after_s


NIGHT_S = 10 * 3600.0


def held(overrides: OverrideTracker, writer: Writer = UNNAMED) -> tuple[bool, bool]:
    """Return whether a zero has an owner, and whether it is somebody's who is not known."""
    return overrides.owner("uid", 0) != "", overrides.is_nameless_zero("uid", 0, writer)


@pytest.mark.parametrize("stated_first", [False, True])
async def test_zero_ends_at_the_time_that_is_stated(overrides: OverrideTracker, stated_first: bool):
    until_s = at_time(NIGHT_S)
    if stated_first:
        overrides.state_end("uid", 3, until_s)
    overrides.observe_change("uid", 0, former=3)
    overrides.state_end("uid", 0, until_s)
    await asyncio.sleep(NIGHT_S - 1)
    assert (held(overrides), overrides.until_s("uid")) == ((True, True), pytest.approx(LoopClock().now_s() + 1))
    active = overrides.active()
    await asyncio.sleep(2)
    assert (held(overrides), overrides.active()) == ((False, False), frozenset())
    assert active  # so that the columns are made again
    overrides.state_end("uid", 0, None)
    assert held(overrides) == (False, False)


async def test_stated_time_that_is_over_ends_no_later_zero(overrides: OverrideTracker):
    until_s = at_time(60)
    overrides.state_end("uid", 3, until_s)
    await asyncio.sleep(61)
    overrides.observe_change("uid", 0, former=3)
    overrides.state_end("uid", 0, until_s)
    await asyncio.sleep(NIGHT_S)
    assert (held(overrides), overrides.until_s("uid")) == ((True, True), math.inf)
    overrides.state_end("uid", 0, at_time(30))  # somebody states another one
    await asyncio.sleep(31)
    assert held(overrides) == (False, False)


async def test_raise_ends_a_zero_before_its_stated_time(overrides: OverrideTracker):
    until_s = at_time(NIGHT_S)
    overrides.observe_change("uid", 0, former=3)
    overrides.state_end("uid", 0, until_s)
    overrides.observe_change("uid", 2, by("kubectl"), former=0)
    overrides.state_end("uid", 2, until_s)
    await asyncio.sleep(FIRST_OVERRIDE_S + 1)
    assert overrides.owner("uid", 2) == ""


async def test_own_zero_ends_whatever_time_is_stated(writes: OwnWrites, overrides: OverrideTracker):
    write(writes, overrides, 0)
    overrides.state_end("uid", 0, at_time(NIGHT_S))
    assert held(overrides) == (False, False)


@pytest.mark.parametrize("down_s", [60.0, NIGHT_S])
@pytest.mark.parametrize("read_first", [False, True])
async def test_next_process_keeps_to_the_stated_time(overrides: OverrideTracker, down_s: float, read_first: bool):
    until_s = at_time(NIGHT_S)
    overrides.observe_change("uid", 0, former=3)
    overrides.state_end("uid", 0, until_s)
    note = overrides.note()
    await asyncio.sleep(down_s)
    later = OverrideTracker(OtherProcessClock(), OwnWrites(OtherProcessClock()), Follower())
    if read_first:
        later.read_note(note)
    later.observe_new("uid", 0, UNNAMED)
    later.state_end("uid", 0, until_s)
    later.read_note(note)
    is_over = down_s >= NIGHT_S
    assert held(later) == (not is_over, not is_over)
    await asyncio.sleep(NIGHT_S)
    assert held(later) == (False, False)


async def test_zero_of_an_unknown_time_ends_when_its_end_was_ahead(overrides: OverrideTracker):
    """The process starts while the count is zero already."""
    overrides.observe_new("uid", 0, UNNAMED)
    overrides.state_end("uid", 0, at_time(60))
    assert (held(overrides), overrides.until_s("uid")) == ((False, True), pytest.approx(LoopClock().now_s() + 60))
    assert overrides.active() == {("uid", True)}
    await asyncio.sleep(61)
    assert (held(overrides), overrides.active()) == ((False, False), frozenset())
