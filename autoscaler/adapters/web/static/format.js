// Words and elements: how values read, and the one way text enters the page (as text, never as HTML).

import { PENDING, RECOMMENDERS, SIGNALS, STAGES } from "./names.js";

export const UNKNOWN = "–";

const INPUTS = {
  age_s: "Age of the oldest reading",
  queue_outlier_s: "Queue outliers for",
  stuck_s: "Stuck for",
  kv_usage: "KV cache used",
  ttft_s: "TTFT p95",
  itl_s: "ITL p95",
  gpu_loaded: "Replicas loaded",
  gpu_active: "Replicas with a busy GPU",
};

export const signalName = (signal) => SIGNALS[signal];
export const recommenderName = (recommender) => RECOMMENDERS[recommender];
export const stageName = (stage) => STAGES[stage]?.[0] ?? words(stage);

const INPUT_GROUPS = [
  ["Planner", /^planner_/],
  ["Capacity of a replica", /^capacity_/],
  ["Pods that leave", /^draining_/],
  ["Pods judged apart", /^(queue_outlier|stuck|saturated|gateway_stuck)/],
  ["Gateway", /^gateway_/],
  ["Requests", /^(running|waiting|batch_size|queue|ended|output|ttft|itl|pod_tokens|kv|idle_s)|_per_s$/],
  ["Replicas", /./],
];

/** Sort inputs into groups: [title, [[name, value]]], Replicas first. */
export const inputGroups = (inputs) =>
  [...Map.groupBy(Object.entries(inputs), ([name]) => INPUT_GROUPS.find(([, of]) => of.test(name))[0])].toSorted(
    ([a], [b]) => groupRank(b) - groupRank(a),
  );

const groupRank = (title) => INPUT_GROUPS.findIndex(([group]) => group === title);

/** Name an input; the unit is said with its value. */
export const inputName = (name) => INPUTS[name] ?? words(name.replace(/(_per)?_s$/, ""));

/** Say in a few words why a workload has its count. */
export function reason(row) {
  if (row.paused) return "Paused";
  if (row.other_owner) return `Owned by ${row.other_owner}`;
  if (!row.signal && row.wanted === 0) return "At zero: no request is known to wait";
  const signal = row.signal === "planner" && row.load != null ? `Load of ${count(row.load)}` : row.signal && signalName(row.signal);
  const short = (row.bound === "allocation" || row.bound === "bounds") && row.wanted < row.demand;
  const parts = [
    ...(short ? [boundText(row), signal] : [signal, boundText(row)]), // first what keeps the count below the demand
    ...pendingClasses(row),
    !row.trusted && row.bound !== "unknown" && "inputs not trusted",
  ];
  return words(parts.filter(Boolean).join(" · "));
}

/** Say what the last stage that changed the count did with it. */
function boundText({ bound, wanted, demand }) {
  if (bound === "idle" && wanted === 0) return "scale to zero";
  if (bound === "allocation" && wanted < demand) return `${count(wanted)} of ${count(demand)}, short of GPUs or nodes`;
  if (bound === "bounds" && demand != null) return wanted < demand ? `${count(demand)} wanted, at max` : "at min";
  return STAGES[bound]?.[1] ?? words(bound);
}

/** Count the replicas that are not ready, by class; those that start are left out. */
export const pendingClasses = (row) =>
  Object.entries(row.pending_by_class ?? {})
    .filter(([name]) => name !== "starting")
    .map(([name, replicas]) => `${count(replicas)} ${PENDING[name]}`);

export const words = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

export function count(value) {
  if (value == null) return UNKNOWN;
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 1 : 0 });
}

export const replicas = (value) => (value == null ? UNKNOWN : value.toLocaleString("en", { maximumFractionDigits: 2 }));

export function precise(value) {
  return value == null ? UNKNOWN : value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.00995) return `${precise(Number((seconds * 1000).toPrecision(2)))} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 299.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const short = { maximumFractionDigits: 1 };
  if (seconds < 5940) return `${(seconds / 60).toLocaleString("en", short)} min`;
  return `${(seconds / 3600).toLocaleString("en", short)} h`;
}

/** Write a share in percent, or as a multiple where percent are hard to read. */
export function share(fraction) {
  if (fraction == null) return UNKNOWN;
  return fraction < 10 ? `${Math.round(fraction * 100)}%` : `${count(fraction)} times`;
}

/** Write an amount of money. high: why it may be less, missing: why it may be more; both are only marked. */
export function dollars(usd, high, missing) {
  if (usd == null) return UNKNOWN;
  const digits = usd < 100 ? 2 : 0;
  const amount = usd.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${high ? "≤ " : ""}$${amount}${missing ? " + ?" : ""}`;
}

/** Add up what `of` makes of each row: null if one of them is unknown. */
export const total = (rows, of) =>
  rows.reduce((sum, row) => (sum == null || of(row) == null ? null : sum + of(row)), 0);

export const clock = (wallS, seconds = true) =>
  new Date(wallS * 1000).toLocaleTimeString("en-GB", {
    hour: "2-digit",
    minute: "2-digit",
    ...(seconds && { second: "2-digit" }),
  });

export const day = (wallS) => new Date(wallS * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

/** Say when something was, with its date where that was not the day of `nowS`. */
export const moment = (wallS, nowS) => (day(wallS) === day(nowS) ? clock(wallS) : `${day(wallS)}, ${clock(wallS, false)}`);

/** Format a value by the unit its name ends in. */
export function byUnit(name, value) {
  if (value == null) return UNKNOWN;
  if (name.endsWith("_per_s")) return `${precise(value)} /s`;
  if (name.endsWith("_s")) return duration(value);
  if (name.endsWith("_fraction")) return `${precise(value * 100)}%`;
  if (name.endsWith("_usage") || name.endsWith("confidence")) return share(value);
  return precise(value);
}

/** Make an element; children are elements or strings, and strings become text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Set text only where it differs, so that a selection or a reader is not disturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const hashOf = (row) =>
  `#${[row.namespace, row.name, row.kind].map(encodeURIComponent).join("/")}`;
