"""The mutants of `make mutants`."""

from tools import mutants


def test_each_mutant_is_one_change_that_compiles() -> None:
    chosen = mutants.sample(40, seed=1, room="stabilize")
    assert len(chosen) == 40
    for mutant in chosen:
        compile(mutant.source, str(mutant.path), "exec")
        before = (mutants.ROOT / mutant.path).read_text("utf-8")
        kept = before.splitlines()[: mutant.line - 1]
        assert mutant.source != before
        assert mutant.source.splitlines()[: mutant.line - 1] == kept


def test_a_sample_depends_on_its_seed_alone() -> None:
    first, again, other = (mutants.sample(20, seed, "stabilize") for seed in (1, 1, 2))
    assert first == again != other


def test_slow_tests_of_the_room_come_last() -> None:
    (mutant,) = mutants.sample(1, seed=1, room="stabilize")
    *_, fast, slow = mutants.tests_of(mutant)
    assert fast == ["tests/core/stabilize", "-m", "not slow"]
    assert slow == ["tests/core/stabilize", "-m", "slow"]
