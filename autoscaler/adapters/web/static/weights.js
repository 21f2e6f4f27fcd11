// The table of weights: which nodes hold those of each model, and which should. It is hidden without a known source.

import { Folded } from "./folded.js";
import { UNKNOWN, count } from "./format.js";

const COLUMNS = [
  { title: "Weights", text: ({ source }) => source, note: ({ workloads }) => workloads.join(", ") },
  { title: "GB", number: true, text: ({ size_bytes }) => (size_bytes == null ? UNKNOWN : count(Math.round(size_bytes / 1e9))) },
  { title: "Nodes", number: true, text: ({ nodes_held }) => count(nodes_held), note: groupsNote },
  { title: "Planned", number: true, text: ({ nodes_wished }) => count(nodes_wished) },
  { title: "Coming", number: true, text: ({ nodes_waiting, nodes_fetching }) => count(nodes_waiting + nodes_fetching) },
  { title: "Failed", number: true, text: ({ nodes_failed }) => count(nodes_failed), note: failuresNote },
  { title: "Free places", number: true, text: ({ places_held, places_free }) => `${count(places_held)} of ${count(places_free)}` },
];

export const weights = (box) => new Folded(box, { path: "/api/v1/weights", field: "weights", columns: COLUMNS, summary });

function summary(rows) {
  const failed = rows.filter(({ nodes_failed }) => nodes_failed > 0).length;
  const models = rows.length === 1 ? "model" : "models";
  return `Weights: ${count(rows.length)} ${models}; ${count(failed)} cannot be fetched somewhere`;
}

function groupsNote({ groups }) {
  return groups.map(({ product, nodes, zone, nodes_held, nodes_total }) => {
    const name = [product, nodes, zone].filter(Boolean).join(" · ");
    return `${name}: ${count(nodes_held)} of ${count(nodes_total)}`;
  }).join("\n");
}

function failuresNote({ failures }) {
  return failures.map(({ node, cause, text }) => `${node}: ${cause} ${text}`).join("\n");
}
