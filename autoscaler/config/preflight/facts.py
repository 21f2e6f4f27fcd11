"""What a Prometheus answered. A check asks; what is not answered yet is asked, and the checks run again.

So checks stay pure, and nothing is asked that no check needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NO_SERVER = "no --prometheus"
HISTORY = "7d"  # how far back series are looked for

Labels = Mapping[str, str]


class Question(NamedTuple):
    """One request: an instant query, the label sets of a selector over `HISTORY`, or all names of metrics."""

    kind: str  # "query", "series", "names"
    text: str = ""


class Sample(NamedTuple):
    """One series of an answer. The value is NaN for series without one."""

    labels: Labels
    value: float


class Answer(NamedTuple):
    """The series of an answer, or the names; or why there is none."""

    samples: tuple[Sample, ...] = ()
    names: frozenset[str] = frozenset()
    error: str = ""
    refused: bool = False  # the server says that the expression is invalid


PENDING = Answer(error="not asked yet")


@dataclass
class QueryFacts:
    """Answers so far, and what else was asked for."""

    server: bool  # whether there is a server to ask
    answers: dict[Question, Answer] = field(default_factory=dict)
    wanted: dict[Question, None] = field(default_factory=dict)

    def ask(self, question: Question) -> Answer:
        """Return an answer; `PENDING` if it was not asked yet."""
        if not self.server:
            return Answer(error=NO_SERVER)
        if question not in self.answers:
            self.wanted[question] = None
            return PENDING
        return self.answers[question]

    def query(self, expression: str) -> Answer:
        return self.ask(Question("query", expression))

    def series(self, selector: str) -> Answer:
        return self.ask(Question("series", selector))

    def names(self) -> Answer:
        return self.ask(Question("names"))
