"""Hands on virtual time: how long a manual change is respected."""

import asyncio

import pytest

from autoscaler.adapters.in_memory import LoopClock
from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER
from autoscaler.adapters.kubernetes.autoscalers.hpas import HAND_HOLD_LIMIT_S, HAND_HOLD_S, Hands
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.core.snapshot import Hold

pytestmark = pytest.mark.looptime


@pytest.fixture
def writes() -> OwnWrites:
    return OwnWrites(LoopClock())


class Follows:
    leading = False


class Lease:
    leading = True


@pytest.fixture
def hands(writes: OwnWrites) -> Hands:
    return Hands(LoopClock(), writes)


@pytest.fixture
def follower(writes: OwnWrites) -> Hands:
    return Hands(LoopClock(), writes, Follows())


def write(writes: OwnWrites, hands: Hands, count: int) -> None:
    writes.note("uid", count)
    hands.changed("uid", count, "")


async def test_our_own_change_is_no_rival_even_when_the_server_forgot_who_made_it(writes: OwnWrites, hands: Hands):
    write(writes, hands, 4)
    assert hands.owner("uid") == ""


async def test_a_change_of_a_count_that_was_right_and_never_written_is_one(hands: Hands):
    hands.first_seen("uid", "kubectl-create")
    assert hands.owner("uid") == ""
    hands.changed("uid", 4, "kubectl-scale")
    assert hands.owner("uid") == "a manual change by kubectl-scale"


async def test_whose_change_of_such_a_count_it_is_must_be_known(follower: Hands):
    follower.first_seen("uid", "kubectl-create")
    follower.changed("uid", 4, "")  # from zero: by the replica of the daemon that leads
    assert follower.owner("uid") == ""


@pytest.mark.parametrize("writer", ["kubectl-create", FIELD_MANAGER])
async def test_where_nobody_else_leads_a_change_that_is_not_ours_is_a_strangers(hands: Hands, writer: str):
    hands.first_seen("uid", writer)
    hands.changed("uid", 0, "")  # `kubectl scale --replicas=0`: the API server has forgotten who wrote
    assert hands.owner("uid") == "a manual change by somebody"


async def test_a_change_of_what_another_replica_of_the_daemon_wrote_is_one(hands: Hands):
    hands.first_seen("uid", FIELD_MANAGER)
    hands.changed("uid", 9, "kubectl-edit")
    assert hands.owner("uid") == "a manual change by kubectl-edit"


async def test_a_follower_does_not_take_the_leaders_change_from_zero_for_a_strangers(follower: Hands):
    follower.first_seen("uid", FIELD_MANAGER)
    follower.changed("uid", 2, "")  # from 0: the API server has forgotten who wrote
    assert follower.owner("uid") == ""


async def test_who_led_before_does_not_take_what_the_next_leader_scales_to_zero_for_a_strangers(writes: OwnWrites):
    lease = Lease()
    former = Hands(LoopClock(), writes, lease)
    write(writes, former, 4)
    lease.leading = False
    former.changed("uid", 0, "")  # the API server has forgotten who wrote
    lease.leading = True
    assert former.owner("uid") == ""


async def test_a_manual_change_is_respected_for_a_while_and_then_forgotten(writes: OwnWrites, hands: Hands):
    write(writes, hands, 4)
    hands.changed("uid", 7, "")
    assert hands.owner("uid") == "a manual change by somebody"
    assert hands.holding() == {"uid"}
    await asyncio.sleep(HAND_HOLD_S + 1)
    assert hands.owner("uid") == ""
    assert hands.holding() == frozenset()


async def test_whoever_keeps_undoing_us_is_given_more_time_up_to_an_hour(writes: OwnWrites, hands: Hands):
    lengths = []
    for _ in range(7):
        write(writes, hands, 4)
        hands.changed("uid", 2, "argocd-controller")
        began_s = asyncio.get_running_loop().time()
        while hands.owner("uid"):  # noqa: ASYNC110  time is virtual, and there is nothing to be told by
            await asyncio.sleep(10)
        lengths.append(asyncio.get_running_loop().time() - began_s)
    assert lengths[:4] == [HAND_HOLD_S, 2 * HAND_HOLD_S, 4 * HAND_HOLD_S, 8 * HAND_HOLD_S]
    assert lengths[-1] == HAND_HOLD_LIMIT_S


async def test_a_second_manual_change_while_one_is_respected_begins_the_time_anew(writes: OwnWrites, hands: Hands):
    write(writes, hands, 4)
    hands.changed("uid", 7, "kubectl-scale")
    await asyncio.sleep(HAND_HOLD_S - 10)
    hands.changed("uid", 8, "kubectl-scale")
    await asyncio.sleep(20)
    assert hands.owner("uid") != ""


async def test_who_changes_a_count_again_while_that_is_respected_undoes_nothing(writes: OwnWrites, hands: Hands):
    write(writes, hands, 4)
    for count in (7, 8):
        hands.changed("uid", count, "kubectl-scale")
    await asyncio.sleep(HAND_HOLD_S + 1)
    assert hands.owner("uid") == ""


async def test_a_manual_change_long_after_another_is_the_first_again(writes: OwnWrites, hands: Hands):
    for _ in range(2):
        write(writes, hands, 4)
        hands.changed("uid", 7, "kubectl-scale")
        await asyncio.sleep(HAND_HOLD_S + 1)
        assert hands.owner("uid") == ""
        await asyncio.sleep(HAND_HOLD_S)


async def test_a_write_long_ago_does_not_explain_a_change_now(writes: OwnWrites, hands: Hands):
    write(writes, hands, 4)
    write(writes, hands, 6)
    await asyncio.sleep(600)
    hands.changed("uid", 4, "")
    assert hands.owner("uid") == "a manual change by somebody"


async def test_a_manual_change_back_to_a_count_that_we_wrote_lately_is_respected(writes: OwnWrites, hands: Hands):
    for count in (5, 10):
        writes.note("uid", count)
        hands.changed("uid", count, FIELD_MANAGER)
    hands.changed("uid", 5, "kubectl-scale")
    assert hands.owner("uid") == "a manual change by kubectl-scale"


OURS, THEIRS = "vllm-autoscaler/ours/lease", "vllm-autoscaler/theirs/lease"


def installed(leadership: Follows | Lease | None = None) -> Hands:
    return Hands(LoopClock(), OwnWrites(LoopClock(), "ours/lease"), leadership)


async def test_write_is_ours_when_any_replica_of_ours_made_it():
    hands = installed(Follows())
    hands.first_seen("uid", OURS)
    hands.changed("uid", 4, OURS)
    assert hands.owner("uid") == ""


async def test_another_installation_is_a_rival_from_the_start():
    hands = installed()
    hands.first_seen("uid", THEIRS)
    assert hands.owner("uid") == f"another installation, {THEIRS}"


@pytest.mark.parametrize("leadership", [Follows(), Lease()])
async def test_a_write_of_an_older_version_is_ours(leadership: Follows | Lease):
    hands = installed(leadership)
    hands.first_seen("uid", FIELD_MANAGER)
    hands.changed("uid", 4, FIELD_MANAGER)
    assert hands.owner("uid") == ""


async def test_two_installations_write_ever_more_rarely():
    """Each writes another count as soon as it is free to."""
    a, b = installed(), Hands(LoopClock(), OwnWrites(LoopClock(), "theirs/lease"))
    writes: list[tuple[float, str]] = []
    for _ in range(4 * 360):
        for hands, other, manager in ((a, b, OURS), (b, a, THEIRS)):
            if not hands.owner("uid") and (not writes or writes[-1][1] != manager):
                writes.append((asyncio.get_running_loop().time(), manager))
                hands.changed("uid", len(writes), manager)
                other.changed("uid", len(writes), manager)
        await asyncio.sleep(10)
    times = [at_s for at_s, _ in writes]
    assert len(times) <= 10
    assert times[-1] - times[-2] >= HAND_HOLD_LIMIT_S


async def test_a_rival_that_goes_on_scaling_is_left_alone_all_the_while():
    hands = installed()
    for count in range(20):
        hands.changed("uid", count, THEIRS)
        await asyncio.sleep(200)
        assert hands.owner("uid") != ""
    await asyncio.sleep(HAND_HOLD_S)
    assert hands.owner("uid") == ""


class Elsewhere(LoopClock):
    """The clock of another process: its own monotonic zero, the same wall."""

    def __init__(self) -> None:
        super().__init__(LoopClock().wall_s() - LoopClock().now_s() - 7000.0)

    def now_s(self) -> float:
        return super().now_s() + 7000.0


async def test_the_next_process_leaves_alone_what_this_one_did_for_the_rest_of_the_time(hands: Hands):
    hands.changed("uid", 0, "")
    await asyncio.sleep(HAND_HOLD_S - 30)
    kept = hands.kept()
    later = Hands(Elsewhere(), OwnWrites(Elsewhere()))
    later.first_seen("uid", "")
    later.recall(kept)
    assert later.owner("uid") == "a manual change by somebody"
    await asyncio.sleep(29)
    assert later.holding() == {"uid"}
    await asyncio.sleep(2)
    assert later.holding() == frozenset()


async def test_who_undoes_the_next_process_as_well_is_given_twice_the_time(hands: Hands):
    hands.changed("uid", 0, "")
    await asyncio.sleep(HAND_HOLD_S + 1)
    writes = OwnWrites(Elsewhere())
    later = Hands(Elsewhere(), writes)
    later.recall(hands.kept())
    assert later.owner("uid") == ""
    write(writes, later, 1)
    later.changed("uid", 0, "")
    await asyncio.sleep(2 * HAND_HOLD_S - 1)
    assert later.owner("uid") != ""


async def test_what_is_over_is_not_kept_and_what_was_noticed_since_is_not_overwritten(hands: Hands):
    hands.changed("uid", 0, "")
    old = hands.kept()
    await asyncio.sleep(2 * HAND_HOLD_S + 1)
    assert hands.kept() == ()
    hands.changed("uid", 3, "kubectl-scale")
    hands.recall(old)
    assert hands.owner("uid") == "a manual change by kubectl-scale"


async def test_no_clock_that_was_set_makes_a_hold_last_for_longer_than_the_longest(hands: Hands):
    hands.recall([Hold("uid", "a manual change by somebody", LoopClock().wall_s() + 1e9, 1e9)])
    await asyncio.sleep(HAND_HOLD_LIMIT_S + 1)
    assert hands.owner("uid") == ""
