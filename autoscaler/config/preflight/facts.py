"""What a Prometheus answered. A check asks; what is not answered yet is asked, and the checks run again.

So checks stay pure, and nothing is asked that no check needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
MAX_PARTS = 10  # of a pod's name that may be those of its owner


class SampleIndex:
    """The series of one answer by what they are about, so that many workloads do not each look through all."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._by_owner: dict[tuple[str, str], list[Sample]] = {}
        self._by_label: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            labels = sample.labels
            for name in ("model_name", "namespace"):
                if name in labels:
                    self._by_label.setdefault((name, labels[name]), []).append(sample)
            moved = "exported_pod" in labels
            space = labels.get("exported_namespace" if moved else "namespace", "")
            parts = labels.get("exported_pod" if moved else "pod", "").split("-")
            for count in range(1, min(len(parts), MAX_PARTS)):
                self._by_owner.setdefault((space, "-".join(parts[:count])), []).append(sample)

    def of_owner(self, namespace: str, name: str) -> Sequence[Sample]:
        """Return the series of pods in a namespace whose names begin with a name and a hyphen."""
        return self._by_owner.get((namespace, name), ())

    def of_label(self, name: str, value: str) -> Sequence[Sample]:
        """Return the series with a value of `model_name` or `namespace`."""
        return self._by_label.get((name, value), ())


@dataclass
class QueryFacts:
    """Answers so far, and what else was asked for."""

    server: bool  # whether there is a server to ask
    answers: dict[Question, Answer] = field(default_factory=dict)
    wanted: dict[Question, str] = field(default_factory=dict)
    """All that was ever asked for, and the namespace whose objects did so first; "": everybody's."""

    asker: str = ""  # namespace of the objects that are checked
    _indexes: dict[int, tuple[Answer, SampleIndex]] = field(default_factory=dict)

    def index(self, answer: Answer) -> SampleIndex:
        """Return the index of an answer, which is made once."""
        known = self._indexes.get(id(answer))
        if known is None or known[0] is not answer:
            known = self._indexes[id(answer)] = (answer, SampleIndex(answer.samples))
        return known[1]

    def ask(self, question: Question) -> Answer:
        """Return an answer; `PENDING` if it was not asked yet."""
        if not self.server:
            return Answer(error=NO_SERVER)
        if question not in self.answers:
            self.wanted.setdefault(question, self.asker)
            return PENDING
        return self.answers[question]

    def query(self, expression: str) -> Answer:
        return self.ask(Question("query", expression))

    def series(self, selector: str) -> Answer:
        return self.ask(Question("series", selector))

    def names(self) -> Answer:
        return self.ask(Question("names"))
