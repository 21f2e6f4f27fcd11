// The table of all workloads. Only the rows in view are in the document, so a thousand cost what thirty do.

import { UNKNOWN, count, duration, element, hashOf, reason, setText, share } from "./format.js";

const ROW_PX = 38; // as in style.css
const SPARE_ROWS = 8; // above and below the view

const idle = (row) => (row.loaded == null || row.gpu_active == null ? null : Math.max(row.loaded - row.gpu_active, 0));
const missed = (row) => row.ttft_s != null && row.ttft_objective_s != null && row.ttft_s > row.ttft_objective_s;
const waitingOf = (row) =>
  row.waiting == null && row.gateway_waiting == null ? null : (row.waiting ?? 0) + (row.gateway_waiting ?? 0);

const COLUMNS = [
  { key: "name", title: "Workload", sort: (row) => `${row.namespace}/${row.name}`, cell: nameCell },
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
    note: "Missed requests of about a day, in error budgets",
    number: true,
    sort: (row) => row.burnt_budgets,
    text: (row) => share(row.burnt_budgets),
    state: (row) => (row.burnt_budgets > 1 ? "missed" : ""),
  },
  {
    key: "idle",
    title: "GPU idle",
    number: true,
    sort: idle,
    text: (row) => (idle(row) == null ? UNKNOWN : `${count(idle(row))} of ${count(row.loaded)}`),
    state: (row) => (idle(row) > 0 ? "idle" : ""),
  },
];

export class List {
  constructor(workloads) {
    this.workloads = workloads;
    this.sort = { key: "name", descending: false };
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
    this.#makeHead();
    this.body.addEventListener("click", (event) => {
      this.left = event.target.closest("a")?.getAttribute("href") ?? this.left;
    });
    this.filter.addEventListener("input", () => {
      this.scroll.scrollTop = 0;
      this.refresh();
    });
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

  #scrolled() {
    this.top = this.scroll.scrollTop;
    this.#render();
  }

  /** Filter, sort and draw anew from what the workloads are now. */
  refresh() {
    if (!this.scroll.offsetParent) return; // hidden behind the detail
    const text = this.filter.value.trim().toLowerCase();
    const rows = [...this.workloads.values()].filter((row) => matches(row, text));
    const { sort } = COLUMNS.find((column) => column.key === this.sort.key);
    const keyed = rows.map((row) => [sort(row), row]);
    keyed.sort((a, b) => compare(a[0], b[0], this.sort.descending) || a[1].id - b[1].id);
    this.shown = keyed.map(([, row]) => row);
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
    const sum = (of) => all.reduce((total, row) => total + (of(row) ?? 0), 0);
    const judged = all.filter((row) => row.ttft_s != null && row.ttft_objective_s != null);
    const gpusIdle = sum((row) => (idle(row) ?? 0) * (row.gpus_per_replica ?? 1));
    const late = judged.filter(missed).length;
    const known = (value) => (this.told ? value : UNKNOWN);
    const waiting = !all.length || all.some((row) => waitingOf(row) != null) ? count(sum(waitingOf)) : UNKNOWN;
    tiles([
      ["Workloads", known(count(all.length))],
      ["Replicas ready / desired", known(`${count(sum((row) => row.ready))} / ${count(sum((row) => row.wanted))}`)],
      ["Requests waiting", known(waiting)],
      ["Within TTFT objective", judged.length ? `${count(judged.length - late)} of ${count(judged.length)}` : UNKNOWN, late && "missed"],
      ["GPUs loaded but idle", all.some((row) => idle(row) != null) ? count(gpusIdle) : UNKNOWN, gpusIdle && "idle"],
    ]);
    setText(document.getElementById("count"), text ? `${count(this.shown.length)} of ${count(all.length)}` : "");
    document.getElementById("workloads").setAttribute("aria-rowcount", this.shown.length + 1);
    const empty = document.getElementById("empty");
    empty.hidden = this.shown.length > 0;
    if (empty.hidden) return;
    const none = this.told ? "No workloads yet." : "Nothing is known before the first tick.";
    setText(empty, this.told && text ? `No workload matches “${this.filter.value.trim()}”.` : none);
  }

  #makeHead() {
    const head = document.getElementById("head");
    for (const column of COLUMNS) {
      const button = element("button", { type: "button", title: column.note }, column.title);
      const th = element("th", { scope: "col", "data-key": column.key, class: column.number && "number" }, button);
      button.addEventListener("click", () => {
        const same = this.sort.key === column.key;
        this.sort = { key: column.key, descending: same ? !this.sort.descending : Boolean(column.number) };
        this.#markSorted();
        this.scroll.scrollTop = 0;
        this.refresh();
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

function tiles(values) {
  const list = document.getElementById("tiles");
  values.forEach(([title, value, state], index) => {
    const tile = list.children[index] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(tile.firstChild, title);
    setText(tile.lastChild, value);
    tile.dataset.state = state || "";
  });
}
