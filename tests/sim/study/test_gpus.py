import pytest

from autoscaler.sim.study.gpus import Claim, GpuPool


class Asked:
    """Claims by name, and who was granted when."""

    def __init__(self, gpus: float) -> None:
        self.pool = GpuPool(gpus)
        self.claims: dict[str, Claim] = {}
        self.granted: list[tuple[str, float]] = []

    def ask(self, name: str, gpus: float, now_s: float) -> None:
        self.claims[name] = Claim(gpus, lambda at_s: self.granted.append((name, at_s)))
        self.pool.ask(self.claims[name], now_s)

    def end(self, name: str, now_s: float) -> None:
        self.pool.give_back(self.claims[name], now_s)


def test_gpus_are_given_while_there_are_some_and_then_in_the_order_of_asking() -> None:
    asked = Asked(2)
    for name in "abcd":
        asked.ask(name, 1, now_s=1.0)
    assert asked.granted == [("a", 1.0), ("b", 1.0)]
    assert asked.pool.short
    asked.end("b", now_s=5.0)
    asked.end("a", now_s=7.0)
    assert asked.granted[2:] == [("c", 5.0), ("d", 7.0)]
    assert not asked.pool.short


def test_a_large_replica_at_the_head_is_not_overtaken_by_small_ones() -> None:
    asked = Asked(4)
    asked.ask("half", 2, now_s=0.0)
    asked.ask("large", 4, now_s=1.0)
    asked.ask("small", 1, now_s=2.0)
    assert asked.granted == [("half", 0.0)]
    asked.end("half", now_s=3.0)
    assert asked.granted[1:] == [("large", 3.0)]
    asked.end("large", now_s=4.0)
    assert asked.granted[2:] == [("small", 4.0)]


def test_who_gives_up_waiting_lets_the_next_one_in() -> None:
    asked = Asked(4)
    asked.ask("half", 2, now_s=0.0)
    asked.ask("large", 4, now_s=1.0)
    asked.ask("small", 1, now_s=2.0)
    asked.pool.withdraw(asked.claims["large"], 3.0)
    assert asked.granted[1:] == [("small", 3.0)]
    assert asked.pool.free_gpus == 1


@pytest.mark.parametrize(("gpus", "places"), [(1 / 7, 56), (2 / 7, 28), (0.25, 32), (0.5, 16)])
def test_slices_fill_every_gpu_whatever_their_sums_round_to(gpus: float, places: int) -> None:
    asked = Asked(8)
    for number in range(places + 1):
        asked.ask(str(number), gpus, now_s=0.0)
    assert len(asked.granted) == places
    for number in range(places):
        asked.end(str(number), now_s=1.0)
    assert len(asked.granted) == places + 1
    assert asked.pool.free_gpus == pytest.approx(8 - gpus)
