"""The names under which decisions leave the process are those that were published, and each has its column."""

from dataclasses import fields
from pathlib import Path

import pytest

from autoscaler.core.explain.planner_lines import Figures
from autoscaler.core.model import names
from autoscaler.core.model.chain import Cause, Link
from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.types import Capacity, Observation, Recommender, Signal, Stage
from autoscaler.core.model.weights import PodCache

PUBLISHED = Path(__file__).parents[2] / "data" / "api" / f"names-{names.VERSION}.txt"
COLUMNS = [(names.OBSERVED, Observation), (names.CAPACITY, Capacity), (names.PLANNER, Figures)]


@pytest.mark.parametrize(("named", "table"), COLUMNS, ids=lambda each: getattr(each, "__name__", ""))
def test_every_column_has_one_name(named, table):
    assert sorted(named.values()) == sorted(field.name for field in fields(table))


def test_every_signal_and_stage_has_a_name_of_its_own():
    enums = (
        (names.RECOMMENDERS, Recommender),
        (names.SIGNALS, Signal),
        (names.STAGES, Stage),
        (names.PENDING_CLASSES, PendingClass),
        (names.LINKS, Link),
        (names.CAUSES, Cause),
        (names.PHASES, Phase),
        (names.CACHE_STATES, PodCache),
    )
    for named, members in enums:
        assert named.keys() == set(members)
        assert len(set(named.values())) == len(members)


def test_no_published_name_is_lost():
    """A name may be added to the file; to rename or remove one, raise the version and begin a new file."""
    published = {*names.RECOMMENDERS.values(), *names.SIGNALS.values(), *names.STAGES.values()}
    published |= {*names.OBSERVED, *names.CAPACITY, *names.PLANNER, *names.PENDING_CLASSES.values()}
    published |= {*names.LINKS.values(), *names.CAUSES.values(), *names.PHASES.values(), *names.CACHE_STATES.values()}
    assert published == set(PUBLISHED.read_text().split())
