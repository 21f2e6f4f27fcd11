// Tables of what GPUs were used for since the daemon began, by namespace and by team. They are hidden before the first
// tick, and the second one where no label names a team.

import { Folded } from "./folded.js";
import { total } from "./format.js";
import { IDLE_CAUSES } from "./names.js";

const hours = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
const columns = (title, none = "") => [
  { title, text: ({ name }) => name || none, note: leftOut },
  { title: "GPU-hours", number: true, text: (row) => hours(all(row)) },
  { title: "Serving", number: true, text: ({ gpu_hours }) => hours(gpu_hours.serving) },
  { title: "Idle", number: true, text: ({ idle_gpu_hours }) => hours(idle_gpu_hours) },
  { title: "Loaded, not active", number: true, text: ({ gpu_hours }) => hours(gpu_hours.loaded_idle) },
  { title: "Idle, USD", number: true, text: ({ idle_cost }) => dollars(idle_cost), note: ({ idle_cost }) => unpriced(idle_cost) },
  { title: "Mostly kept by", text: mostly },
  { title: "Lacking", number: true, text: ({ lacking_gpu_hours }) => hours(lacking_gpu_hours) },
  { title: "Beyond ceilings", number: true, text: ({ beyond_gpu_hours }) => hours(beyond_gpu_hours) },
];

export const gpuUse = (box) =>
  new Folded(box, { path: "/api/v1/gpu-use", field: "uses", columns: columns("Namespace"), summary });

export const teamUse = (box) =>
  new Folded(box, {
    path: "/api/v1/gpu-use?by=team",
    field: "uses",
    columns: columns("Team", "no team"),
    summary: (rows) => `GPU use by team: ${teams(rows)}`,
    shown: (rows) => teams(rows) > 0,
  });

function summary(rows) {
  const idle = total(rows, ({ idle_gpu_hours }) => idle_gpu_hours);
  return `GPU use: ${hours(idle)} of ${hours(total(rows, all))} GPU-hours were idle since this process began`;
}

const teams = (rows) => rows.filter(({ name }) => name).length;

function all({ gpu_hours }) {
  return Object.entries(gpu_hours).reduce((sum, [state, value]) => (state === "ordered" ? sum : sum + value), 0);
}

function mostly({ idle_by_cause }) {
  const [cause, most] = Object.entries(idle_by_cause).reduce((a, b) => (b[1] > a[1] ? b : a));
  return most > 0 ? IDLE_CAUSES[cause] : "";
}

function dollars({ usd }) {
  return usd == null ? "–" : usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

function unpriced({ priced, parts }) {
  return priced < parts ? `without ${parts - priced} workloads whose price is not known` : "";
}

function leftOut({ left_out }) {
  return left_out.length ? `without ${left_out.map(({ name }) => name).join(", ")}: their GPUs are not known` : "";
}
