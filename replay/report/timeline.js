// Lanes of devices and ready samples over time.

/** A run's data as it was put into the page, with times in seconds. */
function unpack(run) {
  const seconds = (differences) => added(differences, run.tick);
  return {
    ...run,
    end: run.end * run.tick,
    lanes: run.lanes.map((lane) => ({ ...lane, at: seconds(lane.at) })),
    ready: { ...run.ready, at: seconds(run.ready.at) },
    inFlight: { ...run.inFlight, at: seconds(run.inFlight.at) },
    giveBackAt: { ...run.giveBackAt, at: seconds(run.giveBackAt.at) },
    policies: { ...run.policies, at: seconds(run.policies.at) },
    versions: { ...run.versions, at: seconds(run.versions.at) },
    swings: run.swings.map((swing) => ({ ...swing, from: swing.from * run.tick, to: swing.to * run.tick })),
    notes: run.notes.map(([at, isTrouble, text]) => ({ at: at * run.tick, isTrouble, text })),
    steps: { ...run.steps, at: seconds(run.steps.at) },
    evaluations: { ...run.evaluations, at: seconds(run.evaluations.at) },
  };
}

/** Share of each class of a lane between two moments: [[class index, seconds], …] in the order of the classes. */
function sharesOf(lane, end, from, to) {
  const sums = new Map();
  for (let index = Math.max(0, lastUpTo(lane.at, from)); index < lane.at.length && lane.at[index] < to; index += 1) {
    const stop = index + 1 < lane.at.length ? lane.at[index + 1] : end;
    const seconds = Math.min(stop, to) - Math.max(lane.at[index], from);
    const doing = lane.does.charCodeAt(index) - 97;
    if (seconds > 0 && doing < data.classes.length) sums.set(doing, (sums.get(doing) ?? 0) + seconds);
  }
  return [...sums].sort((one, other) => one[0] - other[0]);
}

class Lanes {
  constructor(run, runs) {
    this.run = run;
    this.hasSwings = runs.some((each) => each.swings.length > 0);
    this.hasPolicies = runs.some((each) => each.policies.at.length > 1);
    this.hasNotes = runs.some((each) => each.notes.length > 0);
    this.rowHeight = run.lanes.length > 48 ? 9 : run.lanes.length > 16 ? 16 : 28;
  }

  height() {
    return this.top + this.run.lanes.length * (this.rowHeight + 5) + 18 + 20;
  }

  get top() {
    return (this.hasNotes ? 16 : 4) + (this.hasPolicies ? 24 : 0) + (this.hasSwings ? 24 : 0);
  }

  paint(chart) {
    chart.xAxis(0, true);
    this.paintNotes(chart);
    if (this.hasPolicies) this.paintPolicies(chart);
    if (this.hasSwings) this.paintSwings(chart);
    this.run.lanes.forEach((lane, index) => this.paintLane(chart, lane, this.top + index * (this.rowHeight + 5)));
    this.paintVersions(chart);
  }

  label(chart, y, name, detail) {
    const text = chart.add("text", { x: chart.left - 8, y, "text-anchor": "end" }, name);
    if (detail && this.rowHeight >= 24) {
      text.setAttribute("y", y - 6);
      chart.add("text", { class: "faint", x: chart.left - 8, y: y + 7, "text-anchor": "end" }, detail);
    }
  }

  /** Where several things happened within a pixel, its column is divided among them. */
  paintLane(chart, lane, y) {
    const { run, rowHeight: height } = this;
    const fits = (text) => (text.length > chart.left / 7 ? `${text.slice(0, chart.left / 7 - 1)}…` : text);
    const isDevice = lane.name !== lane.holders[0];
    this.label(chart, y + height / 2 + 4, fits(isDevice ? `device ${lane.name}` : lane.name), isDevice ? fits(lane.holders.join(", ")) : "");
    chart.add("rect", { class: "plot", x: chart.left, y, width: chart.plotWidth, height });
    const paths = new Map();
    const put = (doing, x, width, from, to) => {
      if (doing >= data.classes.length || width <= 0) return;
      const path = `M${x} ${(y + height * (1 - to)).toFixed(1)}h${width}V${(y + height * (1 - from)).toFixed(1)}h${-width}z`;
      paths.set(doing, (paths.get(doing) ?? "") + path);
    };
    const last = Math.min(chart.plotWidth, Math.ceil(chart.x(run.end) - chart.left));
    for (let column = 0; column < last; ) {
      const [start, stop] = [chart.at(chart.left + column), chart.at(chart.left + column + 1)];
      const index = lastUpTo(lane.at, start);
      const ends = index + 1 < lane.at.length ? lane.at[index + 1] : run.end;
      if (index >= 0 && (ends >= stop || ends === run.end)) {
        const next = Math.max(column + 1, Math.min(last, Math.floor(chart.x(ends) - chart.left + 1e-6)));
        put(lane.does.charCodeAt(index) - 97, chart.left + column, next - column, 0, 1);
        column = next;
        continue;
      }
      let filled = 0;
      for (const [doing, seconds] of sharesOf(lane, run.end, start, stop)) {
        put(doing, chart.left + column, 1, filled, filled + seconds / (stop - start));
        filled += seconds / (stop - start);
      }
      column += 1;
    }
    for (const [doing, path] of paths) chart.add("path", { class: `cell f-${data.classes[doing]}`, d: path });
  }

  paintPolicies(chart) {
    const y = (this.hasNotes ? 16 : 4) + 2;
    const { at, is } = this.run.policies;
    this.label(chart, y + 12, "decides", "");
    is.forEach((name, index) => {
      const [from, to] = [at[index], index + 1 < at.length ? at[index + 1] : this.run.end];
      const [start, stop] = [Math.max(chart.left, chart.x(from)), Math.min(chart.left + chart.plotWidth, chart.x(to))];
      if (stop <= start) return;
      const [width, letters] = [Math.max(0.5, stop - start - 1), Math.floor((stop - start) / 7)];
      chart.add("rect", { class: "policy", x: start, y, width, height: 16, style: `fill: var(--faint); opacity: ${index % 2 ? 0.3 : 0.15}` });
      if (letters > 2) chart.add("text", { class: "faint", x: (start + stop) / 2, y: y + 12, "text-anchor": "middle" }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
    });
  }

  tellPolicy(at) {
    const index = lastUpTo(this.run.policies.at, at);
    return this.hasPolicies && index >= 0 ? `policy ${this.run.policies.is[index]} decides` : "";
  }

  paintSwings(chart) {
    const y = this.top - 22;
    this.label(chart, y + 12, "lent", "");
    let [swinging, lent] = ["", ""];
    const bar = (from, to, least) => {
      const [start, stop] = [Math.max(chart.left, chart.x(from)), Math.min(chart.left + chart.plotWidth, chart.x(to))];
      return stop < chart.left || start > chart.left + chart.plotWidth ? "" : `M${start.toFixed(1)} ${y}h${Math.max(least, stop - start).toFixed(1)}v16H${start.toFixed(1)}z`;
    };
    this.lends = [];
    this.run.swings.forEach((swing, index) => {
      swinging += bar(swing.from, swing.to, 1.5);
      if (swing.target !== "rollout" || swing.outcome !== "done") return;
      const back = this.run.swings.slice(index + 1).find((other) => other.target === "train" && other.outcome === "done");
      this.lends.push({ swing, back, from: swing.to, to: back ? back.from : this.run.end });
      lent += bar(swing.to, back ? back.from : this.run.end, 0);
    });
    chart.add("path", { class: "f-lent", d: lent });
    chart.add("path", { class: "f-swinging", d: swinging });
    for (const { swing, from, to } of this.lends) {
      const [start, stop] = [Math.max(chart.left, chart.x(from)), Math.min(chart.left + chart.plotWidth, chart.x(to))];
      if (stop - start > 46) chart.add("text", { class: "faint", x: (start + stop) / 2, y: y + 12, "text-anchor": "middle" }, `lent ${swing.swing}`);
      else if (stop - start > 14) chart.add("text", { class: "faint", x: (start + stop) / 2, y: y + 12, "text-anchor": "middle" }, swing.swing);
    }
  }

  paintNotes(chart) {
    for (const note of this.run.notes) {
      if (note.at < chart.view.from || note.at > chart.view.to) continue;
      const x = chart.x(note.at).toFixed(1);
      const shape = note.isTrouble ? `M${x} 1l5 10h-10z` : `M${x} 2l4 4l-4 4l-4 -4z`;
      chart.add("path", { d: shape, style: `fill: var(${note.isTrouble ? "--lost" : "--faint"})` });
    }
  }

  paintVersions(chart) {
    const y = this.top + this.run.lanes.length * (this.rowHeight + 5);
    chart.add("text", { class: "faint", x: chart.left - 8, y: y + 11, "text-anchor": "end" }, "weights");
    let free = -Infinity;
    let path = "";
    this.run.versions.at.forEach((at, index) => {
      if (at < chart.view.from || at > chart.view.to) return;
      const x = chart.x(at);
      path += `M${x.toFixed(1)} ${y}v7`;
      if (x > free && x < chart.width - 26) {
        chart.add("text", { class: "faint", x: x + 3, y: y + 12 }, this.run.versions.is[index]);
        free = x + 24;
      }
    });
    chart.add("path", { d: path, style: "stroke: var(--faint); fill: none" });
  }

  tell(chart, at, y) {
    if (at > this.run.end) return "";
    const pixel = (chart.view.to - chart.view.from) / chart.plotWidth;
    const near = this.run.notes.filter((note) => Math.abs(note.at - at) < 5 * pixel).slice(0, 6).map((note) => note.text);
    const where = `at ${timeText(at, pixel)}`;
    if (y < this.top) return [where, this.tellPolicy(at), ...near, this.tellSwing(at, pixel)].filter(Boolean).join("\n");
    const lane = this.run.lanes[Math.floor((y - this.top) / (this.rowHeight + 5))];
    if (!lane) {
      const index = lastUpTo(this.run.versions.at, at);
      return index < 0 ? where : `${where}\nweights ${this.run.versions.is[index]}, published at ${timeText(this.run.versions.at[index], pixel)}`;
    }
    const shares = sharesOf(lane, this.run.end, at - pixel / 2, at + pixel / 2);
    const names = shares.length > 1 ? shares.map(([doing, seconds]) => `${data.classes[doing]} ${Math.round((100 * seconds) / pixel)} %`) : [this.tellInterval(lane, at)];
    return [`${lane.name === lane.holders[0] ? "" : "device "}${lane.name}, ${where}`, ...names].join("\n");
  }

  tellInterval(lane, at) {
    const index = lastUpTo(lane.at, at);
    const doing = index < 0 ? undefined : data.classes[lane.does.charCodeAt(index) - 97];
    if (!doing) return "held by nobody";
    return `${doing} for ${spanText((index + 1 < lane.at.length ? lane.at[index + 1] : this.run.end) - lane.at[index])}`;
  }

  tellSwing(at, pixel) {
    const words = (swing) => {
      const phases = Object.entries(swing.phases).map(([name, seconds]) => `${name} ${spanText(seconds)}`);
      return `swing ${swing.swing} to ${swing.target} (${swing.reason}), ${swing.outcome || "not ended"}: ${swing.seconds === null ? "" : spanText(swing.seconds)}\n${phases.join(", ")}`;
    };
    const swing = this.run.swings.find((each) => at >= each.from - 2 * pixel && at <= each.to + 2 * pixel);
    if (swing) return words(swing);
    const lend = (this.lends ?? []).find((each) => at >= each.from && at <= each.to);
    if (!lend) return "";
    const gain = lend.swing.gain === null ? "" : `, for which the others would have needed ${spanText(lend.swing.gain)}`;
    const cost = lend.swing.cost === null ? "" : `\nthe swings there and back cost ${spanText(lend.swing.cost)}`;
    return `lent for ${spanText(lend.to - lend.from)}: ${numberText(lend.swing.tokens)} tokens${gain}${cost}`;
  }
}

/** A quantity that keeps its value until it changes, as a path. */
function stairs(chart, series, end, y) {
  let path = "";
  const first = Math.max(0, lastUpTo(series.at, chart.view.from));
  for (let index = first; index < series.at.length && series.at[index] <= chart.view.to; index += 1) {
    const value = series.is[index];
    const x = Math.max(chart.left, chart.x(series.at[index])).toFixed(1);
    const stop = Math.min(chart.view.to, index + 1 < series.at.length ? series.at[index + 1] : end);
    if (value === null) continue;
    path += `${path && series.is[index - 1] !== null ? "L" : "M"}${x} ${y(value).toFixed(1)}H${chart.x(stop).toFixed(1)}`;
  }
  return path;
}

class ReadySamples {
  constructor(run, highest) {
    this.run = run;
    this.highest = highest;
  }

  height() {
    return 190;
  }

  paint(chart) {
    const { run } = this;
    chart.add("rect", { class: "plot", x: chart.left, y: 6, width: chart.plotWidth, height: this.height() - 26 });
    chart.xAxis(6, true);
    const y = chart.yAxis(6, 0, this.highest);
    const ready = stairs(chart, run.ready, run.end, y);
    const line = (d, style) => chart.add("path", { d, style: `fill: none; ${style}` });
    const stop = Math.min(chart.view.to, run.end);
    if (ready && stop > chart.view.from) {
      const start = Number(ready.slice(1, ready.indexOf(" ")));
      chart.add("path", { d: `${ready}V${y(0)}H${start}z`, style: "fill: var(--training); opacity: .18" });
    }
    line(stairs(chart, run.inFlight, run.end, y), "stroke: var(--generating); stroke-width: 1; opacity: .75");
    line(ready, "stroke: var(--training); stroke-width: 1.5");
    if (run.need && stop > chart.view.from) line(`M${chart.left} ${y(run.need)}H${chart.x(stop)}`, "stroke: var(--waiting); stroke-width: 1.5; stroke-dasharray: 6 4");
    line(stairs(chart, run.giveBackAt, run.end, y), "stroke: var(--swinging); stroke-width: 2.5");
  }

  tell(chart, at) {
    const { run } = this;
    if (at > run.end) return "";
    const value = (series) => series.is[lastUpTo(series.at, at)] ?? null;
    const back = value(run.giveBackAt);
    return [
      `at ${timeText(at, (chart.view.to - chart.view.from) / chart.plotWidth)}`,
      `${value(run.ready) ?? 0} ready, a step needs ${run.need}`,
      `${value(run.inFlight) ?? 0} in flight`,
      back === null ? "" : `the devices go back at ${back}`,
    ].filter(Boolean).join("\n");
  }
}
