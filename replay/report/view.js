// What part of an axis is shown, and charts that have that axis: all that share one are zoomed together and show the same place.

const tip = document.getElementById("tip");
const LEFT = 112;
const RIGHT = 14;

/** The part of an axis that is shown. */
class View {
  constructor(full) {
    this.full = full;
    [this.from, this.to] = full;
    this.charts = [];
    this.watchers = [];
  }

  get isWhole() {
    return this.from === this.full[0] && this.to === this.full[1];
  }

  show(from, to) {
    const [low, high] = this.full;
    const span = Math.min(high - low, Math.max(to - from, (high - low) * 1e-5));
    this.from = Math.max(low, Math.min(from, high - span));
    this.to = Math.min(high, this.from + span);
    this.redraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  whole() {
    this.show(...this.full);
  }

  redraw() {
    for (const chart of this.charts) chart.redraw();
    for (const watcher of this.watchers) watcher(this);
  }

  point(at) {
    for (const chart of this.charts) chart.point(at);
  }
}

/** One drawing in a figure. `painter.height(chart)`, `painter.paint(chart)`, `painter.tell(chart, at, y)` say what is in it. */
class Chart {
  constructor(figure, view, painter) {
    this.figure = figure;
    this.painter = painter;
    this.svg = draw("svg", { class: "chart", role: "img", "aria-label": figure.querySelector("figcaption").textContent.trim() });
    figure.append(this.svg);
    this.watch();
    this.see(view);
  }

  see(view) {
    if (this.view) this.view.charts = this.view.charts.filter((chart) => chart !== this);
    this.view = view;
    view.charts.push(this);
  }

  get left() {
    return this.painter.left ?? (this.width < 560 ? 64 : LEFT);
  }

  x(at) {
    return this.left + ((at - this.view.from) / (this.view.to - this.view.from)) * this.plotWidth;
  }

  at(x) {
    return this.view.from + ((x - this.left) / this.plotWidth) * (this.view.to - this.view.from);
  }

  redraw() {
    if (this.figure.hidden) return;
    this.width = Math.max(280, this.figure.clientWidth);
    this.plotWidth = this.width - this.left - RIGHT;
    this.height = this.painter.height(this);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    this.painter.paint(this);
    this.cross = draw("line", { class: "cross", y1: 0, y2: this.height - 20, visibility: "hidden" });
    this.svg.append(this.cross);
  }

  add(name, attributes, ...children) {
    const element = draw(name, attributes, ...children);
    this.svg.append(element);
    return element;
  }

  point(at) {
    if (!this.cross) return;
    const inside = at !== null && at >= this.view.from && at <= this.view.to;
    this.cross.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) for (const side of ["x1", "x2"]) this.cross.setAttribute(side, this.x(at));
  }

  /** Horizontal axis at the bottom, with lines through the plot from `top` on. */
  xAxis(top, isTime) {
    const bottom = this.height - 20;
    const marks = ticks(this.view.from, this.view.to, this.plotWidth / 90, isTime);
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    for (const mark of marks) {
      const x = this.x(mark).toFixed(1);
      this.add("path", { class: "grid", d: `M${x} ${top}V${bottom + 4}` });
      const anchor = this.x(mark) > this.width - 24 ? "end" : "middle";
      this.add("text", { class: "faint", x: anchor === "end" ? this.width : x, y: bottom + 16, "text-anchor": anchor }, isTime ? timeText(mark, step) : numberText(mark));
    }
  }

  /** Vertical axis from `low` to `high`; returns the scale. */
  yAxis(top, low, high) {
    const bottom = this.height - 20;
    const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
    for (const mark of ticks(low, high, (bottom - top) / 32)) {
      this.add("path", { class: "grid", d: `M${this.left} ${y(mark).toFixed(1)}H${this.left + this.plotWidth}` });
      this.add("text", { class: "faint", x: this.left - 6, y: y(mark) + 4, "text-anchor": "end" }, numberText(mark));
    }
    return y;
  }

  // --- the pointer ---

  place(event) {
    const box = this.svg.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.width, ((event.clientY - box.top) / box.height) * this.height];
  }

  watch() {
    let start = null;
    let chosen = null;
    const clamp = (x) => Math.max(this.left, Math.min(this.left + this.plotWidth, x));
    const drop = () => {
      chosen?.remove();
      start = chosen = null;
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = clamp(this.place(event)[0]);
      if (event.isTrusted) this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const [x, y] = this.place(event);
      if (start !== null && Math.abs(x - start) > 3) {
        chosen ??= this.add("rect", { class: "chosen", y: 0, height: this.height - 20 });
        chosen.setAttribute("x", Math.min(start, clamp(x)));
        chosen.setAttribute("width", Math.abs(clamp(x) - start));
      }
      this.hover(event, x, y);
    });
    this.svg.addEventListener("pointerup", (event) => {
      const x = clamp(this.place(event)[0]);
      const [from, to] = [Math.min(start ?? x, x), Math.max(start ?? x, x)];
      const wide = chosen !== null && to - from > 3;
      drop();
      if (wide) this.view.show(this.at(from), this.at(to));
    });
    this.svg.addEventListener("pointercancel", drop);
    this.svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      this.view.point(null);
    });
    this.svg.addEventListener("dblclick", () => this.view.whole());
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.view.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(clamp(this.place(event)[0])));
    }, { passive: false });
  }

  hover(event, x, y) {
    const inside = x >= this.left && x <= this.left + this.plotWidth;
    const text = inside ? this.painter.tell(this, this.at(x), y) : "";
    this.view.point(inside ? this.at(x) : null);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const beyond = event.clientX + 18 + tip.offsetWidth > window.innerWidth;
    tip.style.left = `${Math.max(4, beyond ? event.clientX - tip.offsetWidth - 14 : event.clientX + 18)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 4))}px`;
  }
}

/** A line and a name under a chart, for what is drawn like that. */
function key(figure, name, attributes) {
  const entry = make("span", "key");
  entry.append(draw("svg", { viewBox: "0 0 22 10" }, draw("path", { d: "M1 5H21", fill: "none", ...attributes })), name);
  figure.querySelector("figcaption").append(entry);
}
