"""What is made again, and what is kept."""

from __future__ import annotations

from functools import partial
from itertools import count
from operator import truediv

import numpy as np

from autoscaler.config.remembered import Remembered


def test_value_is_made_again_when_what_it_was_made_of_differs():
    remembered, made, column = Remembered[int](), count(1), np.zeros(2)

    def get(*made_of: object) -> int:
        return remembered.get(lambda: next(made), *made_of)

    assert [get(1, ["a"], column), get(1, ["a"], column)] == [1, 1]
    assert get(2, ["a"], column) == 2
    assert get(2, ["a", "b"], column) == 3
    assert get(2, ["a", "b"], column.copy()) == 4, "columns are compared by identity"
    assert (remembered.last, remembered.number) == (4, 4)


def test_nothing_is_remembered_when_making_fails():
    remembered = Remembered[float]()
    for divisor, expected in ((0, None), (0, None), (2, 0.5)):
        try:
            assert remembered.get(partial(truediv, 1.0, divisor), divisor) == expected
        except ZeroDivisionError:
            assert remembered.last is expected
