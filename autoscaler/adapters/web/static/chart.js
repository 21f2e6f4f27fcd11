// A time chart in SVG: panels one below the other over one time axis, with marks that carry a sentence.
// Colours and strokes are classes of style.css, so light and dark need no redraw.

import { clock, day, element } from "./format.js";

const LEFT = 48;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 8;
const AXIS = 20; // room for times under the last panel
const NEAR_PX = 7; // a mark this close to the pointer speaks
const LABEL_PX = 90; // between two times on the axis
const TIME_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/**
 * Draws { times, panels, marks } into `root`.
 *   times   Unix seconds, ascending, [T]
 *   panels  [{ title, height, whole, format, series: [{ label, name, values: [T], step, area }], limit }]
 *           null values are gaps; `limit` is { label, value }, a level to compare with; `whole`: count in whole numbers;
 *           a series that is `clipped` sets the scale to at most twice what the others reach, and is cut off above it
 *   marks   [{ time, kind, text }]
 */
export class Chart {
  constructor(root) {
    this.root = root;
    this.panels = [];
    this.hover = null; // index into times
    this.focused = -1; // index into marks
    this.tip = element("div", { class: "tip", role: "status", hidden: true });
    this.plots = element("div", { class: "plots", tabindex: 0, role: "group", "aria-label": "Chart; arrow keys read its values" });
    root.append(this.plots, this.tip);
    this.plots.addEventListener("pointermove", (event) => this.#point(event));
    this.plots.addEventListener("pointerleave", () => this.#leave());
    this.plots.addEventListener("keydown", (event) => this.#key(event));
    this.plots.addEventListener("blur", () => this.#leave());
    new ResizeObserver(() => this.data && this.draw(this.data)).observe(root);
  }

  draw(data) {
    this.data = data;
    const width = this.root.clientWidth;
    if (!width) return;
    const { times, marks } = data;
    const start = times[0] ?? 0;
    const span = Math.max((times.at(-1) ?? 1) - start, 1);
    this.x = (time) => LEFT + ((time - start) / span) * (width - LEFT - RIGHT);
    const refocus = this.plots.contains(document.activeElement);
    this.panels = data.panels.map((panel, index) => {
      const axis = index === data.panels.length - 1 ? AXIS : 0;
      const drawn = this.#panel(panel, width, panel.height, axis);
      if (index === 0) this.#marks(drawn.svg, marks);
      return drawn;
    });
    this.plots.replaceChildren(...this.panels.flatMap(({ legend, svg }) => [legend, svg]));
    if (refocus) this.plots.querySelectorAll(".mark")[this.focused]?.focus({ preventScroll: true });
    else if (this.hover != null) this.#show(Math.min(this.hover, times.length - 1));
  }

  #panel(panel, width, height, axis) {
    const { times, marks } = this.data;
    const most = topOf(panel);
    const ticks = niceTicks(panel.whole ? most + 0.4 : most * 1.05, panel.whole); // room for the marks above the lines
    const y = (value) => height - BOTTOM - Math.min(value / ticks.at(-1), 1) * (height - TOP - BOTTOM);
    const frame = { class: "panel", width, height: height + axis, role: "group", "aria-label": panel.title };
    const svg = shape("svg", frame);
    for (const tick of ticks) {
      svg.append(
        shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
        shape("text", { class: "label", x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, panel.format(tick)),
      );
    }
    for (const time of axis ? timeTicks(times, width) : []) {
      const label = { class: "label", x: this.x(time), y: height + 12, "text-anchor": "middle" };
      const span = times.at(-1) - times[0];
      svg.append(shape("text", label, span > 2 * 86400 ? day(time) : clock(time, span < 600)));
    }
    for (const { time, kind } of marks) {
      svg.append(
        shape("line", { class: `moment ${kind}`, x1: this.x(time), x2: this.x(time), y1: TOP, y2: height - BOTTOM }),
      );
    }
    for (const series of panel.series) {
      if (series.area) svg.append(shape("path", { class: `area ${series.name}`, d: this.#path(series, y, true) }));
      svg.append(shape("path", { class: `line ${series.name}`, d: this.#path(series, y, false) }));
    }
    if (panel.limit) {
      const level = y(panel.limit.value);
      svg.append(shape("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
    }
    const cross = shape("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    const dots = panel.series.map(({ name }) => shape("circle", { class: `dot ${name}`, r: 3, visibility: "hidden" }));
    svg.append(cross, ...dots);
    return { panel, svg, y, cross, dots, legend: legendOf(panel) };
  }

  /** Outline a series; it breaks where nothing is known. */
  #path({ values, step }, y, closed) {
    const { times } = this.data;
    const base = y(0).toFixed(1);
    let path = "";
    let begun = null; // x of the first point since the last gap
    let last = null;
    const end = () => {
      if (closed && begun != null) path += `V${base}H${begun}Z`;
      begun = null;
    };
    values.forEach((value, at) => {
      if (value == null) {
        end();
        return;
      }
      const [px, py] = [this.x(times[at]).toFixed(1), y(value).toFixed(1)];
      if (begun == null) {
        begun = px;
        path += closed ? `M${px} ${base}V${py}` : `M${px} ${py}`;
        if (!closed) path += "h.1"; // a lone point is seen too
      } else if (step) {
        path += py === last ? `H${px}` : `H${px}V${py}`;
      } else {
        path += `L${px} ${py}`;
      }
      last = py;
    });
    end();
    return path;
  }

  #marks(svg, marks) {
    this.focused = Math.min(this.focused, marks.length - 1);
    const reached = this.focused < 0 ? marks.length - 1 : this.focused; // the one the tab key comes to
    marks.forEach(({ time, kind, text }, index) => {
      const up = kind === "up";
      const x = this.x(time);
      const points = up ? `${x},2 ${x - 5},11 ${x + 5},11` : `${x},11 ${x - 5},2 ${x + 5},2`;
      const attributes = { class: `mark ${kind}`, role: "img", "aria-label": text, tabindex: index === reached ? 0 : -1 };
      const mark = shape("g", attributes, shape("polygon", { points }));
      mark.addEventListener("focus", () => {
        this.focused = index;
        this.#tell(x, [element("p", { class: "when" }, clock(time)), element("p", {}, text)]);
      });
      mark.addEventListener("blur", () => this.#leave());
      svg.append(mark);
    });
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const { times } = this.data ?? {};
    if (!step || !times?.length) return;
    event.preventDefault();
    const within = (index, length) => Math.max(0, Math.min(length - 1, index));
    const marks = this.plots.querySelectorAll(".mark");
    if (event.target.closest(".mark")) marks[within(this.focused + step, marks.length)].focus();
    else this.#show(within((this.hover ?? times.length) + step, times.length));
  }

  #point(event) {
    const { times } = this.data ?? {};
    if (!times?.length) return;
    const at = event.clientX - this.plots.getBoundingClientRect().left;
    let nearest = 0;
    times.forEach((time, index) => {
      if (Math.abs(this.x(time) - at) < Math.abs(this.x(times[nearest]) - at)) nearest = index;
    });
    this.#show(nearest);
  }

  /** Show the values of one moment, and the sentences of the marks at it. */
  #show(index) {
    const { times, marks } = this.data;
    this.hover = index;
    const x = this.x(times[index]);
    const lines = [element("p", { class: "when" }, clock(times[index]))];
    for (const { panel, y, cross, dots } of this.panels) {
      cross.setAttribute("x1", x);
      cross.setAttribute("x2", x);
      cross.setAttribute("visibility", "visible");
      panel.series.forEach((series, at) => {
        const value = series.values[index];
        dots[at].setAttribute("visibility", value == null ? "hidden" : "visible");
        if (value != null) {
          dots[at].setAttribute("cx", x);
          dots[at].setAttribute("cy", y(value));
        }
        lines.push(
          element("p", { class: "value" }, swatch(series.name), `${series.label} `, element("b", {}, panel.format(value))),
        );
      });
    }
    for (const { time, text } of marks) {
      if (Math.abs(this.x(time) - x) <= NEAR_PX) lines.push(element("p", { class: "said" }, text));
    }
    this.#tell(x, lines);
  }

  #tell(x, lines) {
    this.tip.replaceChildren(...lines);
    this.tip.hidden = false;
    const width = this.root.clientWidth;
    const left = x + 14 + this.tip.offsetWidth > width ? x - 14 - this.tip.offsetWidth : x + 14;
    this.tip.style.left = `${Math.max(0, Math.min(left, width - this.tip.offsetWidth))}px`;
  }

  #leave() {
    this.hover = null;
    this.tip.hidden = true;
    for (const { cross, dots } of this.panels) {
      for (const node of [cross, ...dots]) node.setAttribute("visibility", "hidden");
    }
  }
}

/** Return the largest value that the scale of a panel must show. */
function topOf({ series, limit }) {
  const largest = (some) => Math.max(0, ...some.flatMap(({ values }) => values.filter((value) => value != null)));
  const clipped = largest(series.filter((each) => each.clipped));
  const others = Math.max(largest(series.filter((each) => !each.clipped)), limit?.value ?? 0);
  return Math.max(others, Math.min(clipped, 2 * others));
}

function legendOf(panel) {
  const legend = element("p", { class: "legend" }, element("strong", {}, panel.title));
  for (const { name, label } of panel.series) legend.append(element("span", {}, swatch(name), label));
  if (panel.limit) legend.append(element("span", {}, swatch("limit"), panel.limit.label));
  return legend;
}

const swatch = (name) => element("i", { class: `swatch ${name}`, "aria-hidden": "true" });

/** Three to five levels from 0 up to at least `top`, in steps of 1, 2 or 5. */
function niceTicks(top, whole) {
  const raw = Math.max(top, whole ? 2 : 1e-3) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  if (whole) step = Math.max(Math.round(step), 1);
  const ticks = [0];
  while (ticks.at(-1) < top * 0.999 || ticks.length < 3) ticks.push(ticks.length * step);
  return ticks;
}

/** Round times of the day that leave room for their labels. */
function timeTicks(times, width) {
  if (times.length < 2) return [];
  const [first, last] = [times[0], times.at(-1)];
  const least = ((last - first) / Math.max(width - LEFT - RIGHT, 1)) * LABEL_PX;
  const step = TIME_STEPS_S.find((candidate) => candidate >= least) ?? TIME_STEPS_S.at(-1);
  const offset = new Date(first * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((first - offset) / step) * step + offset; at <= last && ticks.length < 100; at += step) {
    ticks.push(at);
  }
  return ticks;
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
