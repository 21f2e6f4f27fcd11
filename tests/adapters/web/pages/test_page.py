"""The page in a real Chromium, over a real server. Pictures are kept as test artefacts `page-*.png`."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from playwright.async_api import Browser, Page, expect

from autoscaler.adapters.web.recent_ticks import MAX_TICKS
from autoscaler.core.explain import sentence
from autoscaler.core.explain.chain import LinkStart, NextNeed
from autoscaler.core.model.fleet import PendingClass, Workload, WorkloadRef
from autoscaler.core.model.types import Signal, Stage
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.pages.conftest import WIDE, Open, open_page_quietly, rows
from tests.adapters.web.records import (
    FORECAST,
    START_WALL_S,
    TEAMS,
    World,
    explain,
    with_quotas,
    with_starts,
    with_weights,
)
from tests.harness.browser import PATIENCE_MS, screenshot

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

PHONE = {"width": 390, "height": 800}


async def test_a_thousand_workloads_are_listed_filtered_and_sorted(daemon: Daemon, open_page: Open) -> None:
    world = World(1000)
    daemon.record(*world.ticks(20))
    page = await open_page()
    await expect(page.locator("#tiles dd").first).to_have_text("1,000")
    await expect(page.locator("#workloads")).to_have_attribute("aria-rowcount", "1001")
    assert await page.locator("#rows tr").count() < 60, "only the rows in view are in the document"

    await page.get_by_role("button", name="Waiting", exact=True).click()
    await expect(page.locator("th[data-key=waiting]")).to_have_attribute("aria-sort", "descending")
    seen = daemon.dashboard.table()
    assert seen is not None
    most = f"{int(np.nanmax(seen.columns['waiting'])):,}"
    await expect(page.locator("#rows td[data-key=waiting]").first).to_have_text(most)

    await page.locator("#scroll").evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
    await expect(page.locator("#rows tr[aria-rowindex='1001']")).to_be_visible()

    await page.get_by_role("searchbox").fill("support/gemma")
    matching = [member for member in world.members if f"{member.ref}".startswith("support/gemma")]
    await expect(page.locator("#count")).to_have_text(f"{len(matching)} of 1,000")
    await page.get_by_role("searchbox").fill("no such thing")
    await expect(page.locator("#empty")).to_have_text("No workload matches “no such thing”.")


async def test_page_draws_only_the_visible_of_a_thousand_workloads(daemon: Daemon, open_page: Open) -> None:
    world = World(1000)
    daemon.record(*world.ticks(3))
    page = await open_page()
    rows = page.locator("#rows a")
    await expect(rows.first).to_be_visible()
    shown = {await rows.first.inner_text()}
    for top in (9000, 20_000):
        await page.evaluate("top => { document.getElementById('scroll').scrollTop = top; }", top)
        await expect(rows.first).not_to_have_text(shown.pop(), use_inner_text=True)
        assert 0 < await rows.count() < 100
        shown = {await rows.first.inner_text()}


async def test_back_from_a_workload_the_list_is_where_it_was_left(daemon: Daemon, open_page: Open) -> None:
    daemon.record(World(300).tick())
    page = await open_page()
    await expect(rows(page)).not_to_have_count(0)  # before the list is there nothing can be scrolled
    await page.locator("#scroll").evaluate("(box) => box.scrollTo(0, 4000)")
    row = page.locator("#rows tr[aria-rowindex='112']")
    name = await row.locator("a").text_content()
    await row.locator("td[data-key=reason]").click()
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await page.go_back()
    await expect(page.get_by_role("link", name=name or "")).to_be_focused()
    assert await page.locator("#scroll").evaluate("(box) => box.scrollTop") == 4000


async def test_a_tick_reaches_the_list_by_itself(daemon: Daemon, open_page: Open) -> None:
    world = World(8)
    daemon.record(world.tick())
    page = await open_page()
    await expect(page.locator("#live")).to_have_text("Live")
    await expect(page.locator("#mode")).to_have_text("demo")
    tick = world.tick()
    busy = replace(tick.decision.observation, waiting=np.arange(8.0) + 700)
    daemon.record(replace(tick, decision=replace(tick.decision, observation=busy)))
    link = page.get_by_role("link", name=str(tick.input.fleet.workloads[3].ref))
    await expect(page.locator("#rows tr").filter(has=link).locator("td[data-key=waiting]")).to_have_text("703")


async def test_list_says_why_a_count_stays_when_no_signal_recommends(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    stages = np.tile([0.0, 2.0], (len(Stage), 1))
    stages[Stage.DEMAND] = np.nan
    asks, silent = np.full_like(tick.decision.recommendations, np.nan), np.array([0.0, 2.0])
    daemon.record(replace(tick, decision=replace(tick.decision, recommendations=asks, stages=stages, replicas=silent)))
    page = await open_page()
    reasons = page.locator("#rows td[data-key=reason]")
    await expect(reasons).to_have_text(["At zero: no request is known to wait", "Kept: load not known yet"])


async def test_list_sorts_workloads_by_error_budget_used(daemon: Daemon, open_page: Open) -> None:
    tick = World(3).tick()
    plan = replace(tick.decision.plan, missed_fraction=np.array([0.004, np.nan, 0.025]))
    daemon.record(replace(tick, decision=replace(tick.decision, plan=plan)))
    page = await open_page()
    await page.get_by_role("button", name="Budget used").click()
    burnt = page.locator("#rows td[data-key=budget]")
    await expect(burnt).to_have_text(["250%", "40%", "–"])
    await expect(page.locator("#rows td[data-key=budget][data-state=missed]")).to_have_text("250%")


async def test_list_says_whether_an_idle_workload_goes_to_zero(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    wanted = np.array([0.0, 1.0])
    stages = np.tile(wanted, (len(Stage), 1))
    stages[: Stage.IDLE] = [1.0, 0.0]
    asks = np.full_like(tick.decision.recommendations, np.nan)
    asks[Signal.PLANNER] = stages[Stage.DEMAND]
    daemon.record(replace(tick, decision=replace(tick.decision, recommendations=asks, stages=stages, replicas=wanted)))
    page = await open_page()
    reasons = page.locator("#rows td[data-key=reason]")
    ends = ("scale to zero", "one replica stays")
    await expect(reasons).to_have_text([re.compile(rf"^Load of .+ · {end}$") for end in ends])


async def test_list_names_first_what_keeps_a_count_below_demand(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    wanted = np.array([4.0, 16.0])
    stages = np.tile([6.0, 20.0], (len(Stage), 1))
    stages[Stage.BOUNDS :, 1] = 16.0
    stages[Stage.ALLOCATION :, 0] = 4.0
    daemon.record(replace(tick, decision=replace(tick.decision, stages=stages, replicas=wanted)))
    page = await open_page()
    reasons = page.locator("#rows td[data-key=reason]")
    starts = ("4 of 6, short of GPUs or nodes", "20 wanted, at max")
    await expect(reasons).to_have_text([re.compile(rf"^{start} · ") for start in starts])


async def test_list_counts_no_idle_gpus_of_a_workload_at_zero(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    seen, unread = tick.decision.observation, np.array([np.nan, 1.0])
    none = np.array([0.0, 1.0])
    at_zero = replace(seen, ready=none, gpu_loaded=unread, gpu_active=unread)
    fleet = replace(tick.input.fleet, replicas=none)
    given, decision = replace(tick.input, fleet=fleet), replace(tick.decision, observation=at_zero)
    daemon.record(replace(tick, input=given, decision=decision))
    page = await open_page()
    await expect(page.locator("#rows td[data-key=idle]")).to_have_text(["0 of 0", "0 of 1"])


async def test_list_shows_pending_pods_and_stale_inputs(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    classes = np.zeros((len(PendingClass), 2))
    classes[PendingClass.CRASHING, 0], classes[PendingClass.STARTING, 1] = 3.0, 1.0
    trusted = np.array([True, False])
    daemon.record(replace(tick, decision=replace(tick.decision, pending_by_class=classes, trusted=trusted)))
    page = await open_page()
    reasons = page.locator("#rows td[data-key=reason]")
    await expect(reasons).to_have_text([re.compile("· 3 crashing$"), re.compile("· inputs not trusted$")])


async def test_list_and_chart_show_missing_replicas(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    classes = np.zeros((len(PendingClass), 2))
    classes[PendingClass.NODE_COMING, 0], classes[PendingClass.QUOTA, 0] = 1.0, 6.0
    seen = replace(tick.decision.observation, missing_pods=np.array([6.0, 0.0]))
    daemon.record(replace(tick, decision=replace(tick.decision, observation=seen, pending_by_class=classes)))
    page = await open_page()
    reasons = page.locator("#rows td[data-key=reason]")
    await expect(reasons.first).to_have_text(re.compile("· 1 waiting for a node · 6 refused or without pod$"))
    await expect(reasons.last).not_to_have_text(re.compile("without pod"))
    await page.locator("#rows a").first.click()
    await expect(page.locator("dl.tiles.small")).to_contain_text(
        re.compile("Starting.*1 waiting for a node, 6 refused or without pod")
    )


async def test_where_no_queue_is_known_the_sum_is_not_zero(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    seen = replace(tick.decision.observation, waiting=np.full(2, np.nan))
    daemon.record(replace(tick, decision=replace(tick.decision, observation=seen)))
    page = await open_page()
    tile = page.locator("#tiles div").filter(has_text="Requests waiting").locator("dd")
    await expect(tile).to_have_text("–")


async def test_beside_a_long_namespace_the_name_is_still_read(daemon: Daemon, open_page: Open) -> None:
    daemon.record(World((Workload(WorkloadRef("n" * 63, "llama-3-3-70b-instruct")),)).tick())
    page = await open_page()
    right = "(node) => node.getBoundingClientRect().right"
    name = await page.locator("#rows .name").evaluate(right)
    assert name <= await page.locator("#rows td").first.evaluate(right)


async def test_the_first_link_of_a_workload_skips_to_it(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    daemon.record(world.tick())
    page = await open_page(f"/#{world.members[0].ref}")
    await expect(page.locator(".sentence")).to_contain_text("from")
    await expect(page.locator("p.gpus")).to_contain_text("2 of 2 serving replicas: idle and loaded")
    await expect(page.locator("p.gpus")).to_contain_text("sleep of idle replicas")
    skip = page.get_by_role("link", name="Skip to")
    await skip.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_be_focused()


async def test_workloads_that_come_and_go_do_so_on_the_page(daemon: Daemon, open_page: Open) -> None:
    members = tuple(Workload(WorkloadRef("ns", name)) for name in ("first", "second", "third"))
    daemon.record(World(members[:2]).tick())
    page = await open_page()
    await expect(rows(page)).to_have_count(2)
    later = World(members[1:])
    later.ids = np.array([1, 2])
    daemon.record(later.tick())
    await expect(page.locator("#rows .name")).to_have_text(["second", "third"])


async def test_click_opens_the_chart_with_explained_decisions(daemon: Daemon, open_page: Open) -> None:
    world = World(6)
    ticks = world.ticks(60)
    daemon.record(*ticks)
    ref = world.members[2].ref
    page = await open_page()
    await page.locator("#rows tr").filter(has_text=ref.name).locator("td[data-key=reason]").click()
    await expect(page).to_have_url(re.compile(f"#{ref.namespace}/{ref.name}/{ref.kind}$"))
    await expect(page.get_by_role("heading", level=1)).to_contain_text(f"{ref.namespace}/{ref.name}")

    changes = [outcome.change for tick in ticks for outcome in tick.outcomes if outcome.change.ref == ref]
    assert len(changes) > 3
    await expect(page.locator(".mark")).to_have_count(len(changes))
    for name in ("ready", "demand", "wanted", "waiting", "ttft"):
        unbroken = re.compile(r"^M[^MN]+$")  # neither a gap nor NaN
        await expect(page.locator(f".panel .line.{name}")).to_have_attribute("d", unbroken)
    await expect(page.locator(".panel .limit")).to_have_count(1)

    await page.locator(".mark").last.hover()
    await expect(page.locator(".tip")).to_contain_text(changes[-1].reason)
    await expect(page.locator("table.changes tbody tr")).to_have_count(len(changes))
    await expect(page.locator("table.changes tbody tr").first).to_contain_text(changes[-1].reason)
    steps = page.locator("section").filter(has=page.locator("table.steps"))
    changed = await steps.locator("tbody tr").count()
    await expect(steps.locator("summary")).to_have_text(f"{len(Stage) - changed} stages changed nothing")
    await expect(page.locator(".sentence")).to_contain_text(str(ref))

    await page.get_by_role("link", name="All workloads").click()
    await expect(rows(page)).to_have_count(6)


async def test_the_chart_shows_the_recorded_week_on_request(daemon: Daemon, chromium: Browser) -> None:
    """Changes, owners and policies of the record replace those since the start, and come back with them."""
    wall_s = [START_WALL_S - 86_400.0 * days for days in (6, 3, 0)]
    past = {
        "history": {
            "wall_s": wall_s,
            "current": [2, 4, 2],
            "ready": [2, 4, 2],
            "wanted": [4, 2, 2],
            "running": [0, 1, 0],
            "waiting": [0, 5, 0],
        },
        "changes": [
            {
                "wall_s": wall_s[1],
                "before": 4,
                "after": 2,
                "outcome": "applied",
                "reason": "Scales down: <b>calm</b>.",
                "detail": "",
            }
        ],
        "owners": [{"wall_s": wall_s[1], "owner": "a manual change by alice", "replicas": 4}],
        "policies": [{"wall_s": wall_s[0], "policy": "chat", "difference": "-max: 4\n+max: 2"}],
        "problems": ["record/x.sqlite: left out: malformed"],
    }
    world = World(1)
    daemon.record(world.tick())
    ref = world.members[0].ref
    async with daemon.another(port=0, timeline=lambda *_: past) as server:
        page = await chromium.new_page(viewport=WIDE)
        page.set_default_timeout(PATIENCE_MS)
        await page.goto(f"{server.url}#{ref.namespace}/{ref.name}/{ref.kind}")
        await page.get_by_label("Span of the chart").select_option("168")
        await expect(page.get_by_text("Scales down: <b>calm</b>.")).to_be_visible()
        await expect(page.get_by_text("a manual change by alice holds the count, 4")).to_be_visible()
        await expect(page.get_by_text("Policy chat changed:")).to_contain_text("+max: 2")
        await expect(page.get_by_text("left out: malformed")).to_be_visible()
        await expect(page.locator(".legend span")).to_have_text(["ready", "desired", "waiting"])  # what is recorded
        await expect(page.locator(".legend strong")).to_have_count(2)
        await screenshot(page, "recorded-week")
        await page.get_by_label("Span of the chart").select_option("0")
        await expect(page.locator(".legend strong")).to_have_count(3)
        await expect(page.get_by_text("Scales down: <b>calm</b>.")).to_have_count(0)
        await page.close()


async def test_planner_lines_are_shown_and_exceeded_budget_is_marked(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    daemon.record(world.tick())
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    lines = page.locator("table.forecast tr")
    await expect(lines.locator("th")).to_have_text(["Headroom", "Budget"])
    await expect(lines.locator("td")).to_have_text([line.text for line in FORECAST])
    recommender = page.locator("#detail .tiles div").filter(has_text="Recommended by")
    await expect(recommender.locator("dd")).to_have_text("Planner")
    tile = page.locator("#detail .tiles div").filter(has_text="Budget used")
    await expect(tile.locator("dd")).to_have_text("250%")
    await expect(tile).to_have_attribute("data-state", "missed")
    await page.get_by_text("Inputs behind the decision").click()
    values = page.locator("details td")
    for name in ("KV cache used", "Cold start", "Planner idle gap"):
        await expect(page.locator("details th[scope=row]").get_by_text(name, exact=True)).to_be_visible()
    await expect(page.locator("details tr").filter(has_text="Planner missed fraction").locator("td")).to_have_text(
        "2.5%"
    )
    await expect(values.filter(has_text="7.8 ms")).to_have_count(1)


async def test_planner_lines_are_hidden_when_it_has_no_readings(daemon: Daemon, open_page: Open) -> None:
    await daemon.explain_by(lambda *tick: replace(explain(*tick), forecast=()))
    world = World(1)
    daemon.record(world.tick())
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    await expect(page.locator("table.steps tbody tr").first).to_be_visible()
    await expect(page.locator("table.forecast")).to_be_hidden()
    await page.close()


async def test_warnings_are_shown_where_there_are_some(daemon: Daemon, open_page: Open) -> None:
    for warnings in (("its time is <b>short</b>",), ()):
        await daemon.explain_by(lambda *tick, warnings=warnings: replace(explain(*tick), warnings=warnings))
        world = World(1)
        daemon.record(world.tick())
        ref = world.members[0].ref
        page = await open_page(f"/#{ref.namespace}/{ref.name}")
        await expect(page.locator("table.steps tbody tr").first).to_be_visible()
        await expect(page.locator("ul.warnings li")).to_have_text([f"Warning: {each}." for each in warnings])
        await expect(page.locator("ul.warnings")).to_be_visible(visible=bool(warnings))
        await page.close()


async def test_a_side_of_a_pair_shows_its_role_and_its_pair(daemon: Daemon, open_page: Open) -> None:
    world = World((Workload(WorkloadRef("llm", "m-prefill"), service="m", role="prefill"),))
    for pair in ("with the decode workload <b>m-decode</b>", ""):
        await daemon.explain_by(lambda *tick, pair=pair: replace(explain(*tick), pair=pair))
        daemon.record(world.tick())
        page = await open_page("/#llm/m-prefill")
        await expect(page.locator("table.steps tbody tr").first).to_be_visible()
        await expect(page.locator(".badges")).to_contain_text("prefill")
        await expect(page.locator("p.pair")).to_be_visible(visible=bool(pair))
        if pair:
            await expect(page.locator("p.pair")).to_have_text(f"Pair {pair}.")
        await page.close()


@pytest.mark.parametrize(
    ("cause", "window", "name"),
    [("window", "office", "window office"), ("window", "", "window"), ("day_ago", "", "by the load of a day ago")],
)
async def test_the_links_of_the_next_need_are_shown(
    daemon: Daemon, open_page: Open, cause: str, window: str, name: str
) -> None:
    links = (LinkStart("node", 600.0), LinkStart("replica", 1200.0))
    need = NextNeed(cause, window, 1800.0, 4, links, 2)
    await daemon.explain_by(lambda *tick: replace(explain(*tick), chain=need))
    world = World(1)
    daemon.record(world.tick())
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    shown = re.compile(
        rf"^Next: \d\d:\d\d node, \d\d:\d\d replica, for \d\d:\d\d {name} "
        r"\(4 replicas; places are on request for 2\)\.$"
    )
    await expect(page.locator("p.chain")).to_have_text(shown)


async def test_phases_of_the_next_start_and_starting_pods_are_shown(daemon: Daemon, open_page: Open) -> None:
    await daemon.explain_by(sentence.explain)
    world = World(1)
    daemon.record(with_starts(world.tick()))
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    next_start = "The next replica needs 95 s on a node with the weights, learned from 5 starts."
    await expect(page.locator("section.card", has_text="Cold start").locator("p")).to_have_text(next_start)
    await expect(page.locator("table.phases tbody tr", has_text="Engine")).to_have_text("Engine50 s75 s")
    await expect(page.locator("table.phases tbody tr", has_text="Node")).to_have_count(0)
    await expect(page.locator("table.starting tbody tr")).to_have_text("late-0Weights (late)12 min120 s")


async def test_tiles_and_heads_are_kept_in_the_address(daemon: Daemon, open_page: Open) -> None:
    tick = World(30).tick()
    ttft_s = np.full(30, 0.01)
    ttft_s[[3, 7]] = 60.0
    seen = replace(tick.decision.observation, ttft_s=ttft_s)
    plan = replace(tick.decision.plan, missed_fraction=np.zeros(30))
    daemon.record(replace(tick, decision=replace(tick.decision, observation=seen, plan=plan)))
    names = [str(workload.ref) for workload in tick.input.fleet.workloads]
    late = [names[3], names[7]]
    page = await open_page()
    await expect(page.locator("#rows a").first).to_be_visible()
    shown = await rows(page).locator("a").all_text_contents()
    assert set(shown[:2]) == set(late), "trouble comes first"
    await page.get_by_role("button", name="Within TTFT objective").click()
    await page.get_by_role("button", name="Workload", exact=True).click()
    await expect(rows(page).locator("a")).to_have_text(sorted(late))
    await expect(page).to_have_url(re.compile(r"\?show=late&sort=name$"))
    await page.reload()
    await expect(rows(page).locator("a")).to_have_text(sorted(late))
    await page.get_by_role("button", name="Workload", exact=True).click()
    await page.get_by_role("button", name="Workload", exact=True).click()
    await page.get_by_role("button", name="Within TTFT objective").click()
    await expect(page).to_have_url(re.compile(r"^[^?]+$"))
    held, desired = (
        column @ tick.input.fleet.gpus_per_replica for column in (tick.input.fleet.replicas, tick.decision.replicas)
    )
    expected = f"trouble first, {held:g} GPUs now, {desired:g} desired"
    await expect(page.locator("#count")).to_have_text(expected)


async def test_a_total_with_an_unknown_is_a_dash_with_its_reason(daemon: Daemon, open_page: Open) -> None:
    tick = World(3).tick()
    waiting = np.array([1.0, np.nan, 2.0])
    ready = np.ones(3)
    seen = replace(tick.decision.observation, waiting=waiting, gateway_waiting=np.full(3, np.nan), ready=ready)
    daemon.record(replace(tick, decision=replace(tick.decision, observation=seen)))
    page = await open_page()
    tile = page.locator("#tiles > div").filter(has_text="Requests waiting")
    await expect(tile.locator("dd")).to_have_text("–")
    await expect(tile).to_have_attribute("title", "unknown for 1 of 3 workloads")


async def test_decisions_are_readable_by_keyboard_alone(daemon: Daemon, open_page: Open) -> None:
    world = World(3)
    ticks = world.ticks(60)
    daemon.record(*ticks)
    page = await open_page()
    await expect(rows(page)).to_have_count(3)
    await page.get_by_role("searchbox").focus()
    for _ in range(10):  # the heads of nine columns, then the first workload
        await page.keyboard.press("Tab")
    name = await page.evaluate("document.activeElement.textContent")
    await page.keyboard.press("Enter")
    changes = [outcome.change for tick in ticks for outcome in tick.outcomes if str(outcome.change.ref) == name]
    await expect(page.locator(".mark")).to_have_count(len(changes))

    await page.get_by_role("link", name="All workloads").focus()
    await page.keyboard.press("Tab")
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator(".tip .value")).to_have_count(6)
    await page.keyboard.press("Tab")
    await expect(page.locator(".mark").last).to_be_focused()
    await expect(page.locator(".tip")).to_contain_text(changes[-1].reason)
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator(".tip")).to_contain_text(changes[-2].reason)
    daemon.record(world.tick())
    await expect(page.locator("#clock")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    await expect(page.locator(".tip")).to_contain_text(changes[-2].reason)


async def test_a_change_of_another_day_is_listed_with_its_date(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    for tick in world.ticks(60):
        daemon.record(replace(tick, wall_s=tick.wall_s - 86_400))
    daemon.record(*world.ticks(60))
    page = await open_page(f"/#{world.members[0].ref}")
    when = page.locator("table.changes .when")
    await expect(when.first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    await expect(when.last).to_have_text(re.compile(r"^17 Nov, \d\d:\d\d$"))


async def test_deleted_workload_disappears_from_its_page(daemon: Daemon, chromium: Browser) -> None:
    members = tuple(Workload(WorkloadRef("ns", name)) for name in ("stays", "goes"))
    world = World(members)
    daemon.record(*world.ticks(3))
    page = await open_page_quietly(chromium, daemon, "/#ns/goes", [])
    await expect(page.locator("#detail .tiles")).to_be_visible()
    later = World(members[:1])
    later.number = 3
    daemon.record(later.tick())
    await expect(page.locator(".sentence")).to_have_text("no workload ns/goes in the last tick")
    await expect(page.locator("#detail .tiles")).to_be_hidden()
    await expect(page.locator(".badge:visible")).to_have_text("demo")
    world.number = 4
    daemon.record(world.tick())
    await expect(page.locator("#detail .tiles")).to_be_visible()


async def test_the_chart_grows_with_each_tick(daemon: Daemon, open_page: Open) -> None:
    world = World(2)
    daemon.record(*world.ticks(3))
    ref = world.members[1].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    line = page.locator(".panel .line.ttft")
    await expect(line).to_have_attribute("d", re.compile(r"^M[^L]*(L[^L]+){2}$"))
    daemon.record(world.tick())
    await expect(line).to_have_attribute("d", re.compile(r"^M[^L]*(L[^L]+){3}$"))


async def test_replicas_stay_in_sight_when_demand_is_huge(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    for tick in world.ticks(4):
        stages = tick.decision.stages.copy()
        stages[Stage.DEMAND] = 4000.0
        daemon.record(replace(tick, decision=replace(tick.decision, stages=stages)))
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    # A number below zero would show that it leaves the panel, at whose top it is cut off.
    await expect(page.locator(".panel .line.demand")).to_have_attribute("d", re.compile(r"^M[^-]+$"))
    labels = await page.locator(".panel").first.locator(".label").all_text_contents()
    most = float(np.max(world.replicas))
    assert most <= max(int(label) for label in labels) <= 2 * most + 4


async def test_unknown_values_are_gaps_in_charts_and_dashes_in_tiles(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    for tick in world.ticks(9):
        ttft = np.array([np.nan if tick.number in (4, 5, 8) else 1.0])
        seen = replace(tick.decision.observation, ttft_s=ttft)
        daemon.record(replace(tick, decision=replace(tick.decision, observation=seen)))
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    await expect(page.locator(".panel .line.ttft")).to_have_attribute("d", re.compile(r"^M[^M]+M[^M]+$"))
    await expect(page.locator("#detail .tiles")).to_contain_text("– / 150 ms")


async def test_hostile_names_and_reasons_are_shown_as_text(daemon: Daemon, open_page: Open) -> None:
    hostile = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
    members = (Workload(WorkloadRef("ns", hostile), policy=hostile, model=hostile),)
    world = World(members)
    for tick in world.ticks(12):
        daemon.record(replace(tick, input=replace(tick.input, fleet=replace(tick.input.fleet, other_owner=(hostile,)))))
    page = await open_page()
    await expect(page.locator("#rows .name")).to_have_text(hostile)
    await expect(page.locator("#rows td[data-key=policy]")).to_have_text(hostile)
    await page.locator("#rows a").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(hostile)
    await expect(page.locator(".sentence")).to_contain_text(hostile)
    await expect(page.locator("table.changes tbody td:last-child").first).to_contain_text(hostile)
    await page.locator(".mark").last.focus()
    await expect(page.locator(".tip")).to_contain_text(hostile)
    assert await page.locator("main img, main script").count() == 0


async def test_link_to_an_unknown_workload_says_so_until_it_appears(
    daemon: Daemon, open_page: Open, chromium: Browser
) -> None:
    daemon.record(World(1).tick())
    page = await open_page("/#/healthz")  # no workload is named: the list
    await expect(rows(page)).to_have_count(1)
    await page.close()

    refused: list[str] = []
    page = await open_page_quietly(chromium, daemon, "/#ns/later", refused)
    await expect(page.locator(".sentence")).to_have_text("no workload ns/later in the last tick")
    sections = page.locator("#detail section")
    assert not any([await section.is_visible() for section in await sections.all()])
    later = World((Workload(WorkloadRef("ns", "later")),))
    later.ids = np.array([1])
    later.number = 1
    daemon.record(later.tick())
    await expect(page.locator(".sentence")).to_contain_text("ns/later from")
    await expect(page.locator(".panel").first).to_be_visible()
    assert all("404" in text for text in refused)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_pictures_of_the_page_are_readable_in_light_and_dark(
    daemon: Daemon, open_page: Open, scheme: Literal["light", "dark"]
) -> None:
    world = World(1000)
    daemon.record(*world.ticks(300))
    page = await open_page(scheme=scheme)
    await expect(page.locator("#rows a").first).to_be_visible()
    await screenshot(page, f"page-list-{scheme}")
    assert await faintest_text(page) >= 4.5
    await page.locator("#rows a").first.click()
    await expect(page.locator(".mark").first).to_be_visible()
    box = await page.locator(".plots").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80)
    await expect(page.locator(".tip")).to_be_visible()
    await screenshot(page, f"page-workload-{scheme}")
    assert await faintest_text(page) >= 4.5


@pytest.mark.parametrize("viewport", [WIDE, PHONE])
async def test_no_figure_is_wider_than_its_tile(daemon: Daemon, open_page: Open, viewport: dict[str, int]) -> None:
    world = World(1)
    daemon.record(*world.ticks(2))
    page = await open_page(f"/#{world.members[0].ref}", viewport=viewport)
    tiles = page.locator(".tiles.small dd")
    await expect(tiles.nth(4)).to_be_visible()
    wide = """(figures) => {
        figures[4].textContent = "999 ms / 150 ms";
        return figures.filter((f) => f.scrollWidth > f.clientWidth).map((f) => f.textContent);
    }"""
    assert await tiles.evaluate_all(wide) == []


async def test_at_any_width_the_list_fills_its_card_and_no_head_is_cut(daemon: Daemon, open_page: Open) -> None:
    daemon.record(World(5).tick())
    page = await open_page()
    await expect(page.locator("#rows a").first).to_be_visible()
    right = "(nodes) => nodes.at(-1).getBoundingClientRect().right"
    for width in (320, 641, 861, 961, 1081, 1241):  # where the layout changes
        await page.set_viewport_size({"width": width, "height": 800})
        card = await page.locator("#scroll").evaluate_all(right)
        assert await page.locator("#head th:visible").evaluate_all(right) == pytest.approx(card, abs=1.5), width
        assert width > 640 or await page.locator("#filter").evaluate_all(right) == card, width
        for head in await page.locator("#head button:visible").all():
            await head.click()
            assert await head.evaluate("(button) => button.scrollWidth <= button.clientWidth"), width
            if await head.text_content() in ("Workload", "Reason"):
                assert await head.evaluate("(button) => button.clientWidth") > 110, width


async def test_on_a_tablet_a_common_reason_is_not_cut(daemon: Daemon, open_page: Open) -> None:
    daemon.record(*World(20).ticks(60))
    page = await open_page(viewport={"width": 900, "height": 800})
    reasons = page.locator("#rows td[data-key=reason]").filter(has_text="Concurrency · stabilizing")
    await expect(reasons.first).to_be_visible()
    uncut = """(cells) => {
        cells[0].textContent = "Concurrency · within tolerance";
        return cells.every((c) => c.scrollWidth <= c.clientWidth);
    }"""
    assert await page.locator("td[data-key=reason]").evaluate_all(uncut)


async def test_on_a_phone_nothing_is_wider_than_the_screen(daemon: Daemon, open_page: Open) -> None:
    daemon.record(*World(20).ticks(60))
    page = await open_page(viewport=PHONE)
    await expect(page.locator("#rows a").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await screenshot(page, "page-list-phone")
    await page.locator("#rows a").first.click()
    await expect(page.locator(".mark").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await screenshot(page, "page-workload-phone")


async def test_a_page_left_open_keeps_no_more_than_the_daemon_does(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    daemon.record(*world.ticks(MAX_TICKS))
    ref = world.members[0].ref
    page = await open_page(f"/#{ref.namespace}/{ref.name}")
    line = page.locator(".panel .line.ttft")
    await expect(line).to_have_attribute("d", re.compile(rf"^M[^L]*(L[^L]+){{{MAX_TICKS - 1}}}$"))
    before = await line.get_attribute("d")
    daemon.record(*world.ticks(5))
    await asyncio.sleep(0)
    await expect(line).not_to_have_attribute("d", before or "")
    await expect(line).to_have_attribute("d", re.compile(rf"^M[^L]*(L[^L]+){{{MAX_TICKS - 1}}}$"))


async def faintest_text(page: Page) -> float:
    """Return the least contrast of any text with the ground behind it, by WCAG 2's formula."""
    least: float = await page.evaluate(
        """() => {
            const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
                .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const ground = (node) => {
                for (let at = node; at; at = at.parentElement) {
                    const colour = parse(getComputedStyle(at).backgroundColor);
                    if ((colour[3] ?? 1) === 1) return colour;
                }
                return [255, 255, 255];
            };
            let least = 21;
            for (const node of document.querySelectorAll("body *")) {
                const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
                if (!own || !node.getClientRects().length || node.closest("noscript, script")) continue;
                const style = getComputedStyle(node);
                const ink = parse(node.closest("svg") ? style.fill : style.color);
                const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
                least = Math.min(least, (a + 0.05) / (b + 0.05));
            }
            return least;
        }"""
    )
    return least


async def test_node_groups_show_who_holds_the_devices(daemon: Daemon, open_page: Open) -> None:
    tick = World(2).tick()
    (group,) = tick.input.fleet.groups.groups
    shared = (group._replace(nodes="team=a", sharing="mps", sharers=4),)
    groups = replace(tick.input.fleet.groups, groups=shared)
    daemon.record(replace(tick, input=replace(tick.input, fleet=replace(tick.input.fleet, groups=groups))))
    page = await open_page()
    box = page.locator("#groups")
    await expect(box.locator("summary")).to_have_text("Node groups: 6 of 8 devices are free")
    await box.locator("summary").click()
    await expect(box.locator("tbody td").first).to_have_text("NVIDIA-H100-80GB-HBM3")
    await expect(box.locator("tbody td").nth(1)).to_have_text("team=a · mps, 4 pods per device")
    await expect(box.locator("tbody tr")).to_have_count(1)


async def test_quotas_show_what_is_borrowed_and_lent(daemon: Daemon, open_page: Open) -> None:
    daemon.record(with_quotas(World(2).tick()))
    page = await open_page()
    box = page.locator("#quotas")
    await expect(box.locator("summary")).to_have_text("Quotas: 4; – devices are borrowed: unknown for 1 of them")
    await box.locator("summary").click()
    await expect(box.locator("tbody tr")).to_have_count(4)
    borrower = ["ClusterQueue/research · h100", "all", "4", "2", "4", "2", "0"]
    await expect(box.locator("tbody tr").nth(1).locator("td")).to_have_text(borrower)
    await expect(box.locator("tbody td[title='borrows at most 3, lends at most 4']")).to_have_count(1)


async def test_gpu_use_shows_idle_hours_and_what_keeps_them(daemon: Daemon, open_page: Open) -> None:
    world = World(1)
    daemon.record(world.tick(), with_starts(world.tick()))
    for _ in range(100):  # to hours that are seen in the first decimal
        daemon.record(with_starts(world.tick()))
    page = await open_page()
    box = page.locator("#gpu-use")
    await expect(box.locator("summary")).to_have_text(
        "GPU use: 0.1 of 0.1 GPU-hours were idle since this process began"
    )
    await box.locator("summary").click()
    await expect(box.locator("tbody td")).to_have_text([TEAMS[0], "0.1", "0", "0.1", "0", "–", "cold start", "0", "0"])
    box = page.locator("#team-use")
    await expect(box.locator("summary")).to_have_text("GPU use by team: 1")
    await box.locator("summary").click()
    await expect(box.locator("tbody td").first).to_have_text(TEAMS[0])


async def test_weights_show_holders_plan_and_failures(daemon: Daemon, open_page: Open) -> None:
    daemon.record(with_weights(World(2).tick()))
    page = await open_page()
    box = page.locator("#weights")
    await expect(box.locator("summary")).to_have_text("Weights: 1 model; 1 cannot be fetched somewhere")
    await box.locator("summary").click()
    cells = box.locator("tbody td")
    await expect(cells).to_have_text(["hf://org/chat@main", "16", "1", "3", "1", "1", "4 of 9"])
    await expect(cells.nth(5)).to_have_attribute("title", "node-7: unauthorized the hub wants a token")


async def test_table_of_quotas_is_hidden_without_quotas(daemon: Daemon, open_page: Open) -> None:
    daemon.record(World(2).tick())
    page = await open_page()
    await expect(page.locator("#groups")).to_be_visible()
    await expect(page.locator("#quotas")).to_be_hidden()
