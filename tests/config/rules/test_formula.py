"""Formulas of scalingModifiers: results as expr gives them, and what is refused."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.rules.formula import MAX_CHARS, MAX_STEPS, _Run, read_formula


def doubled(text: str, times: int = 30) -> str:
    """Return variables, each computed from the one before."""
    return "".join(f"let x{number + 1} = {text.format(number)}; " for number in range(times))


VALUES = {"a": 2.0, "b": 3.0, "c": 0.5}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        # KEDA docs, "Scaling modifiers"
        ("(a + b)/2", 2.5),
        ("a < 2 ? a + b >= 2 ? 5.0 : 10.0 : 0.0", 0.0),
        ("count([a,b,c],{#>1}) > 1 ? 5 : 0", 5.0),
        ("float(count([a,b,c],{#>1}) > 1 ? 5 : 0)", 5.0),
        ("max([a, b])", 3.0),
        ("sum([a,b,c])", 5.5),
        ("a > 5 ? a : b", 3.0),
        # precedence and grouping of expr
        ("a + b * c", 3.5),
        ("-a ** 2", -4.0),
        ("2.0 ^ 3 ^ 2", 512.0),
        ("a ?? b * 2", 4.0),
        ("not (a > b) and b > a ? 1.0 : 2.0", 1.0),
        ("a > 1 && b < 1 || c < 1 ? 1.0 : 2.0", 1.0),
        ("a / 4", 0.5),
        ("7 / 2", 3.5),
        ("7 % 4", 3.0),
        ("a | max(b) | min(10)", 3.0),
        ("let x = a * 2; let y = x + 1; y * 1", 5.0),
        ("if a > b { a } else if b > 2 { b } else { c }", 3.0),
        ("len(filter([a, b, c], # > 1))", 2.0),
        ("sum(map([a, b], {# * 2}))", 10.0),
        ("sum([a, b], # * 2)", 10.0),
        ("any([a, b], # > 2) ? ceil(c) : floor(c)", 1.0),
        ("all([a, b], {# > 2}) ? 1.0 : round(2.5)", 3.0),
        ("mean([a, b, c]) + median([a, b, c])", 5.5 / 3 + 2),
        ("abs(-c) + float(int(2.9))", 2.5),
        ("a in [1.0, 2.0] ? 1 /* yes */ : 0", 1.0),
        ("a > 1 ? 5 : 0 ?? b", 5.0),
        ("let n = len([a, b]); n", 2.0),
        ("first([a]) + last([b, c]) /* both */", 2.5),
    ],
)
def test_formula_gives_the_result_of_expr(text: str, result: float) -> None:
    assert read_formula(text, list(VALUES)).compute(VALUES) == pytest.approx(result)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("a + b * c", 6),  # with float(...)
        ("count([a,b,c],{#>1}) > 1 ? 5 : 0", 20),
        ("let x = [a,b]; sum(x, {sum(x, {#})})", 15),
        ("let x = [a,a,a,a,a,a,a,a,a,a]; sum(x, {sum(x, {sum(x, {sum(x, {#})})})})", MAX_STEPS),
        ("a > 100 ? sum(first([[a,a,a,a,a,a,a,a]]), {#}) : a", 26),
    ],
)
def test_steps_are_known_before_it_is_computed(text: str, most: int) -> None:
    formula = read_formula(text, [*VALUES])
    assert formula.most_steps == most
    for value in (0.0, 2.0, 1000.0):
        run = _Run(dict.fromkeys(VALUES, value))
        with suppress(ValueError):
            run.value(formula.term, {})
        assert MAX_STEPS - run._left <= most + 1


def test_missing_trigger_reads_as_nil() -> None:
    assert read_formula("a ?? b", ["a", "b"]).compute({"a": None, "b": 4.0}) == 4.0
    assert read_formula("a ?? nil", ["a"]).compute({"a": None}) is None
    for text in ("a", "a + 1"):
        with pytest.raises(ValueError, match="nil is not a number"):
            read_formula(text, ["a"]).compute({"a": None})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("float(a) > 1 ? 5 : 0", "it gives 5; KEDA takes what begins with float( as it is"),
        ("a > 1", "True is not a number"),
        ("a + b // both", "a comment at its end breaks"),
        ("(a + b", "is missing at the end"),
        ("a / 0", "it gives inf"),
        ("10.0 ** 1000", "it cannot be computed"),
        ("a and b", "2.0 is neither true nor false"),
        ("a % 2", "% takes whole numbers only"),
        ("[a, b]", "[2.0, 1.0] is not a number"),
        ("max([])", "no number is given"),
        ("float(#)", "# stands outside of a predicate"),
        (
            "float(count([1,2,3,4,5,6,7,8,9],{count([1,2,3,4,5,6,7,8,9],{count([1,2,3,4,5,6,7,8,9],"
            "{count([1,2,3,4,5,6,7,8,9],{count([1,2,3,4,5,6,7,8,9],{#>1})>1})>1})>1})>1}))",
            "it takes more than",
        ),
        ("let x0 = 99; " + doubled("x{0} * x{0}") + "x30 + a", "a whole number has more than 64 bits"),
        ("let x0 = 99; " + doubled("int(-x{0} - x{0})") + "let y = x30 * x30; sum([y, y], # * #)", "64 bits"),
        ("9223372036854775808 + a", "64 bits"),
        ("let x0 = [1]; " + doubled("[x{0}, x{0}]") + "x30 + a", "items, with those of lists in it; allowed: 1000"),
        ("let x0 = [1]; " + doubled("map([1, 2], x{0})", 20) + "x20 == [a]", "items, with those of lists in it"),
        ("[" + ",".join(["a"] * 190) + "] + a", "2.0, 2... is not a number"),
    ],
)
def test_result_that_keda_refuses_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + re.escape(problem)):
        read_formula(text, ["a", "b"]).compute({"a": 2.0, "b": 1.0})


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("max(a / 4, 1.0)", ""),
        ("max(a / 4, 1)", ""),
        ("float(a) > 5 ? 5 : a", "where all triggers are 10, it gives 5"),
        ("b / a", "where all triggers are 0, it gives nan"),
    ],
)
def test_values_for_which_a_formula_fails_are_named(text: str, doubt: str) -> None:
    found = read_formula(text, ["a", "b"]).doubt()
    assert found.startswith(doubt) and bool(found) == bool(doubt)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("other + 1", "'other' is not understood; triggers with a name: a"),
        ("upper(a)", "the function 'upper' is not understood"),
        ('a + "b"', "'\"b\"' is not understood"),
        ("a[0]", "'[' is not understood after a whole expression"),
        ("a.b", "'.b' is not understood"),
        ("1..3", "is not understood"),
        ("{a: 1}", "is not understood"),
        ("1 < a < 3", "a chain of comparisons"),
        ("a ? 1.0", ": is missing at the end"),
        ("(a", ") is missing at the end"),
        ("", "a value is missing at the end"),
        ("(" * 60 + "a" + ")" * 60, "nested more than"),
        ("a" + "+a" * 300, "words and signs"),
        ("a" * (MAX_CHARS + 1), "characters"),
    ],
)
def test_formula_that_is_not_understood_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + re.escape(problem)):
        read_formula(text, ["a"])


@given(st.text(alphabet="ab01.+-*/%^?:()[]{}#<>=!&|, letsumaxcount", max_size=80))
def test_any_text_is_a_number_nil_or_a_reason(text: str) -> None:
    try:
        result = read_formula(text, ["a", "b"]).compute({"a": 1.0, "b": 2.0})
    except ValueError as error:
        assert str(error)
    else:
        assert result is None or isinstance(result, float)
