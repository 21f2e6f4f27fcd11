"""Drafts are judged on the half of the history that they have not seen."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.demand.draft import Half, make_drafts
from autoscaler.demand.shape import hours_of
from tests.report.loads import facts_of, interactive, load_of, profiles_of

pytestmark = pytest.mark.slow

STEPS = 1440
QUIET, RISEN, RESTING, AUTO, SLOW = SERVICES = range(5)


def half(columns):
    load = load_of(np.array(columns).T, np.full((STEPS, len(SERVICES)), 3.0))
    return Half(load, profiles_of(len(SERVICES)), hours_of(load, ZoneInfo("UTC")))


@pytest.fixture(scope="module")
def drafts():
    quiet, tripled = np.full(STEPS, 1.5), np.full(STEPS, 4.5)
    resting = np.where(np.arange(STEPS) % 720 < 400, 0.0, 0.8)  # two long gaps a day
    peaks = np.where(np.arange(STEPS) % 480 < 60, 9.0, 1.0)
    first, second = half([quiet, quiet, resting, resting, peaks]), half([quiet, tripled, resting, resting, peaks])
    idle_after_s = np.array([np.nan, np.nan, np.nan, np.inf, np.nan])
    spec = interactive(5).with_columns({"idle_after_s": idle_after_s, "attainment": np.full(5, 0.95)})
    spec.down_period_s[SLOW] = 3600.0  # a quarter of the replicas an hour
    return make_drafts(first, second, spec, facts_of(services=5))


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


def test_draft_rests_when_gaps_are_long(drafts):
    draft = drafts[RESTING]
    lines = {line.field: line for line in draft.lines}
    assert draft.offered, draft.refusal
    assert lines["scaleToZero"].saved_gpu_hours == pytest.approx(draft.gpu_hours_today - draft.gpu_hours, rel=0.05)
    assert draft.gpu_hours < 0.8 * draft.gpu_hours_today
    assert draft.attainment >= 0.95


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
