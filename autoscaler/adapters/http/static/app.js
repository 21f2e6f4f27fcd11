// The page: follows the daemon live, keeps all workloads in memory, and shows the list or one workload by the hash.

import { Detail } from "./detail.js";
import { clock, setText } from "./format.js";
import { List } from "./list.js";

const PAGE = 1000; // workloads in one answer of the API
const RETRY_MS = 3000;
const STALLED_MS = 15000;

const byId = (id) => document.getElementById(id);
const workloads = new Map(); // id to row, as the API gives it, and the tick it was last told of
const list = new List(workloads);
const detail = new Detail(byId("detail"));

let loading = null; // messages that arrive while the list is loaded
let loads = 0; // a later load makes an earlier one void
let heardAt = 0;
let gapMs = 0;
let drawing = null;

function follow() {
  const source = new EventSource("/api/v1/stream");
  source.addEventListener("hello", () => load(source));
  source.addEventListener("tick", (event) => {
    const message = JSON.parse(event.data);
    if (loading) loading.push(message);
    else apply(message);
  });
  source.addEventListener("error", () => {
    show("wait", "Reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, RETRY_MS);
  });
}

/** Load the whole list, then what arrived meanwhile. */
async function load(source) {
  const mine = ++loads;
  const pending = (loading = []);
  const fresh = new Map();
  try {
    let page;
    for (let offset = 0; !page || offset < page.total; offset += PAGE) {
      const answer = await fetch(`/api/v1/workloads?limit=${PAGE}&offset=${offset}`);
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      page = await answer.json();
      for (const row of page.workloads) fresh.set(row.id, Object.assign(row, { tick: page.tick }));
    }
    if (mine !== loads) return;
    workloads.clear();
    for (const [id, row] of fresh) workloads.set(id, row);
    loading = null;
    heard(page);
    setText(byId("mode"), page.mode);
    byId("mode").hidden = false;
    document.body.dataset.mode = page.mode;
    list.refresh();
    detail.restart();
    pending.forEach(apply);
  } catch {
    if (mine !== loads) return;
    loading = null;
    source.close();
    show("wait", "Reconnecting");
    setTimeout(follow, RETRY_MS);
  }
}

/** Take one message of the stream. Rows that were loaded later than it was sent are left alone. */
function apply(message) {
  for (const cells of message.changed) {
    const row = workloads.get(cells.id);
    if (!row) workloads.set(cells.id, Object.assign(cells, { tick: message.tick }));
    else if (row.tick < message.tick) Object.assign(row, cells, { tick: message.tick });
  }
  for (const id of message.gone) workloads.delete(id);
  heard(message);
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

function heard({ wall_s, leading }) {
  const now = performance.now();
  if (heardAt) gapMs = now - heardAt;
  heardAt = now;
  list.told = wall_s != null;
  if (wall_s == null) {
    show("wait", "Waiting for the first tick");
    return;
  }
  show("ok", "Live");
  setText(byId("clock"), clock(wall_s));
  byId("follower").hidden = leading;
}

function show(state, text) {
  byId("dot").dataset.state = state;
  setText(byId("live"), text);
  if (state === "ok") byId("failure").hidden = true;
}

/** While no tick comes, say why the last one failed. */
async function explain() {
  if (byId("dot").dataset.state === "ok") return;
  let error = "";
  try {
    const answer = await fetch("/readyz");
    error = (await answer.json()).last_error;
  } catch {
    // The connection is lost, and "Reconnecting" says so.
  }
  if (byId("dot").dataset.state === "ok") return;
  setText(byId("failure"), `The last tick failed. ${error}`);
  byId("failure").hidden = !error;
}

setInterval(() => {
  const silentMs = performance.now() - heardAt;
  if (byId("dot").dataset.state === "ok" && silentMs > Math.max(STALLED_MS, 4 * gapMs)) show("bad", "No recent tick");
}, 1000);
setInterval(explain, RETRY_MS);

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
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("filter").focus();
});
route();
follow();
