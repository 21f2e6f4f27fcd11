"""Sums of money: what is added up, what is left out, and how both are said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.money import Money, Price, UnitCosts, dollars

NAN = math.nan
parts = st.lists(
    st.tuples(
        st.text("abc/", min_size=1, max_size=5),
        st.builds(
            Price, st.one_of(st.just(NAN), st.floats(0, 1e6)), st.sampled_from(["", "no list price", "on demand"])
        ),
    )
)


@given(parts)
def test_a_sum_is_that_of_its_priced_parts_and_names_the_others(named):
    money = Money.sum(named)
    assert money.usd == pytest.approx(sum(price.usd for _, price in named if not math.isnan(price.usd)))
    assert money.parts == len(named) == money.priced + len(money.unpriced)
    assert [name for name, _ in money.unpriced] == [name for name, price in named if math.isnan(price.usd)]
    assert all(why for _, why in (*money.unpriced, *money.too_high))
    assert (money.to_json()["usd"] is None) == (money.priced == 0)
    said = money.say()
    assert ("without a price" in said) == (0 < money.priced < money.parts)
    assert ("at most" in said) == ("may cost less" in said) == bool(money.too_high)
    assert len(said) < 1000


@given(parts, st.randoms())
def test_a_sum_does_not_depend_on_the_order_of_its_parts(named, random):
    shuffled = random.sample(named, len(named))
    assert Money.sum(shuffled).usd == Money.sum(named).usd


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([("a", Price(8000)), ("b", Price(100.4))], "$8,100 for 2 services"),
        (
            [("a", Price(8100)), ("b", Price(NAN, "no list price")), ("c", Price(NAN, "no list price"))],
            "$8,100 for 1 of 3 services; 2 without a price: b, c (no list price)",
        ),
        (
            [("a", Price(12.5)), ("b", Price(2, "priced on demand"))],
            "at most $14.50 for 2 services; 1 may cost less: b (priced on demand)",
        ),
        (
            [("a", Price(NAN, "its devices are not known"))],
            "no cost is known for 1 service: a (its devices are not known)",
        ),
        ([], "no services"),
        (
            [("x", Price(1)), *((f"s{n}", Price(NAN, "no list price")) for n in range(5))],
            "$1.00 for 1 of 6 services; 5 without a price: s0, s1, s2 and 2 more (no list price)",
        ),
    ],
)
def test_a_sum_says_what_it_leaves_out(named, said):
    assert Money.sum(named).say() == said


@pytest.mark.parametrize(
    ("usd", "text"),
    [(8100.4, "$8,100"), (99.994, "$99.99"), (0.0, "$0.00"), (0.01234, "$0.0123"), (NAN, "–"), (1e7, "$10,000,000")],
)
def test_amounts_are_written_with_the_digits_that_matter(usd, text):
    assert dollars(usd) == text


@pytest.mark.parametrize(
    ("usd", "tokens", "requests", "costs"),
    [
        (10.0, 5e6, 2000, (2.0, 5.0)),
        (0.0, 1e6, 10, (0.0, 0.0)),
        (10.0, 0.0, 0.0, (NAN, NAN)),  # nothing was served
        (NAN, 1e6, 10, (NAN, NAN)),
        (10.0, NAN, 10, (NAN, 1000.0)),
    ],
)
def test_costs_per_unit_are_over_what_was_served(usd, tokens, requests, costs):
    assert UnitCosts.of(usd, tokens, requests) == pytest.approx(costs, nan_ok=True)
