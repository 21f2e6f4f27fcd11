import math

import pytest

from autoscaler.lab.replay.engine.gpu_pool import GpuClaim, GpuPool, MachinePlace


class Claims:
    """Claims by name, and the times of their assignments."""

    def __init__(self, gpus: float, node_gpus: float = 8) -> None:
        self.pool = GpuPool(gpus, node_gpus)
        self.claims: dict[str, GpuClaim] = {}
        self.on_assigned: list[tuple[str, float]] = []
        self.places: dict[str, MachinePlace] = {}

    def ask(self, name: str, gpus: float, now_s: float, model: str = "") -> None:
        def on_assigned(at_s: float, place: MachinePlace) -> None:
            self.on_assigned.append((name, at_s))
            self.places[name] = place

        self.claims[name] = GpuClaim(model, gpus, on_assigned)
        self.pool.request(self.claims[name], now_s)

    def finds_weights(self, name: str) -> bool:
        return self.places[name].weights_cached

    def end(self, name: str, now_s: float) -> None:
        self.pool.release_gpus(self.claims[name], now_s)


def test_gpus_are_assigned_first_come_first_served() -> None:
    asked = Claims(2)
    for name in "abcd":
        asked.ask(name, 1, now_s=1.0)
    assert asked.on_assigned == [("a", 1.0), ("b", 1.0)]
    assert asked.pool.has_waiting
    asked.end("b", now_s=5.0)
    asked.end("a", now_s=7.0)
    assert asked.on_assigned[2:] == [("c", 5.0), ("d", 7.0)]
    assert not asked.pool.has_waiting


def test_small_replicas_do_not_overtake_a_large_one() -> None:
    asked = Claims(4)
    asked.ask("half", 2, now_s=0.0)
    asked.ask("large", 4, now_s=1.0)
    asked.ask("small", 1, now_s=2.0)
    assert asked.on_assigned == [("half", 0.0)]
    asked.end("half", now_s=3.0)
    assert asked.on_assigned[1:] == [("large", 3.0)]
    asked.end("large", now_s=4.0)
    assert asked.on_assigned[2:] == [("small", 4.0)]


def test_withdrawn_claim_lets_the_next_one_in() -> None:
    asked = Claims(4)
    asked.ask("half", 2, now_s=0.0)
    asked.ask("large", 4, now_s=1.0)
    asked.ask("small", 1, now_s=2.0)
    asked.end("large", now_s=3.0)
    assert asked.on_assigned[1:] == [("small", 3.0)]
    assert asked.pool.free_gpus == 1


@pytest.mark.parametrize(("gpus", "places"), [(1 / 7, 56), (2 / 7, 28), (0.25, 32), (0.5, 16)])
def test_slices_fill_every_gpu_despite_rounding(gpus: float, places: int) -> None:
    asked = Claims(8)
    for number in range(places + 1):
        asked.ask(str(number), gpus, now_s=0.0)
    assert len(asked.on_assigned) == places
    for number in range(places):
        asked.end(str(number), now_s=1.0)
    assert len(asked.on_assigned) == places + 1
    assert asked.pool.free_gpus == pytest.approx(8 - gpus)


def test_first_replica_leaves_its_weights_on_its_node() -> None:
    asked = Claims(16)
    asked.ask("first", 1, now_s=0.0, model="chat")
    asked.ask("same", 1, now_s=0.0, model="chat")
    asked.ask("other", 1, now_s=0.0, model="code")
    assert [asked.finds_weights(name) for name in ("first", "same", "other")] == [False, True, False]
    for name in asked.claims:
        asked.end(name, now_s=1.0)
    asked.ask("again", 1, now_s=2.0, model="code")
    assert asked.finds_weights("again")
    assert len(asked.pool.nodes) == 1


def test_placement_prefers_weights_then_the_fullest_node() -> None:
    asked = Claims(24)
    for number in range(6):
        asked.ask(f"a{number}", 1, now_s=0.0, model="a")
    asked.ask("b0", 4, now_s=0.0, model="b")  # two left on the first node
    assert asked.places["b0"].node is asked.pool.nodes[1]
    asked.ask("b1", 1, now_s=0.0, model="b")
    assert asked.places["b1"].node is asked.pool.nodes[1]
    asked.ask("c0", 1, now_s=0.0, model="c")
    assert asked.places["c0"].node is asked.pool.nodes[0]
    asked.ask("d0", 8, now_s=0.0, model="d")
    assert asked.places["d0"].node is asked.pool.nodes[2]
    assert asked.pool.free_gpus == 1 + 3 + 0


def test_replica_fits_into_one_node_or_waits() -> None:
    asked = Claims(12)
    for name in "abc":
        asked.ask(name, 4, now_s=0.0)
    asked.ask("d", 4, now_s=1.0)
    assert [name for name, _ in asked.on_assigned] == ["a", "b", "c"]
    apart = Claims(12)
    for name in "abc":
        apart.ask(name, 5, now_s=0.0)
    assert [name for name, _ in apart.on_assigned] == ["a"]  # three are left here, four there


@pytest.mark.parametrize(
    ("gpus", "each", "room"),
    [(8, 1, 8), (12, 6, 1), (14, 6, 2), (14, 4, 3), (10, 16, 0), (32, 16, 2), (3, 3 / 7, 7), (math.inf, 4, math.inf)],
)
def test_count_fitting_equals_the_possible_placements(gpus: float, each: float, room: float) -> None:
    pool = GpuPool(gpus, max(8.0, each))
    assert pool.count_fitting(each) == room
    placed = []
    for name in range(40):
        pool.request(GpuClaim("", each, lambda _now_s, place: placed.append(place)), float(name))
    assert len(placed) == min(room, 40)


@pytest.mark.parametrize(("share", "holding"), [(0.0, []), (0.5, [1, 3]), (1.0, [0, 1, 2, 3])])
def test_share_of_the_nodes_holds_all_weights(share: float, holding: list[int]) -> None:
    asked = Claims(32)
    asked.pool = GpuPool(32, 8, weights_on=share)
    for number in range(32):
        asked.ask(str(number), 1, now_s=0.0, model=str(number))
    assert [place for place, node in enumerate(asked.pool.nodes) if node.holds] == holding
    # A node that holds none does not keep what a replica fetched.
    asked.end("1", now_s=1.0)
    asked.ask("again", 1, now_s=1.0, model="1")
    assert asked.finds_weights("again") == (0 in holding)


def test_places_tell_where_the_weights_are() -> None:
    pool = GpuPool(24, 8, weights_on=0.5)

    def comes_up(at_s: float, place: MachinePlace) -> None:
        place.node.up_s = 10.0

    claims = [GpuClaim("a", 3, comes_up) for _ in range(4)]
    for claim in claims:
        pool.request(claim, 0.0)
    assert pool.places("a", 3, now_s=9.0) == (0, 0, 0, 0, 24)
    assert pool.places("a", 3, now_s=10.0) == (0, 0, 1, 16, 8)
    pool.release_gpus(claims[0], 11.0)
    pool.release_gpus(claims[3], 11.0)
    assert pool.places("a", 3, now_s=12.0) == (2, 1, 1, 16, 8)


def test_weights_that_are_being_fetched_do_not_count_yet() -> None:
    pool = GpuPool(8, 8, weights_on=0.0, keeps_fetched=True)

    def fetches(at_s: float, place: MachinePlace) -> None:
        place.node.up_s, place.node.models["a"] = 10.0, 50.0

    pool.request(GpuClaim("a", 3, fetches), 0.0)
    assert [pool.places("a", 3, now_s).held for now_s in (20.0, 50.0)] == [0, 1]


class Requests:
    """Places that one owner requests of nodes of eight GPUs; a node takes a minute."""

    def __init__(self, gpus: float = math.inf, node_idle_s: float = 600.0) -> None:
        self.pool = GpuPool(gpus, 8, node_idle_s=node_idle_s)

    def keep(self, places: int, now_s: float, owner: str = "a", gpus: float = 4) -> None:
        self.pool.request_places(owner, gpus, places, now_s, lambda: 60.0)

    def place(self, now_s: float, gpus: float = 4) -> GpuClaim:
        claim = GpuClaim("a", gpus, lambda at_s, place: None)
        self.pool.request(claim, now_s)
        return claim

    def nodes(self, now_s: float) -> tuple[int, int]:
        """All nodes, and those that are up."""
        up = len(self.pool.up_nodes(now_s))
        return len(self.pool.nodes), up


def test_requested_places_make_nodes_come() -> None:
    asked = Requests()
    asked.keep(3, now_s=0.0)
    assert asked.nodes(59.0) == (2, 0)
    assert asked.nodes(60.0) == (2, 2)
    asked.keep(3, now_s=70.0)
    assert asked.nodes(70.0) == (2, 2)


def test_requested_places_take_free_room_before_new_nodes() -> None:
    asked = Requests()
    asked.place(0.0)
    asked.keep(1, now_s=1.0)
    assert len(asked.pool.nodes) == 1
    asked.keep(2, now_s=2.0)
    assert len(asked.pool.nodes) == 2


def test_a_replica_takes_a_requested_place() -> None:
    asked = Requests()
    asked.keep(2, now_s=0.0)
    asked.keep(0, now_s=100.0)
    claims = [asked.place(100.0) for _ in range(2)]
    assert {claim.node for claim in claims} == set(asked.pool.nodes)
    assert len(asked.pool.nodes) == 1


def test_a_replica_of_another_makes_a_further_node_come() -> None:
    asked = Requests()
    asked.keep(2, now_s=0.0)
    asked.place(100.0)
    assert asked.nodes(100.0) == (2, 1)


def test_no_more_nodes_come_than_there_are_gpus() -> None:
    asked = Requests(gpus=12)
    asked.keep(5, now_s=0.0)
    assert [node.gpus for node in asked.pool.nodes] == [8, 4]


def test_an_empty_node_is_removed_after_its_time() -> None:
    asked = Requests(gpus=16, node_idle_s=600.0)
    claim = asked.place(0.0)
    claim.node.up_s = 0.0
    asked.pool.release_gpus(claim, 1000.0)
    assert asked.nodes(1599.0) == (1, 1)
    assert asked.pool.places("a", 4, 1600.0) == (0, 0, 0, 0, 16)
    assert asked.pool.node_gpu_s(0.0, 5000.0) == 8 * 1600
    assert asked.pool.node_gpu_s(1500.0, 5000.0) == 8 * 100


def test_requested_places_keep_their_node() -> None:
    asked = Requests(node_idle_s=600.0)
    asked.keep(1, now_s=0.0)
    assert asked.nodes(5000.0) == (1, 1)
    asked.keep(0, now_s=5000.0)
    assert asked.nodes(5599.0) == (1, 1)
    assert asked.nodes(5600.0) == (0, 0)
    assert asked.pool.node_gpu_s(0.0, 9000.0) == 8 * 5600
