// The table of node groups: what accelerators there are, and who holds them.

import { Folded } from "./folded.js";
import { UNKNOWN, count, total } from "./format.js";

const ADDED = "nodes to come";

const COLUMNS = [
  { title: "Devices", text: devicesText, note: (group) => group.resource },
  { title: "Nodes", text: nodesText, note: (group) => group.node_pool },
  { title: "Allocatable", number: true, text: (group) => (group.nodes === ADDED ? addedText(group) : count(group.allocatable)) },
  { title: "Ours", number: true, text: (group) => count(group.ours) },
  { title: "Others", number: true, text: (group) => count(group.others) },
  { title: "Free", number: true, text: (group) => count(group.free) },
];

export const groups = (box) =>
  new Folded(box, { path: "/api/v1/node-groups", field: "node_groups", columns: COLUMNS, summary });

function summary(rows) {
  const present = rows.filter(({ nodes }) => nodes !== ADDED);
  const [free, devices] = [total(present, (group) => group.free), total(present, (group) => group.allocatable)];
  const silent = present.filter((group) => group.free == null).length;
  const unknown = silent ? `: unknown in ${count(silent)} of ${count(present.length)} groups` : "";
  return `Node groups: ${count(free)} of ${count(devices)} devices are free${unknown}`;
}

/** Name the product, and the slice of it where the resource is not a whole GPU. */
function devicesText({ product, resource }) {
  const device = resource.split("/")[1];
  return product ? [product, device !== "gpu" && device].filter(Boolean).join(" · ") : resource;
}

function nodesText({ nodes, zone, capacity_type, sharing, sharers }) {
  const shared = sharing && (sharers ? `${sharing}, ${sharers} pods per device` : sharing);
  return [nodes, zone, capacity_type, shared].filter(Boolean).join(" · ") || UNKNOWN;
}

function addedText({ can_add }) {
  return can_add == null ? "no limit" : `+${count(can_add)}`;
}
