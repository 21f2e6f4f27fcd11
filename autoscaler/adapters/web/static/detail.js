// One workload: the sentence, the figures, the chart with its decisions, and the steps behind the last one.

import { ask } from "./ask.js";
import { Chart } from "./chart.js";
import {
  UNKNOWN,
  byUnit,
  clock,
  count,
  dollars,
  duration,
  element,
  inputGroups,
  inputName,
  moment,
  pendingClasses,
  recommenderName,
  replicas as replicasText,
  setText,
  share,
  signalName,
  stageName,
  words,
} from "./format.js";

const MAX_TICKS = 720; // as many as the daemon keeps
const MAX_CHANGES = 64;
const SPANS = [
  [0, "Since the daemon started, at most 720 ticks"],
  [24, "Last day, from the record"],
  [168, "Last week, from the record"],
  [8784, "The whole record"],
];
const PAUSE_MS = 250; // between two questions, however fast the ticks are

export class Detail {
  constructor(root) {
    this.root = root;
    this.wanted = null;
  }

  /** Show a workload and keep asking for it. */
  open(namespace, name, kind) {
    this.close();
    this.wanted = { namespace, name, kind };
    this.history = null;
    this.changes = [];
    this.hours = 0; // of the record that are shown; 0: what the daemon remembers
    this.parts = skeleton(this.root, namespace, name);
    this.chart = new Chart(this.parts.chart);
    this.parts.span.addEventListener("change", () => this.#choose());
    scrollTo(0, 0);
    this.root.querySelector("h1").focus({ preventScroll: true }); // the link that led here is gone
    this.update();
  }

  close() {
    this.wanted = null;
    this.root.replaceChildren();
  }

  /** Forget the past, for it may be another daemon's now. */
  restart() {
    this.history = null;
    this.changes = [];
    this.update();
  }

  /** Ask for what is new; one question at a time. */
  async update() {
    if (!this.wanted) return;
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    this.again = false;
    const { wanted, history } = this;
    try {
      const { namespace, name, kind } = wanted;
      const query = new URLSearchParams({ since: history?.tick.at(-1) ?? -1, ...(kind && { kind }) });
      const path = `/api/v1/workloads/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
      const { ok, body } = await ask(`${path}?${query}`);
      if (this.wanted === wanted && this.history === history) {
        if (ok) this.#show(body);
        else this.#miss(body.error);
      } else {
        this.again = true;
      }
    } catch {
      // The stream tells of the lost connection, and asks again when it is back.
    }
    setTimeout(() => {
      this.asking = false;
      if (this.again) this.update();
    }, PAUSE_MS);
  }

  #miss(error) {
    this.parts.sentence.dataset.state = "missed";
    setText(this.parts.sentence, error);
    this.parts.known.hidden = true;
    this.parts.badges.replaceChildren();
  }

  #show({ wall_s, workload, explanation, history, changes }) {
    this.#remember(history, changes);
    const { parts } = this;
    parts.known.hidden = false;
    delete parts.sentence.dataset.state;
    replace(parts.sentence, sentenceParts(explanation.sentence));
    replace(parts.warnings, explanation.warnings, (warning) => element("li", {}, `Warning: ${warning}.`));
    parts.warnings.hidden = explanation.warnings.length === 0;
    setText(parts.pair, `Pair ${explanation.pair}.`);
    parts.pair.hidden = !explanation.pair;
    setText(parts.weights, `Weights ${explanation.weights}.`);
    parts.weights.hidden = !explanation.weights;
    setText(parts.gpus, gpusText(explanation.gpus));
    parts.gpus.dataset.state = explanation.gpus.diagnosis;
    setText(parts.chain, explanation.chain ? chainText(explanation.chain) : "");
    parts.chain.hidden = !explanation.chain;
    replace(parts.phases, phaseRows(explanation.start));
    replace(parts.starting, explanation.start?.starting ?? [], startingRow);
    for (const body of [parts.phases, parts.starting]) body.parentNode.hidden = body.children.length === 0;
    parts.start.hidden = parts.phases.parentNode.hidden && parts.starting.parentNode.hidden;
    setText(parts.next, explanation.start ? startText(explanation.start) : "");
    replace(parts.badges, badges(workload));
    replace(parts.figures, figures(workload, explanation));
    const [first, ...later] = explanation.steps;
    const idle = later.filter(({ reason }) => !reason);
    replace(parts.steps, [first, ...later.filter(({ reason }) => reason)], stepRow);
    replace(parts.unchanged, [idle.map(({ stage }) => stageName(stage)).join(", ")]);
    setText(parts.unchangedCount, `${idle.length} stages changed nothing`);
    replace(parts.asks, Object.entries(explanation.asks), askRow);
    replace(parts.forecast, explanation.forecast, forecastRow);
    parts.outlook.hidden = explanation.forecast.length === 0;
    replace(parts.inputs, inputGroups(explanation.inputs).flatMap(([title, inputs]) => [[title], ...inputs]), inputRow);
    this.latest = { wall_s, workload };
    if (!this.hours) this.#draw(this.history, this.changes);
  }

  #draw(history, changes) {
    const { parts, latest } = this;
    replace(parts.changes, changes.toReversed(), (change) => changeRow(change, latest.wall_s));
    setText(parts.nothing, this.hours ? "No change in this time." : "No change since the daemon started.");
    parts.nothing.hidden = changes.length > 0;
    this.chart.draw(chartOf(history, changes, latest.workload));
  }

  /** Show hours of the record, or again what the daemon remembers. */
  async #choose() {
    const { wanted, parts } = this;
    const hours = (this.hours = Number(parts.span.value));
    replace(parts.notes, []);
    setText(parts.recorded, "");
    if (!hours) {
      this.#draw(this.history, this.changes);
      return;
    }
    const { namespace, name, kind } = wanted;
    const query = new URLSearchParams({ hours, ...(kind && { kind }) });
    const path = `/api/v1/record/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
    const { ok, body } = await ask(`${path}?${query}`).catch(() => ({ body: { error: "The daemon does not answer." } }));
    if (this.wanted !== wanted || this.hours !== hours) return;
    if (!ok) {
      setText(parts.recorded, body.error);
      return;
    }
    this.#draw(body.history, body.changes);
    replace(parts.notes, notesOf(body), (note) => noteRow(note, this.latest.wall_s));
    setText(parts.recorded, body.problems.join("; "));
  }

  #remember(history, changes) {
    if (!this.history) this.history = history;
    else for (const [name, values] of Object.entries(history)) this.history[name].push(...values);
    for (const values of Object.values(this.history)) values.splice(0, values.length - MAX_TICKS);
    this.changes = [...this.changes, ...changes].slice(-MAX_CHANGES);
  }
}

function skeleton(root, namespace, name) {
  const parts = {
    badges: element("span", { class: "badges" }),
    sentence: element("p", { class: "sentence card" }, "Loading"),
    warnings: element("ul", { class: "warnings card", hidden: true }),
    pair: element("p", { class: "pair card", hidden: true }),
    weights: element("p", { class: "weights card", hidden: true }),
    gpus: element("p", { class: "gpus card" }),
    chain: element("p", { class: "chain card", hidden: true }),
    figures: element("dl", { class: "tiles small" }),
    chart: element("div", { class: "chart" }),
    span: element(
      "select",
      { "aria-label": "Span of the chart" },
      ...SPANS.map(([hours, text]) => element("option", { value: hours }, text)),
    ),
    recorded: element("span", { class: "muted", role: "status" }),
    notes: element("tbody"),
    steps: element("tbody"),
    unchanged: element("p", { class: "muted" }),
    unchangedCount: element("summary"),
    asks: element("tbody"),
    forecast: element("tbody"),
    inputs: element("tbody"),
    next: element("p", { class: "muted" }),
    phases: element("tbody"),
    starting: element("tbody"),
    changes: element("tbody"),
    nothing: element("p", { class: "muted" }),
  };
  parts.start = card(
    "Cold start",
    parts.next,
    table(["Phase", "Half within", "90% within"], parts.phases, "phases"),
    table(["Pod", "Phase", "For", "Usually"], parts.starting, "starting"),
  );
  parts.outlook = card("Planner", element("table", { class: "forecast" }, parts.forecast));
  const summary = element("summary", {}, "Inputs behind the decision");
  const space = element("span", { class: "namespace" }, `${namespace}/`);
  parts.known = element(
    "div",
    { hidden: true }, // until there is something to show
    parts.warnings,
    parts.pair,
    parts.weights,
    parts.gpus,
    parts.chain,
    parts.figures,
    element("section", { class: "card", "aria-label": "Recent history" }, parts.chart, element("p", { class: "span" }, parts.span, " ", parts.recorded)),
    element(
      "div",
      { class: "columns" },
      element(
        "div",
        {},
        card(
          "From recommendation to decision",
          table(["Stage", "Replicas", "Reason"], parts.steps, "steps"),
          element("details", {}, parts.unchangedCount, parts.unchanged),
        ),
        parts.outlook,
      ),
      element(
        "div",
        {},
        card("What each signal recommends", table(["Signal", "Replicas"], parts.asks, "asks")),
        parts.start,
        element("section", { class: "card" }, element("details", {}, summary, table(["Input", "Value"], parts.inputs, "inputs"))),
      ),
    ),
    card("Changes", table(["Time", "Replicas", "Outcome", "Reason"], parts.changes, "changes"), parts.nothing, element("table", { "aria-label": "Policies and owners" }, parts.notes)),
  );
  root.replaceChildren(
    element("nav", {}, element("a", { href: "#", class: "back" }, "← All workloads")),
    element("h1", { tabindex: -1 }, space, name, parts.badges),
    parts.sentence,
    parts.known,
  );
  return parts;
}

/** Set the decision large and its reasons below: "Keeps 6 replicas: the planner …". */
function sentenceParts(text) {
  const [, decision, because] = /^([^:]{1,80}): (.+)$/s.exec(text) ?? [null, text, ""];
  return [element("strong", {}, decision), element("span", {}, because && because[0].toUpperCase() + because.slice(1))];
}

const card = (title, ...parts) => element("section", { class: "card" }, element("h2", {}, title), ...parts);

const NUMBERS = new Set(["Replicas", "Value", "Half within", "90% within", "For", "Usually"]);

function table(titles, body, name = "") {
  const head = titles.map((title) => {
    const number = NUMBERS.has(title);
    return element("th", { scope: "col", class: number && "number" }, title);
  });
  return element("table", { class: name }, element("thead", {}, element("tr", {}, ...head)), body);
}

/** Replace children where what they are made from has changed. */
function replace(parent, values, make = (value) => value) {
  const made = values.map(make);
  if (parent.innerHTML !== made.map((node) => node.outerHTML).join("")) parent.replaceChildren(...made);
}

const FORECASTS = { day_ago: "by the load of a day ago", week_ago: "by the load of a week ago" };

/** Word what begins when for the next pre-warm window, or for the next rise that is forecast. */
function chainText({ cause, window, wall_s, replicas, places, links }) {
  const starts = links.map((each) => `${clock(each.wall_s, false)} ${each.link}`).join(", ");
  const nodes = places ? `; places are on request for ${places}` : "";
  const name = FORECASTS[cause] ?? (window ? `window ${window}` : "window");
  return `Next: ${starts}, for ${clock(wall_s, false)} ${name} (${replicas} replicas${nodes}).`;
}

const NODES = { held: "a node with the weights", absent: "a node without the weights", unknown: "a node that exists" };

/** Word how long the next start takes, and on which node. */
function startText({ takes_s, by_phase, starts, weights, new_node }) {
  const where = by_phase ? ` on ${new_node ? "a new node" : NODES[weights]}` : "";
  const learned = starts ? `, learned from ${starts} ${starts === 1 ? "start" : "starts"}` : "";
  return `The next replica ${starts ? "needs" : "is assumed to need"} ${duration(takes_s)}${where}${learned}.`;
}

function phaseRows(start) {
  const rows = Object.entries(start?.phases ?? {}).map(([name, times]) => [words(name), times]);
  const states = Object.entries(start?.by_weights ?? {});
  if (states.length > 1) rows.push(...states.map(([name, times]) => [`All, weights ${name}`, times]));
  const taken = rows.filter(([, { p90_s }]) => p90_s); // without those that take no time here, or an unknown one
  return taken.map(([title, { p50_s, p90_s }]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, title),
      element("td", { class: "number" }, duration(p50_s)),
      element("td", { class: "number" }, duration(p90_s)),
    ),
  );
}

function startingRow({ pod, phase, for_s, usual_s, late }) {
  return element(
    "tr",
    { "data-state": late ? "late" : "" },
    element("th", { scope: "row" }, pod),
    element("td", {}, late ? `${words(phase)} (late)` : words(phase)),
    element("td", { class: "number" }, duration(for_s)),
    element("td", { class: "number" }, duration(usual_s)),
  );
}

function gpusText({ sentence, change }) {
  return `GPUs: ${sentence}.${change ? ` Consider ${change}.` : ""}`;
}

function badges(workload) {
  const texts = [[workload.policy || "no policy", ""]];
  if (workload.kind !== "Deployment") texts.push([workload.kind, "quiet"]);
  if (workload.role) texts.push([workload.role, "quiet"]);
  if (workload.paused) texts.push(["paused", "warn"]);
  if (workload.other_owner) texts.push([`owned by ${workload.other_owner}`, "warn"]);
  if (!workload.trusted) texts.push(["inputs not trusted", "warn"]);
  return texts.map(([text, kind]) => element("span", { class: `badge ${kind}` }, text));
}

function figures(workload, { inputs, start }) {
  const missed = workload.ttft_s != null && workload.ttft_objective_s != null && workload.ttft_s > workload.ttft_objective_s;
  const gpus = workload.gpus_per_replica;
  const gpuHours = workload.loaded_idle_s == null || gpus == null ? null : (workload.loaded_idle_s * gpus) / 3600;
  return [
    ["Desired", count(workload.wanted)],
    ["Recommended by", recommenderName(workload.recommender)],
    ["Ready", count(workload.ready)],
    ...(workload.asleep ? [["Asleep", count(workload.asleep)]] : []),
    ["Starting", [count(workload.starting), ...pendingClasses(workload)].join(", ")],
    ["Running / waiting", `${count(workload.running)} / ${count(workload.waiting)}`],
    ...(workload.gateway_waiting == null ? [] : [["At the gateway", count(workload.gateway_waiting)]]),
    ["TTFT p95 / objective", `${duration(workload.ttft_s)} / ${duration(workload.ttft_objective_s)}`, missed && "missed"],
    ["A replica holds", `${count(inputs.capacity_concurrency)} requests`, "", `confidence ${share(inputs.capacity_confidence)}`],
    ["Budget used", share(inputs.planner_used_budgets), inputs.planner_used_budgets > 1 && "missed"],
    ...(start ? [] : [["Cold start", duration(inputs.cold_start_s)]]), // else it has a card of its own
    ["Flaps", count(workload.flaps), "", "changes undone within one cold start"],
    ["Cost an hour", dollars(workload.usd_per_hour, workload.price_note), "", workload.price_note],
    ["Loaded but idle", gpuHours == null ? UNKNOWN : `${gpuHours.toFixed(1)} GPU h`],
  ].map(([title, value, state, note]) =>
    element("div", { "data-state": state || "", title: note }, element("dt", {}, title), element("dd", {}, value)),
  );
}

function stepRow({ stage, replicas, reason }) {
  return element(
    "tr",
    { class: !reason && "unchanged" },
    element("th", { scope: "row" }, stageName(stage)),
    element("td", { class: "number" }, replicasText(replicas)),
    element("td", {}, reason),
  );
}

function askRow([signal, replicas]) {
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, signalName(signal)),
    element("td", { class: "number" }, replicasText(replicas)),
  );
}

function forecastRow({ name, text }) {
  return element("tr", {}, element("th", { scope: "row" }, words(name)), element("td", {}, text));
}

/** A row for an input, or the head of a group, which has no value. */
function inputRow([name, ...values]) {
  if (!values.length) return element("tr", {}, element("th", { scope: "rowgroup", colspan: 2 }, name));
  const [value] = values;
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, inputName(name)),
    element("td", { class: "number" }, byUnit(name, value)),
  );
}

function changeRow({ wall_s, before, after, outcome, reason, detail }, nowS) {
  const bad = outcome === "failed" || outcome === "conflict";
  return element(
    "tr",
    {},
    element("td", { class: "when" }, moment(wall_s, nowS)),
    element("td", { class: `number ${after > before ? "up" : "down"}` }, `${before} → ${after}`),
    element("td", { "data-state": bad ? "missed" : "" }, outcome),
    element("td", {}, detail ? `${reason} (${detail})` : reason),
  );
}

/** Who owned the count, and which policies were changed, the latest first. */
function notesOf({ owners, policies }) {
  const held = owners.map(({ wall_s, owner, replicas }) => ({
    wall_s,
    text: owner ? `${owner} holds the count, ${count(replicas)}` : "The count is the daemon's again",
  }));
  const loaded = policies.map(({ wall_s, policy, difference }) => ({ wall_s, text: `Policy ${policy} changed:\n${difference}` }));
  return [...held, ...loaded].sort((one, other) => other.wall_s - one.wall_s);
}

function noteRow({ wall_s, text }, nowS) {
  return element("tr", {}, element("td", { class: "when" }, moment(wall_s, nowS)), element("td", { class: "note" }, text));
}

/** Return what is drawn of a history; one from a record lacks some columns, and so has no lines for them. */
function chartOf(history, changes, workload) {
  const first = history.wall_s[0];
  const objective = workload.ttft_objective_s;
  const panels = [
    {
      title: "Replicas",
      height: 190,
      whole: true,
      format: count,
      series: [
        { label: "ready", name: "ready", values: history.ready, step: true, area: true },
        { label: "recommended", name: "demand", values: history.demand, step: true, clipped: true },
        { label: "load", name: "busy", values: history.busy, step: true },
        { label: "desired", name: "wanted", values: history.wanted, step: true },
      ],
    },
    {
      title: "Requests waiting",
      height: 110,
      whole: true,
      format: count,
      series: [{ label: "waiting", name: "waiting", values: history.waiting, area: true }],
    },
    {
      title: "Time to first token",
      height: 120,
      format: duration,
      series: [{ label: "TTFT p95", name: "ttft", values: history.ttft_s }],
      limit: objective == null ? null : { label: `objective ${duration(objective)}`, value: objective },
    },
  ];
  const known = panels.map((panel) => ({ ...panel, series: panel.series.filter(({ values }) => values) }));
  return {
    times: history.wall_s,
    panels: known.filter(({ series }) => series.length > 0),
    marks: changes
      .filter((change) => change.wall_s >= first)
      .map((change) => ({
        time: change.wall_s,
        kind: change.outcome === "failed" || change.outcome === "conflict" ? "failed" : change.after > change.before ? "up" : "down",
        text: `${change.before} → ${change.after}, ${change.outcome}: ${change.reason}`,
      })),
  };
}
