// The table of all workloads. Only the rows in view are in the document, so a thousand cost what thirty do.

import { UNKNOWN, count, dollars, duration, element, hashOf, reason, setText, share, total } from "./format.js";

const ROW_PX = 38; // as in style.css
const SPARE_ROWS = 8; // above and below the view

const none = (row) => row.current === 0 && row.ready === 0;
const loaded = (row) => (none(row) ? 0 : row.gpu_loaded);
const active = (row) => (none(row) ? 0 : row.gpu_active);
const idle = (row) => (loaded(row) == null || active(row) == null ? null : Math.max(loaded(row) - active(row), 0));
const missed = (row) => row.ttft_s != null && row.ttft_objective_s != null && row.ttft_s > row.ttft_objective_s;
const overspent = (row) => row.used_budgets > 1;
const moving = (row) => row.ready !== row.wanted;

/** Requests that wait; no engine holds any where no pod is ready. */
function waitingOf(row) {
  const engines = row.waiting ?? (row.ready === 0 ? 0 : null);
  return engines == null && row.gateway_waiting == null ? null : (engines ?? 0) + (row.gateway_waiting ?? 0);
}

/** GPUs of the replicas in a column; where a workload has none of these, it has no GPU. */
const gpusOf = (column) => (row) =>
  row[column] === 0 ? 0 : row[column] == null || row.gpus_per_replica == null ? null : row[column] * row.gpus_per_replica;

/** Rank what an operator looks at first: missed objectives, then too few replicas, then inputs that are not trusted. */
function trouble(row) {
  if (missed(row) || overspent(row)) return 3;
  if (row.pending > 0 || row.missing_pods > 0 || (row.bound === "allocation" && row.wanted < row.demand)) return 2;
  return row.trusted ? 0 : 1;
}

/** What the tiles select: title, and the rows that are left. */
const SELECTIONS = {
  all: () => true,
  moving,
  waiting: (row) => waitingOf(row) > 0,
  late: missed,
  idle: (row) => idle(row) > 0,
  cost: (row) => row.current > 0 && row.price_note !== "",
};
const TROUBLE = { key: "trouble", descending: true };

const COLUMNS = [
  { key: "name", title: "Workload", sort: nameOf, cell: nameCell },
  { key: "policy", title: "Policy", sort: (row) => row.policy, text: (row) => row.policy || UNKNOWN },
  { key: "ready", title: "Ready", number: true, sort: (row) => row.ready, text: (row) => count(row.ready) },
  { key: "wanted", title: "Desired", number: true, sort: (row) => row.wanted, text: wantedText, state: wantedState },
  { key: "reason", title: "Reason", sort: reason, text: reason },
  { key: "waiting", title: "Waiting", number: true, sort: waitingOf, text: (row) => count(waitingOf(row)) },
  {
    key: "ttft",
    title: "TTFT / objective",
    note: "95th percentile of recent requests of all pods",
    number: true,
    sort: (row) => (row.ttft_s == null ? null : row.ttft_s / (row.ttft_objective_s ?? Infinity)),
    text: (row) => `${duration(row.ttft_s)} / ${duration(row.ttft_objective_s)}`,
    state: (row) => (missed(row) ? "missed" : ""),
  },
  {
    key: "budget",
    title: "Budget used",
    note: "Missed requests of about the window of the policy, in error budgets",
    number: true,
    sort: (row) => row.used_budgets,
    text: (row) => share(row.used_budgets),
    state: (row) => (overspent(row) ? "missed" : ""),
  },
  {
    key: "idle",
    title: "GPU idle",
    number: true,
    sort: idle,
    text: (row) => (idle(row) == null ? UNKNOWN : `${count(idle(row))} of ${count(loaded(row))}`),
    state: (row) => (idle(row) > 0 ? "idle" : ""),
  },
];

export class List {
  constructor(workloads) {
    this.workloads = workloads;
    this.sort = TROUBLE;
    this.selection = "all";
    this.told = false; // whether the daemon has told of a tick: before, no workloads does not mean none
    this.shown = []; // rows that match the filter, in order
    this.elements = new Map(); // id to what is in the document
    this.top = 0; // a list that is not displayed forgets how far it was scrolled
    this.left = ""; // link by which it was left
    this.scroll = document.getElementById("scroll");
    this.body = document.getElementById("rows");
    this.filter = document.getElementById("filter");
    this.above = spacer();
    this.below = spacer();
    this.body.append(this.above, this.below);
    this.#readAddress();
    this.#makeHead();
    this.body.addEventListener("click", (event) => {
      this.left = event.target.closest("a")?.getAttribute("href") ?? this.left;
    });
    this.filter.addEventListener("input", () => this.#ask());
    this.scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#render()).observe(this.scroll);
  }

  /** Come back from one workload to where the list was left. */
  show() {
    const { top, left } = this;
    this.refresh();
    this.scroll.scrollTop = top;
    this.#render();
    this.body.querySelector(`a[href="${CSS.escape(left)}"]`)?.focus({ preventScroll: true });
  }

  /** Show what was asked for from its beginning, and put the question into the address, which can be sent. */
  #ask() {
    const { key, descending } = this.sort;
    const query = new URLSearchParams({
      ...(this.filter.value && { filter: this.filter.value }),
      ...(this.selection !== "all" && { show: this.selection }),
      ...(this.sort !== TROUBLE && { sort: descending ? `-${key}` : key }),
    });
    history.replaceState(null, "", `${query.size ? `?${query}` : location.pathname}${location.hash}`);
    this.scroll.scrollTop = 0;
    this.refresh();
  }

  #readAddress() {
    const query = new URLSearchParams(location.search);
    const [, minus, key] = /^(-?)(\w*)$/.exec(query.get("sort") ?? "") ?? [];
    if (COLUMNS.some((column) => column.key === key)) this.sort = { key, descending: Boolean(minus) };
    if (Object.hasOwn(SELECTIONS, query.get("show"))) this.selection = query.get("show");
    this.filter.value = query.get("filter") ?? "";
  }

  #scrolled() {
    this.top = this.scroll.scrollTop;
    this.#render();
  }

  /** Filter, sort and draw again from what the workloads are now. */
  refresh() {
    if (!this.scroll.offsetParent) return; // hidden behind the detail
    const text = this.filter.value.trim().toLowerCase();
    const selected = SELECTIONS[this.selection];
    const rows = [...this.workloads.values()].filter((row) => selected(row) && matches(row, text));
    const sort = COLUMNS.find((column) => column.key === this.sort.key)?.sort ?? trouble;
    const keyed = rows.map((row) => [sort(row), nameOf(row), row]);
    keyed.sort((a, b) => compare(a[0], b[0], this.sort.descending) || compare(a[1], b[1], false) || a[2].id - b[2].id);
    this.shown = keyed.map(([, , row]) => row);
    this.#render();
    this.#summarize(text);
  }

  #render() {
    const height = this.scroll.clientHeight;
    if (!height) return;
    const first = Math.max(Math.floor(this.scroll.scrollTop / ROW_PX) - SPARE_ROWS, 0);
    const last = Math.min(Math.ceil((this.scroll.scrollTop + height) / ROW_PX) + SPARE_ROWS, this.shown.length);
    const view = this.shown.slice(first, last);
    const seen = new Set(view.map((row) => row.id));
    for (const [id, tr] of this.elements) {
      if (!seen.has(id)) {
        tr.remove();
        this.elements.delete(id);
      }
    }
    this.above.firstChild.style.height = `${first * ROW_PX}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW_PX}px`;
    const focused = document.activeElement;
    let place = this.above.nextSibling;
    view.forEach((row, index) => {
      let tr = this.elements.get(row.id);
      if (!tr) this.elements.set(row.id, (tr = makeRow()));
      fill(tr, row, first + index);
      if (tr === place) place = place.nextSibling;
      else this.body.insertBefore(tr, place);
    });
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  #summarize(text) {
    const all = [...this.workloads.values()];
    const judged = all.filter((row) => row.ttft_s != null && row.ttft_objective_s != null);
    const late = judged.filter(missed).length;
    const idleGpus = (row) => (idle(row) === 0 ? 0 : idle(row) == null || row.gpus_per_replica == null ? null : idle(row) * row.gpus_per_replica);
    const known = (value) => (this.told ? value : UNKNOWN);
    this.#tile("all", "Workloads", known(count(all.length)));
    const counts = [count(total(all, (row) => row.ready)), count(total(all, (row) => row.wanted))];
    this.#tile("moving", "Replicas ready / desired", known(counts.join(" / ")));
    this.#tile("waiting", "Requests waiting", known(count(total(all, waitingOf))), "", unknownOf(all, waitingOf));
    const within = judged.length ? `${count(judged.length - late)} of ${count(judged.length)}` : UNKNOWN;
    this.#tile("late", "Within TTFT objective", within, late && "missed");
    const gpusIdle = total(all, idleGpus);
    this.#tile("idle", "GPUs loaded but idle", known(count(gpusIdle)), gpusIdle > 0 && "idle", unknownOf(all, idleGpus));
    const cost = this.cost ?? {};
    this.#tile("cost", "Cost an hour", known(dollars(cost.usd, cost.too_high?.length, cost.unpriced?.length)), "", cost.text);
    const narrowed = text || this.selection !== "all";
    const order = this.sort === TROUBLE && all.length > 1 ? "trouble first" : "";
    const share = narrowed ? `${count(this.shown.length)} of ${count(all.length)}` : "";
    const [now, desired] = ["current", "wanted"].map((column) => total(all, gpusOf(column)));
    const gpus = narrowed || !all.length ? "" : `${count(now)} GPUs now, ${count(desired)} desired`;
    const silent = unknownOf(all, gpusOf("wanted"));
    setText(document.getElementById("count"), [share, order, gpus, gpus && silent].filter(Boolean).join(", "));
    document.getElementById("workloads").setAttribute("aria-rowcount", this.shown.length + 1);
    const empty = document.getElementById("empty");
    empty.hidden = this.shown.length > 0;
    if (empty.hidden) return;
    const none = this.told ? "No workloads yet." : "Nothing is known before the first tick.";
    const unmatched = text ? `No workload matches “${this.filter.value.trim()}”.` : "No workload is in this state.";
    setText(empty, this.told && all.length && narrowed ? unmatched : none);
  }

  /** Set a tile, which is also the button that selects its rows; `note` says why its number is unknown. */
  #tile(key, title, value, state = "", note = "") {
    const box = document.getElementById("tiles");
    const tile = box.querySelector(`[data-key="${key}"]`) ?? box.appendChild(this.#makeTile(key, title));
    const button = tile.querySelector("button");
    button.setAttribute("aria-pressed", key !== "all" && this.selection === key);
    setText(tile.querySelector("dd"), value);
    tile.dataset.state = state || "";
    tile.title = note;
  }

  #makeTile(key, title) {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      this.selection = this.selection === key ? "all" : key;
      this.#ask();
    });
    return element("div", { "data-key": key }, element("dt", {}, button), element("dd"));
  }

  #makeHead() {
    const head = document.getElementById("head");
    for (const column of COLUMNS) {
      const button = element("button", { type: "button", title: column.note }, column.title);
      const th = element("th", { scope: "col", "data-key": column.key, class: column.number && "number" }, button);
      button.addEventListener("click", () => {
        this.sort = nextOrder(this.sort, column);
        this.#markSorted();
        this.#ask();
      });
      head.append(th);
    }
    this.#markSorted();
  }

  #markSorted() {
    for (const th of document.getElementById("head").children) {
      if (th.dataset.key !== this.sort.key) th.removeAttribute("aria-sort");
      else th.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
    }
  }
}

/** First click: largest numbers, or names from A; second: the other way; third: trouble first again. */
function nextOrder(sort, { key, number }) {
  const first = Boolean(number);
  if (sort.key !== key) return { key, descending: first };
  return sort.descending === first ? { key, descending: !first } : TROUBLE;
}

function makeRow() {
  const tr = element("tr");
  for (const column of COLUMNS) {
    tr.append(element("td", { "data-key": column.key, class: column.number && "number" }));
  }
  tr.firstChild.append(element("a", {}, element("span", { class: "namespace" }), element("span", { class: "name" })));
  // The link is what the keyboard and a screen reader use; the rest of the row follows the mouse.
  tr.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !getSelection().toString()) tr.querySelector("a").click();
  });
  return tr;
}

function fill(tr, row, index) {
  tr.setAttribute("aria-rowindex", index + 2);
  COLUMNS.forEach((column, at) => {
    const td = tr.children[at];
    if (column.cell) {
      column.cell(td, row);
      return;
    }
    const text = column.text(row);
    setText(td, text);
    if (column.key === "reason") td.title = text;
    const state = column.state?.(row) ?? "";
    if ((td.dataset.state ?? "") !== state) td.dataset.state = state;
  });
}

function nameOf(row) {
  return `${row.namespace}/${row.name}`;
}

/** Say for how many rows a value is unknown. */
function unknownOf(rows, of) {
  const silent = rows.filter((row) => of(row) == null).length;
  return silent ? `unknown for ${count(silent)} of ${count(rows.length)} workloads` : "";
}

function nameCell(td, row) {
  const link = td.firstChild;
  const hash = hashOf(row);
  if (link.getAttribute("href") !== hash) {
    link.setAttribute("href", hash);
    link.setAttribute("aria-label", `${row.namespace}/${row.name}`); // its two parts would be read as two words
  }
  link.title = `${row.namespace}/${row.name}${row.model ? ` · ${row.model}` : ""}`;
  setText(link.firstChild, `${row.namespace}/`);
  setText(link.lastChild, row.name);
}

function wantedText(row) {
  const arrow = { up: "▲ ", down: "▼ " }[wantedState(row)] ?? "";
  return arrow + count(row.wanted);
}

function wantedState(row) {
  if (row.wanted == null || row.current == null || row.wanted === row.current) return "";
  return row.wanted > row.current ? "up" : "down";
}

function matches(row, text) {
  if (!text) return true;
  return [`${row.namespace}/${row.name}`, row.policy, row.service, row.model].some((word) =>
    word.toLowerCase().includes(text),
  );
}

/** Order two keys; what is unknown comes last, whichever way the rest goes. */
function compare(a, b, descending) {
  if (a == null || b == null) return (a == null) - (b == null);
  const order = typeof a === "string" ? (a < b ? -1 : a > b ? 1 : 0) : a - b;
  return descending ? -order : order;
}

function spacer() {
  return element("tr", { class: "spacer", "aria-hidden": "true" }, element("td"));
}
