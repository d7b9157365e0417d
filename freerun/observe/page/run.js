// The page of one run: what it came to, what it does now, its curves, timeline, samples, evaluations, notes, settings.

const STATES = { starting: "starting", running: "running", done: "done", stopped: "stopped", failed: "failed", lost: "lost", unknown: "", gone: "deleted", unreadable: "unreadable" };
const pill = (state) => html("span", { class: `pill ${state}` }, STATES[state] ?? state);
const isGoing = (state) => state === "running" || state === "starting";

function section(id, title, says, ...children) {
  return html("section", { id }, html("h2", {}, title), ...(says ? [html("p", { class: "lede" }, says)] : []), ...children);
}

function tileOf({ label, value, note: said, tone }) {
  return html("div", { class: `tile ${tone}` }, html("dt", {}, label), html("dd", {}, value), html("p", {}, said));
}

// What every process does now, and for how long.
function nowOf(overview) {
  if (!isGoing(overview.state) || !overview.doing.length) return [];
  return [html("h2", { class: "hidden" }, "What it does now"), ...overview.doing.map(({ process, what, since }) => html("div", {}, html("b", {}, process), html("span", {}, what),
    html("em", {}, known(since) && Date.now() / 1000 - since > 2 ? `for ${clock(Math.round(Date.now() / 1000 - since))}` : "")))];
}

// What holds the run up, and what to change.
function whyOf(why) {
  if (!why?.bottleneck) return [];
  return [html("h2", {}, "What it waits for"), html("p", {}, html("b", {}, why.bottleneck), ...why.advice.map((line) => html("span", {}, ` → ${line}`))),
    html("details", {}, html("summary", {}, "Shares of the time"), html("ul", {}, ...why.figures.map((line) => html("li", {}, line))))];
}

function evalsOf(evals) {
  const k = evals.some((e) => e.k > 1);
  const rows = [...evals].reverse().map((e) => html("tr", {}, html("td", {}, String(e.step)), html("td", {}, clock(e.time_s)), html("td", { class: "number" }, html("b", {}, short(e.pass_at_1))),
    html("td", { class: "interval" }, html("div", { class: "whisker", "--low": e.low, "--high": e.high, "--at": e.pass_at_1 }, html("i", {})), `${short(e.low)} to ${short(e.high)}`),
    ...(k ? [html("td", { class: "number" }, `${short(e.pass_at_k)} (k = ${e.k})`)] : []), html("td", { class: "number" }, String(e.tasks)), html("td", { class: "number" }, percent(e.truncated_share))));
  const heads = ["Step", "Time", "pass@1", "95% interval", ...(k ? ["pass@k"] : []), "Tasks", "Cut off"];
  return html("div", { class: "scroll" }, html("table", {}, html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))), html("tbody", {}, ...rows)));
}

// The steps between two places on the axis that is shown.
function stepsBetween(state, low, high) {
  const x = state.whole[AXES[state.axis]], step = state.whole.step;
  const first = x.findIndex((value) => value >= low), last = x.findLastIndex((value) => value <= high);
  if (first < 0 || last < 0) return null;
  return [step[Math.min(first, Math.max(last, 0))] - state.eachWhole + 1, step[Math.max(last, first)]];
}

function cut(columns, [first, last]) {
  const from = columns.step.findIndex((step) => step >= first), end = columns.step.findLastIndex((step) => step <= last) + 1;
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, from < 0 ? [] : values.slice(from, end)]));
}

async function runPage(host, name) {
  const [described, opened] = await Promise.all([source.describe(), source.overview(name)]);
  const metrics = described.metrics;
  let overview = opened, closed = false, live = isGoing(opened.state);
  const state = { axis: "step", smooth: 0.6, range: null, columns: { step: [], time_s: [], tokens: [] }, whole: { step: [] }, each: 1, eachWhole: 1, bound: opened.bound,
    zoom: (low, high) => zoom(low, high),
    marks: () => (state.axis === "tokens" ? [] : overview.notes.map((n) => ({ x: state.axis === "step" ? n.step : n.time_s, text: n.text }))
      .filter(({ x }) => { const at = state.columns[AXES[state.axis]]; return at.length && x >= at[0] && x <= at.at(-1); })) };

  // ---- the top
  const top = html("header", { class: "top" }), now = html("div", { class: "now" }), tiles = html("dl", { class: "tiles" }), problems = html("div", { class: "problems" });
  const slow = html("div", { class: "why" });
  const badge = html("span", {}), outcome = html("p", { class: "outcome" });
  top.append(html("p", { class: "eyebrow" }, source.isLive ? html("a", { href: "#/" }, "Runs") : "Freerun run", " ", badge), html("h1", {}, overview.name), outcome, now, problems, tiles, slow);
  function drawTop() {
    badge.replaceChildren(pill(overview.state));
    outcome.textContent = overview.said && overview.state === "failed" ? `${overview.outcome} It failed: ${overview.said}` : overview.outcome;
    now.replaceChildren(...nowOf(overview));
    tiles.replaceChildren(...overview.tiles.map(tileOf));
    tiles.hidden = !overview.tiles.length;
    slow.replaceChildren(...whyOf(overview.why));
    problems.replaceChildren(...overview.problems.map((text) => html("p", {}, text)),
      ...(overview.state === "lost" ? [html("p", {}, "Nothing was heard of the run for a while: it was killed, or its machine is gone. freerun resume goes on with it.")] : []));
    if (overview.last_seen.length) problems.append(html("p", {}, "No training step is done yet. Last seen: "), html("ul", {}, ...overview.last_seen.map((text) => html("li", {}, text))));
  }

  // ---- controls of all curves
  const [axes] = switcher("Curves over", [["step", "Steps"], ["time", "Time"], ["tokens", "Tokens"]], "step", (axis) => { state.axis = axis; drawCharts(); });
  const slider = html("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth, "aria-label": "Smoothing of curves", oninput: (event) => { state.smooth = +event.target.value; drawCharts(); } });
  const unzoom = html("button", { type: "button", class: "plain", hidden: "", onclick: () => zoom(null) }, "Whole run");
  const links = html("nav", { "aria-label": "Parts of the page" });
  const controls = html("div", { class: "controls" }, links, html("div", {}, unzoom, axes, html("label", { class: "smooth" }, "Smooth ", slider)));

  // ---- the sections
  const figures = [], groups = new Map();
  const evalPoints = () => overview.evals.filter((e) => state.axis !== "tokens" && (!state.range || (e.step >= state.range[0] && e.step <= state.range[1])))
    .map((e) => ({ x: state.axis === "step" ? e.step : e.time_s, y: e.pass_at_1, low: e.low, high: e.high, tint: "eval", title: `evaluation at step ${e.step}`,
      rows: [["pass@1", short(e.pass_at_1), colour("eval")], ["95% interval", `${short(e.low)} to ${short(e.high)}`], ...(e.k > 1 ? [[`pass@${e.k}`, short(e.pass_at_k)]] : []), ["tasks", String(e.tasks)], ["cut off", percent(e.truncated_share)]] }));
  const rewardChart = opened.supervised
    ? figure({ names: ["trainer/loss"], title: "Loss" }, state, metrics, { height: 300, always: true })
    : figure({ names: ["reward_mean_all", "reward_mean"], labels: ["all judged answers", "trained on"], tints: ["generate", "train"], title: "Reward", unit: "mean a step",
      says: "Blue is every answer that was judged, amber only what was trained on: they differ where groups are filtered or dropped. Green dots are evaluations on held-out tasks, with their 95% intervals; violet marks are notes.",
      healthy: "Both rise and level off near the best the judge gives, and evaluations rise with them." }, state, metrics, { height: 320, always: true, read: () => ({ points: evalPoints() }) });
  figures.push(rewardChart);
  rewardChart.box.classList.add("main");
  const main = html("div", {});
  const reward = section("learning", "Learning", described.sections.Learning.says, html("div", { class: "multiples" }, rewardChart.box));
  const lanes = html("div", {}), overlap = html("p", { class: "lede" });
  const timeline = html("section", { id: "timeline" }, html("h2", {}, "Who was busy when"), overlap, lanes,
    html("p", { class: "hint" }, "Drag to move, Ctrl + wheel or double click to zoom, or drag the frame in the strip; arrow keys, + and − too. timeline.json in the run's folder opens in ui.perfetto.dev."));
  main.append(reward, timeline);
  groups.set("Learning", reward.querySelector(".multiples"));
  const bars = html("div", { class: "chart" });
  let drawBars = null;
  for (const [title, charts] of Object.entries(CHARTS)) {
    if (title !== "Learning") {
      const grid = html("div", { class: "multiples" });
      groups.set(title, grid);
      main.append(section(title.toLowerCase(), title, described.sections[title].says, grid));
      if (title === "Staleness") grid.append(html("figure", { "data-chart": "histogram" }, html("figcaption", {}, html("span", { class: "title" }, "Tokens by staleness"), html("span", { class: "unit" }, "share of all trained tokens")), bars,
        html("p", { class: "says" }, "How old the tokens of the whole run were when the trainer learned from them. ", html("span", { class: "healthy" }, html("b", {}, "Healthy: "), "most at 0 or 1, none right of the bound."))));
    }
    for (const chart of charts) {
      if (opened.supervised && chart.names?.[0] === "trainer/loss") continue;
      const made = figure(chart, state, metrics);
      figures.push(made);
      groups.get(title).append(made.box);
    }
  }
  const constant = html("p", { class: "hint" });
  main.append(constant);
  const browser = html("div", {}), evals = html("section", { id: "evaluations" }, html("h2", {}, "Evaluations"), html("p", { class: "lede" }, "On held-out tasks, by a version that was fixed for it; newest first."), html("div", {}));
  const samples = section("samples", "Samples", "Everything the policy wrote, newest first, token by token. A new colour is a new version of the policy, taken up in the middle of the answer or between two turns. Keys: / searches, j and k go through the list.", browser);
  const notes = html("section", { id: "notes" }, html("h2", {}, "Notes"), html("ul", {})), config = html("section", { id: "settings" }, html("h2", {}, "Settings"),
    html("p", { class: "lede" }, "Every value, and where it came from."), html("details", {}, html("summary", {}, "config.yaml"), html("pre", {}, opened.config)));
  main.append(samples, evals, notes, config);
  host.replaceChildren(top, controls, main, html("footer", {}, `From the files in ${overview.path}.`));

  function drawNotes() {
    notes.hidden = !overview.notes.length;
    const shown = [...overview.notes].reverse().slice(0, 100);
    notes.querySelector("ul").replaceChildren(...shown.map((n) => html("li", {}, html("button", { type: "button", class: "link", title: "show it on the timeline", onclick: () => { lane?.goTo(n.time_s); timeline.scrollIntoView({ behavior: "smooth" }); } },
      `step ${n.step}, ${clock(n.time_s)}`), " ", n.text)), ...(overview.num_notes > shown.length ? [html("li", { class: "note" }, `${overview.num_notes - shown.length} older ones are in notes.jsonl`)] : []));
    evals.hidden = !overview.evals.length;
    evals.querySelector("div").replaceChildren(evalsOf(overview.evals));
  }

  function drawCharts() {
    const shown = new Set();
    for (const made of figures) if (made.refresh()) shown.add(made);
    for (const [title, grid] of groups) {
      const any = [...grid.children].some((child) => !child.hidden);
      grid.hidden = !any;
      if (title !== "Learning") grid.closest("section").hidden = !any || (title === "Staleness" && !overview.histogram.length);
    }
    const grid = groups.get("Drift"), shares = driftShares(state.columns, metrics);
    grid.querySelector(".shares")?.remove();
    if (shares) grid.prepend(shares);
    drawBars ??= overview.histogram.length ? histogram(bars, () => ({ counts: overview.histogram, bound: overview.bound })) : null;
    drawBars?.();
    const still = Object.values(CHARTS).flat().flatMap((chart) => (opened.supervised && chart.names?.[0] === "trainer/loss" ? [] : seriesOf(chart, state.whole, metrics))).filter((s) => !varies(s.values));
    constant.textContent = still.length ? `Did not vary, and so not drawn: ${still.map((s) => `${metricOf(metrics, s.key)?.title ?? s.name} ${s.format(s.values.find(known))}`).join(", ")}.` : "";
    unzoom.hidden = !state.range;
    drawLinks();
  }
  function drawLinks() {
    const there = [...main.querySelectorAll("section[id]")].filter((part) => !part.hidden);
    if (links.childElementCount === there.length) return;
    links.replaceChildren(...there.map((part) => html("a", { href: `#${part.id}`, onclick: (event) => { event.preventDefault(); part.scrollIntoView({ behavior: "smooth" }); part.querySelector("h2").focus?.(); } },
      part.id === "timeline" ? "Timeline" : part.querySelector("h2").textContent)));
  }

  async function zoom(low, high) {
    const range = low === null ? null : stepsBetween(state, low, high);
    if (low !== null && (!range || range[0] >= range[1])) return;
    state.range = range;
    if (!range) { state.columns = state.whole; state.each = state.eachWhole; drawCharts(); return; }
    state.columns = cut(state.whole, range);
    state.each = state.eachWhole;
    drawCharts();
    if (state.eachWhole === 1 || !source.isLive) return;
    const finer = await source.curves(name, { first: range[0], last: range[1] }).catch(() => null);
    if (!finer || state.range !== range) return;
    state.columns = finer.columns;
    state.each = finer.each;
    drawCharts();
  }

  async function readCurves() {
    const last = state.whole.step.at(-1) ?? 0, adding = last > 0 && state.eachWhole === 1;
    const got = await source.curves(name, adding ? { first: last + 1 } : {});
    if (adding && got.last_step < last) { state.whole = { step: [] }; return readCurves(); } // it was resumed from an earlier step
    if (adding && got.each === 1 && got.steps <= 1200) {
      const count = state.whole.step.length, extra = got.columns.step?.length ?? 0;
      if (!extra) return false;
      for (const key of new Set([...Object.keys(state.whole), ...Object.keys(got.columns)])) {
        const before = state.whole[key] ?? Array(count).fill(null);
        state.whole[key] = [...before, ...(got.columns[key] ?? Array(extra).fill(null))];
      }
    } else if (adding) { state.eachWhole = 0; state.whole = { step: [] }; return readCurves(); }
    else { state.whole = { step: [], time_s: [], tokens: [], ...got.columns }; state.eachWhole = got.each; }
    if (!state.range) { state.columns = state.whole; state.each = state.eachWhole; }
    return true;
  }

  drawTop();
  drawNotes();
  let lane = null, list = null;
  overlap.textContent = overview.overlap;
  whenSeen(lanes, () => { lane = timelineView(lanes, name, () => live); });
  list = samplesView(browser, name, () => live);
  await readCurves().catch((error) => problems.append(html("p", {}, error.message)));
  drawCharts();

  // ---- while the run goes on
  const curvesSoon = atMostEvery(1000, async () => {
    const fresh = (overview.step ?? 0) - (state.whole.step.at(-1) ?? 0) >= (state.eachWhole > 1 ? 2 * state.eachWhole : 1);
    if (!closed && !document.hidden && fresh && await readCurves().catch(() => false) && !state.range) drawCharts();
  });
  const allSoon = atMostEvery(3000, async () => {
    if (closed || document.hidden) return;
    const got = await source.overview(name).catch((error) => ({ ...overview, problems: [error.message] }));
    if (closed) return;
    overview = got;
    live = isGoing(overview.state);
    overlap.textContent = overview.overlap;
    drawTop();
    drawNotes();
    lane?.refresh();
    list?.refresh();
  });
  const away = html("p", {}, "The watching process does not answer: is freerun watch still running? The page goes on when it is back.");
  const stop = source.watch(name, (changed) => {
    const told = changed[name];
    if (!told) return;
    if (told.state === "gone") { overview = { ...overview, state: "gone", problems: ["The run's folder was deleted: what is shown was read before."] }; drawTop(); return; }
    overview = { ...overview, ...told };
    now.replaceChildren(...nowOf(overview));
    badge.replaceChildren(pill(overview.state));
    curvesSoon();
    allSoon();
  }, (lost) => (lost ? problems.append(away) : away.remove()));
  return () => { closed = true; stop(); list?.close(); };
}
