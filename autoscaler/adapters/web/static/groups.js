// The table of node groups: what accelerators there are, and who holds them. It is loaded while it is open.

import { ask } from "./ask.js";
import { UNKNOWN, count, element, setText } from "./format.js";

const PERIOD_MS = 5000;
const ADDED = "nodes to come";

const COLUMNS = [
  { title: "Devices", text: devicesText, note: (group) => group.resource },
  { title: "Nodes", text: nodesText, note: (group) => group.node_pool },
  { title: "Allocatable", number: true, text: (group) => (group.nodes === ADDED ? addedText(group) : count(group.allocatable)) },
  { title: "Ours", number: true, text: (group) => count(group.ours) },
  { title: "Others", number: true, text: (group) => count(group.others) },
  { title: "Free", number: true, text: (group) => count(group.free) },
];

export class Groups {
  constructor(box) {
    this.box = box;
    this.body = box.querySelector("tbody");
    this.summary = box.querySelector("summary");
    const heads = COLUMNS.map(({ title, number }) => element("th", { class: number && "number", scope: "col" }, title));
    box.querySelector("thead tr").append(...heads);
    box.addEventListener("toggle", () => this.load());
    setInterval(() => box.open && !document.hidden && this.load(), PERIOD_MS);
  }

  async load() {
    try {
      const { ok, body } = await ask("/api/v1/node-groups");
      if (ok) this.#show(body);
    } catch {
      // the page already says that the daemon does not answer
    }
  }

  #show({ total, node_groups }) {
    this.box.hidden = total === 0;
    const sum = (field) => node_groups.reduce((all, group) => all + (group[field] ?? 0), 0);
    setText(this.summary, `Node groups: ${count(sum("free"))} of ${count(sum("allocatable"))} devices are free`);
    this.body.replaceChildren(...node_groups.map((group) => element("tr", {}, ...COLUMNS.map((column) => cell(column, group)))));
  }
}

function cell({ text, note, number }, group) {
  return element("td", { class: number && "number", title: note?.(group) }, text(group));
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
