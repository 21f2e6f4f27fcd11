// A table below the workloads that is folded up, and loaded while it is open.

import { ask } from "./ask.js";
import { element, setText } from "./format.js";

const PERIOD_MS = 5000;

export class Folded {
  /**
   * path: of the API; its answer has `total` and the rows in `field`. columns: {title, text, note, number}, where text and
   * note are made of one row. summary: makes the line that is always visible of all rows. shown: tells by the rows whether
   * there is a table; default: if there are any.
   */
  constructor(box, { path, field, columns, summary, shown = (rows) => rows.length > 0 }) {
    Object.assign(this, { box, path, field, columns, summary, shown });
    this.body = box.querySelector("tbody");
    const heads = columns.map(({ title, number }) => element("th", { class: number && "number", scope: "col" }, title));
    box.querySelector("thead tr").append(...heads);
    box.addEventListener("toggle", () => this.load());
    setInterval(() => box.open && !document.hidden && this.load(), PERIOD_MS);
  }

  async load() {
    try {
      const { ok, body } = await ask(this.path);
      if (ok) this.#show(body[this.field]);
    } catch {
      // the page already says that the daemon does not answer
    }
  }

  #show(rows) {
    this.box.hidden = !this.shown(rows);
    setText(this.box.querySelector("summary"), this.summary(rows));
    this.body.replaceChildren(...rows.map((row) => element("tr", {}, ...this.columns.map((column) => cell(column, row)))));
  }
}

function cell({ text, note, number }, row) {
  return element("td", { class: number && "number", title: note?.(row) }, text(row));
}
