// What each step gave, over steps or over time, all runs in one chart.

const DASHES = ["", "7 3", "2 3", "10 3 2 3", "4 4", "1 4"];
const axis = { isTime: false, smoothing: 5 };

/** Mean of the newest `window` values that are there, at each of them. */
function smooth(values, window) {
  if (window < 2) return values;
  const kept = [];
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    kept.push(value);
    sum += value;
    if (kept.length > window) sum -= kept.shift();
    return sum / kept.length;
  });
}

/** Curves of one name. `of(run)`: {x: {step, at}, mean, min?, max?} or null where a run has none. */
class Curve {
  constructor(runs, of, isSmoothed = true) {
    this.runs = runs;
    this.of = of;
    this.isSmoothed = isSmoothed;
    this.left = 56;
  }

  height() {
    return 210;
  }

  lines() {
    return this.runs.map((run, index) => ({ index, ...this.of(run) })).filter((line) => line.mean && line.mean.some((value) => value !== null));
  }

  paint(chart) {
    chart.add("rect", { class: "plot", x: chart.left, y: 6, width: chart.plotWidth, height: this.height() - 26 });
    const lines = this.lines();
    if (!lines.length) {
      chart.add("text", { class: "faint", x: chart.left + chart.plotWidth / 2, y: 95, "text-anchor": "middle" }, "not recorded");
      return;
    }
    chart.xAxis(6, axis.isTime);
    const y = chart.yAxis(6, ...this.range(chart, lines));
    const clip = `clip-${(Curve.count = (Curve.count ?? 0) + 1)}`;
    chart.add("clipPath", { id: clip }, draw("rect", { x: chart.left, y: 2, width: chart.plotWidth + 4, height: this.height() - 18 }));
    const group = chart.add("g", { "clip-path": `url(#${clip})` });
    for (const line of lines) {
      const x = this.xs(line);
      const add = (d, style) => group.append(draw("path", { d, style }));
      const color = `var(--run-${line.index})`;
      if (line.max) add(this.band(chart, x, line, y), `fill: ${color}; opacity: .16`);
      const window = this.window(line);
      if (window > 1) add(this.path(chart, x, line.mean, y), `fill: none; stroke: ${color}; opacity: .28`);
      add(this.path(chart, x, smooth(line.mean, window), y), `fill: none; stroke: ${color}; stroke-width: 2; stroke-dasharray: ${DASHES[line.index]}`);
      if (line.mean.length < 12) line.mean.forEach((value, index) => value !== null && group.append(draw("circle", { cx: chart.x(x[index]), cy: y(value), r: 3, style: `fill: ${color}` })));
    }
  }

  window(line) {
    return this.isSmoothed ? Math.round((line.mean.length * axis.smoothing) / 100) : 1;
  }

  xs(line) {
    return axis.isTime ? line.x.at : line.x.step;
  }

  /** Of the part that is shown; what is far out of the middle does not make the rest flat. */
  range(chart, lines) {
    const seen = [];
    for (const line of lines) {
      const x = this.xs(line);
      for (const values of [line.mean, line.min ?? [], line.max ?? []]) {
        values.forEach((value, index) => value !== null && x[index] >= chart.view.from && x[index] <= chart.view.to && seen.push(value));
      }
    }
    if (!seen.length) return [0, 1];
    seen.sort((one, other) => one - other);
    let [low, high] = [seen[0], seen[seen.length - 1]];
    if (low >= 0 && low < high * 0.6) low = 0;
    if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(low, 0), Math.max(low, 0)];
    const air = (high - low) * 0.05;
    return [low === 0 ? 0 : low - air, high + air];
  }

  path(chart, x, values, y) {
    let path = "";
    let pen = "M";
    values.forEach((value, index) => {
      if (value === null) return;
      path += `${pen}${chart.x(x[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  band(chart, x, line, y) {
    const there = line.mean.map((value, index) => (value === null ? -1 : index)).filter((index) => index >= 0);
    const point = (index, values) => `${chart.x(x[index]).toFixed(1)} ${y(values[index]).toFixed(1)}`;
    return `M${[...there.map((index) => point(index, line.max)), ...there.reverse().map((index) => point(index, line.min))].join("L")}z`;
  }

  tell(chart, at) {
    const words = this.lines().map((line) => {
      const x = this.xs(line);
      let index = Math.max(0, lastUpTo(x, at));
      if (index + 1 < x.length && x[index + 1] - at < at - x[index]) index += 1;
      const value = line.mean[index];
      const spread = line.max && value !== null ? `, from ${numberText(line.min[index])} to ${numberText(line.max[index])}` : "";
      const name = this.runs.length > 1 ? `${data.letters[line.index]}: ` : "";
      return `${name}${numberText(value)}${spread} (step ${line.x.step[index]}, ${timeText(line.x.at[index])})`;
    });
    return words.join("\n");
  }
}
