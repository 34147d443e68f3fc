// Puts the charts into their figures, and follows buttons, keys and the address: `#t=12-15.5` shows that part of the run.

const data = JSON.parse(document.getElementById("data").textContent);

/** Patterns for time of which nothing comes, so that colour is not all that tells it. */
function hatches() {
  const pattern = (name, line, d) => draw("pattern", { id: `hatch-${name}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    draw("rect", { width: 6, height: 6, style: `fill: var(--${name})` }), draw("path", { d, style: `stroke: var(${line}); stroke-width: 1.2; fill: none` }));
  const up = "M-1 1l2 -2M0 6l6 -6M5 7l2 -2";
  const down = "M-1 5l2 2M0 0l6 6M5 -1l2 2";
  const holder = draw("svg", { width: 0, height: 0, style: "position: absolute", "aria-hidden": "true" });
  holder.append(draw("defs", {}, pattern("starting", "--faint", "M0 3h6"), pattern("waiting", "--paper", up), pattern("paused", "--faint", down), pattern("lost", "--ink", up)));
  document.body.append(holder);
}

function legend(runs) {
  const used = new Set(runs.flatMap((run) => run.lanes.flatMap((lane) => [...lane.does].map((letter) => letter.charCodeAt(0) - 97))));
  const list = document.getElementById("classes");
  data.classes.forEach((name, index) => {
    if (!used.has(index)) return;
    const entry = make("li", "");
    entry.append(make("i", `c-${name}`), name);
    list.append(entry);
  });
}

function timelines(runs, view) {
  const shown = (series) => Math.max(0, ...series.is.filter((value) => value !== null));
  const highest = Math.max(1, ...runs.flatMap((run) => [shown(run.ready), shown(run.inFlight), shown(run.giveBackAt), run.need]));
  for (const article of document.querySelectorAll("#timelines article")) {
    const run = runs[Number(article.dataset.run)];
    const [lanes, ready] = article.querySelectorAll("figure");
    new Chart(lanes, view, new Lanes(run, runs));
    key(ready, "ready", { style: "stroke: var(--training); stroke-width: 2" });
    key(ready, "in flight", { style: "stroke: var(--generating)" });
    key(ready, `a step needs ${run.need}`, { style: "stroke: var(--waiting); stroke-width: 2; stroke-dasharray: 6 4" });
    if (runs.some((each) => each.swings.length)) key(ready, "devices go back at", { style: "stroke: var(--swinging); stroke-width: 3" });
    new Chart(ready, view, new ReadySamples(run, highest * 1.04));
  }
}

function curves(runs, views) {
  const ofCurve = (name) => (run) => ({ x: run.steps, ...(run.curves[name] ?? {}) });
  const charts = [];
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))];
  const scores = [...new Set(runs.flatMap((run) => Object.keys(run.evaluations.curves)))];
  for (const figure of document.querySelectorAll("#curves figure")) {
    const name = figure.dataset.curve;
    if (runs.length > 1) runs.forEach((_, index) => key(figure, data.letters[index], { style: `stroke: var(--run-${index}); stroke-width: 2; stroke-dasharray: ${DASHES[index]}` }));
    let painter = new Curve(runs, ofCurve(name));
    if (name === "staleness") painter = new Curve(runs, (run) => ({ x: run.steps, mean: run.staleness.mean, min: run.staleness.min, max: run.staleness.max }), false);
    const select = figure.querySelector("select");
    if (select) {
      const offered = name === "evaluation" ? scores : names.filter((each) => !["reward", "actor/loss", "seconds waited"].includes(each));
      figure.hidden = offered.length === 0;
      for (const each of offered) select.append(new Option(each, each));
      for (const liked of ["eval/mean_reward", "actor/entropy"]) if (offered.includes(liked)) select.value = liked;
      painter = name === "evaluation"
        ? new Curve(runs, (run) => ({ x: run.evaluations, ...(run.evaluations.curves[select.value] ?? {}) }), false)
        : new Curve(runs, (run) => ofCurve(select.value)(run));
    }
    const chart = new Chart(figure, views.step, painter);
    select?.addEventListener("change", () => chart.redraw());
    charts.push(chart);
  }
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      axis.isTime = button.dataset.axis === "time";
      for (const each of document.querySelectorAll("[data-axis]")) each.setAttribute("aria-pressed", String(each === button));
      for (const chart of charts) chart.see(axis.isTime ? views.time : views.step);
      for (const chart of charts) chart.redraw();
    });
  }
  const range = document.getElementById("smoothing");
  const follow = () => {
    axis.smoothing = Number(range.value);
    document.getElementById("smoothed").textContent = axis.smoothing ? `${axis.smoothing} % of the steps` : "nothing";
    for (const chart of charts) chart.redraw();
  };
  range.addEventListener("input", follow);
  follow();
}

function controls(view) {
  const actions = { in: () => view.zoom(0.5), out: () => view.zoom(2), left: () => view.move(-0.5), right: () => view.move(0.5), all: () => view.whole() };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", actions[button.dataset.zoom]);
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, .scroll")) return;
    if (keys[event.key]) actions[keys[event.key]]();
  });
  const shown = document.getElementById("shown");
  view.watchers.push(() => {
    const step = (view.to - view.from) / 1000;
    shown.textContent = view.isWhole ? `whole run, ${timeText(view.to, 0.1)}` : `${timeText(view.from, step)} to ${timeText(view.to, step)}`;
    history.replaceState(null, "", view.isWhole ? location.pathname + location.search : `#t=${view.from.toPrecision(7)}-${view.to.toPrecision(7)}`);
  });
  for (const row of document.querySelectorAll("tr[data-from]")) {
    const closer = () => {
      const [from, to] = [Number(row.dataset.from), Number(row.dataset.to)];
      const air = Math.max(0.2 * (to - from), 1e-6);
      view.show(from - air, to + air);
      document.getElementById("timeline").scrollIntoView({ behavior: "smooth" });
    };
    row.addEventListener("click", closer);
    row.addEventListener("keydown", (event) => event.key === "Enter" && closer());
  }
}

function looks(views) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  const layout = document.getElementById("layout");
  const set = (isSide) => {
    document.getElementById("timelines").classList.toggle("side", isSide);
    layout.setAttribute("aria-pressed", String(isSide));
  };
  if (layout) set(document.body.clientWidth >= 1300);
  layout?.addEventListener("click", () => {
    set(layout.getAttribute("aria-pressed") !== "true");
    views.time.redraw();
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    views.time.redraw();
    views.step.redraw();
  });
}

function begin() {
  const runs = data.runs.map(unpack);
  const views = {
    time: new View([0, Math.max(1e-3, ...runs.map((run) => run.end))]),
    step: new View([0, Math.max(1, ...runs.flatMap((run) => run.steps.step))]),
  };
  hatches();
  legend(runs);
  looks(views);
  timelines(runs, views.time);
  curves(runs, views);
  controls(views.time);
  const asked = /^#t=([\d.e+-]+?)-([\d.e+]+)$/.exec(location.hash);
  if (asked && Number(asked[2]) > Number(asked[1])) views.time.show(Number(asked[1]), Number(asked[2]));
  else views.time.redraw();
  document.documentElement.dataset.drawn = "yes";
}

try {
  begin();
} catch (error) {
  const failure = document.getElementById("failure");
  failure.textContent = `The charts could not be drawn: ${error.message}. Numbers and tables are all there.`;
  failure.hidden = false;
  throw error;
}
