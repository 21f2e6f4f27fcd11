// The page: follows the daemon live, keeps all workloads in memory, and shows the list or one workload by the hash.

import { ask } from "./ask.js";
import { Detail } from "./detail.js";
import { clock, day, setText } from "./format.js";
import { gpuUse, teamUse } from "./gpu_use.js";
import { groups } from "./groups.js";
import { List } from "./list.js";
import { quotas } from "./quotas.js";
import { weights } from "./weights.js";

const PAGE = 1000; // workloads in one answer of the API
const RETRY_MS = 3000;
const SILENT_MS = 15000; // after this the daemon is asked whether it still ticks

const byId = (id) => document.getElementById(id);
const workloads = new Map(); // id to row, as the API gives it, and the tick it was last told of
const list = new List(workloads);
const detail = new Detail(byId("detail"));
const folded = [
  groups(byId("groups")),
  gpuUse(byId("gpu-use")),
  teamUse(byId("team-use")),
  quotas(byId("quotas")),
  weights(byId("weights")),
];

let source = null; // the stream; none while the tab is hidden
let retry = 0; // timer of the next attempt to follow
let loading = null; // messages that arrive while the list is loaded
let loads = 0; // a later load makes an earlier one void
let heardAt = 0; // when the daemon last told of a tick, or was asked to
let connected = false;
let ticking = false; // the daemon's last tick is recent
let toldS = null; // daemon's time of the tick that is shown
let failedBefore = new Set(); // sources that had a problem when last asked
let drawing = null;

/** Follow the stream while somebody looks: a browser has six connections to one server, for all of its tabs. */
function follow() {
  clearTimeout(retry);
  source?.close();
  source = null;
  loading = null;
  loads++;
  heardAt = performance.now();
  if (document.hidden) return;
  const mine = (source = new EventSource("/api/v1/stream"));
  mine.addEventListener("hello", load);
  mine.addEventListener("tick", (event) => {
    const message = JSON.parse(event.data);
    if (loading) loading.push(message);
    else apply(message);
  });
  mine.addEventListener("error", () => {
    if (mine.readyState === EventSource.CLOSED) load(); // refused, as where too many follow; the list is had without it
    else lost();
  });
}

/** Load the whole list, then what arrived meanwhile. */
async function load() {
  const mine = ++loads;
  const pending = (loading = []);
  const fresh = new Map();
  try {
    let page;
    for (let offset = 0; !page || offset < page.total; offset += PAGE) {
      const { ok, body } = await ask(`/api/v1/workloads?limit=${PAGE}&offset=${offset}`);
      if (!ok) throw new Error(body.error);
      page = body;
      for (const row of page.workloads) fresh.set(row.id, Object.assign(row, { tick: page.tick }));
    }
    if (mine !== loads) return;
    workloads.clear();
    for (const [id, row] of fresh) workloads.set(id, row);
    loading = null;
    setText(byId("mode"), page.mode);
    byId("mode").hidden = false;
    document.body.dataset.mode = page.mode;
    heard(page, !page.stale);
    list.refresh();
    detail.restart();
    folded.forEach((table) => table.load());
    pending.forEach(apply);
  } catch {
    if (mine !== loads) return;
    loading = null;
    source.close();
    lost();
  }
  if (source.readyState === EventSource.CLOSED) retry = setTimeout(follow, RETRY_MS);
}

/** Take one message of the stream. Rows that were loaded later than it was sent are left alone. */
function apply(message) {
  for (const cells of message.changed) {
    const row = workloads.get(cells.id);
    if (!row) workloads.set(cells.id, Object.assign(cells, { tick: message.tick }));
    else if (row.tick < message.tick) Object.assign(row, cells, { tick: message.tick });
  }
  for (const id of message.gone) workloads.delete(id);
  heard(message, true);
  tell("failure", []);
  redraw();
  detail.update();
}

/** Draw once per frame, however fast the ticks are. */
function redraw() {
  drawing ??= requestAnimationFrame(() => {
    drawing = null;
    list.refresh();
  });
}

function heard({ wall_s, leading, cost_per_hour }, recent) {
  heardAt = performance.now();
  connected = true;
  ticking = recent;
  toldS = wall_s;
  list.told = wall_s != null;
  list.cost = cost_per_hour;
  if (list.told) {
    setText(byId("clock"), clock(wall_s));
    byId("follower").hidden = leading;
  }
  show();
}

function lost() {
  connected = false;
  show();
}

function show() {
  const [state, text] = !connected
    ? ["wait", "Reconnecting"]
    : toldS == null
      ? ["wait", "Waiting for the first tick"]
      : ticking
        ? ["ok", "Live"]
        : ["bad", "No recent tick"];
  byId("dot").dataset.state = state;
  setText(byId("live"), text);
}

/** Say what is wrong with the daemon; a stream that is silent while the daemon ticks is cut, though nobody said so. */
async function check() {
  try {
    if (!source) return;
    const { ok, body } = await ask("/readyz");
    const silentMs = performance.now() - heardAt;
    if (silentMs > SILENT_MS) ticking = ok;
    if (connected) show();
    tell("failure", [body.last_error && `The last tick failed. ${body.last_error}`]);
    tell("problems", problemsOf(body));
    if (ok && !loading && silentMs > SILENT_MS + body.last_tick_age_s * 1000) {
      source.close();
      load();
    }
  } catch {
    if (!source) return;
    lost();
    follow();
    tell("failure", ["The daemon does not answer.", toldS != null && `What is shown is from ${day(toldS)}, ${clock(toldS)}.`]);
    tell("problems", []);
  } finally {
    setTimeout(check, RETRY_MS);
  }
}

/** Name what is wrong; of a source what was wrong the last time as well, for a pod that comes or goes fails once. */
function problemsOf({ loop_problem, policy_problem, cluster_problems = [], keda_problem, sources }) {
  const failing = sources.filter(({ problems }) => problems.length > 0);
  const lasting = failing.filter(({ source }) => failedBefore.has(source));
  failedBefore = new Set(failing.map(({ source }) => source));
  const policies = policy_problem && `Changed policies are not in force: ${policy_problem}`;
  const late = loop_problem && `The decision loop is late: ${loop_problem}.`;
  return [late, policies, ...cluster_problems, keda_problem, ...lasting.map(sourceText)];
}

function sourceText({ source, queries, failed, problems: [first, ...others] }) {
  const share = failed ? `${failed} of ${queries} queries failed: ` : "";
  return `${source}: ${share}${first}${others.length ? ` (and ${others.length} more)` : ""}`;
}

function tell(id, lines) {
  const text = lines.filter(Boolean).join("\n");
  setText(byId(id), text);
  byId(id).hidden = !text;
}

/** Show what the hash names: #namespace/name[/kind], or the list. */
function route() {
  let parts;
  try {
    parts = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    parts = []; // a hash that is no link of ours
  }
  const [namespace, name, kind] = parts;
  const one = Boolean(namespace && name);
  byId("list").hidden = one;
  byId("detail").hidden = !one;
  document.title = one ? `${namespace}/${name} · vllm-autoscaler` : "vllm-autoscaler";
  if (one) {
    detail.open(namespace, name, kind ?? "");
  } else {
    detail.close();
    list.show();
  }
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  lost(); // until it is heard of again
  follow();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  (byId("detail").querySelector("h1") ?? byId("filter")).focus();
});
route();
follow();
check();
