"""Drafts are judged on the half of the history that they have not seen."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.demand.draft import make_drafts
from autoscaler.demand.halves import Half
from autoscaler.demand.shape import hours_of
from tests.report.loads import facts_of, interactive, load_of, profiles_of

pytestmark = pytest.mark.slow

STEPS, STEP_S = 720, 120.0
QUIET, RISEN, RESTING, AUTO, SLOW, GONE = SERVICES = range(6)


def half(columns):
    load = load_of(np.array(columns).T, np.full((STEPS, len(SERVICES)), 3.0), step_s=STEP_S)
    return Half(load, profiles_of(len(SERVICES)), hours_of(load, ZoneInfo("UTC")))


def made_of(services):
    """The drafts of some services."""
    quiet, tripled = np.full(STEPS, 1.5), np.full(STEPS, 4.5)
    resting = np.where(np.arange(STEPS) % 360 < 200, 0.0, 0.8)  # two long gaps a day
    peaks = np.where(np.arange(STEPS) % 240 < 30, 9.0, 1.0)
    first, second = (
        half([quiet, of_risen, resting, resting, peaks, of_gone])
        for of_risen, of_gone in ((quiet, quiet), (tripled, 0 * quiet))
    )
    idle_after_s = np.array([np.nan, np.nan, np.nan, np.inf, np.nan, np.nan])
    spec = interactive(6).with_columns({"idle_after_s": idle_after_s, "attainment": np.full(6, 0.94)})
    spec.down_period_s[SLOW] = 3600.0  # a quarter of the replicas an hour
    halves = []
    for each in (first, second):
        load = each.load.only(services)
        halves.append(Half(load, each.profiles.take(services), hours_of(load, ZoneInfo("UTC"))))
    return make_drafts(*halves, spec.take(np.array(services)), facts_of(services=len(services)))


@pytest.fixture(scope="module")
def drafts():
    return made_of(SERVICES)


def test_a_draft_is_the_same_when_others_are_replayed_with_it(drafts):
    assert made_of([RESTING, SLOW]) == [drafts[RESTING], drafts[SLOW]]


def saved_by_zero(draft):
    return next(line.saved_gpu_hours for line in draft.lines if line.field == "scaleToZero")


def test_draft_is_refused_when_it_would_cost_attainment(drafts):
    draft = drafts[RISEN]
    assert not draft.offered
    assert "today's policy" in draft.refusal
    assert draft.attainment < draft.attainment_today


def test_draft_is_refused_when_the_policy_fits_the_shape(drafts):
    draft = drafts[QUIET]
    assert not draft.offered
    assert "fits its shape" in draft.refusal
    assert draft.gpu_hours == pytest.approx(draft.gpu_hours_today)


def test_draft_is_refused_when_no_request_judges_it(drafts):
    assert not drafts[GONE].offered
    assert drafts[GONE].refusal.startswith("no request came in the half")


def test_draft_rests_when_gaps_are_long(drafts):
    draft = drafts[RESTING]
    lines = {line.field: line for line in draft.lines}
    assert draft.offered, draft.refusal
    assert lines["scaleToZero"].saved_gpu_hours == pytest.approx(draft.gpu_hours_today - draft.gpu_hours, rel=0.05)
    assert draft.gpu_hours < 0.8 * draft.gpu_hours_today
    assert draft.attainment >= 0.94


def test_draft_is_not_credited_with_what_auto_gives(drafts):
    """`idleAfter: auto` rests as soon as the error budget allows, so a stated time saves little beside it."""
    rested_h = drafts[RESTING].gpu_hours_today - drafts[AUTO].gpu_hours_today
    assert rested_h > 0.5 * saved_by_zero(drafts[RESTING])
    assert saved_by_zero(drafts[AUTO]) < 0.2 * rested_h


def test_draft_shrinks_at_once_where_that_saves_and_else_says_why_not(drafts):
    (line,) = (line for line in drafts[SLOW].lines if line.field == "scaleDown.maxStep")
    assert (line.value, line.today) == ("100%", "25%")
    assert line.saved_gpu_hours > 0
    assert not any(line.field.startswith("scaleDown") for line in drafts[QUIET].lines)
    assert [kept.partition(" stays")[0] for kept in drafts[QUIET].kept] == [
        "scaleDown.maxStep",
        "scaleDown.stabilization",
    ]
