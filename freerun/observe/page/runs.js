// All runs of the folder, and several of them side by side.

const RUN_TINTS = ["generate", "train", "eval", "update", "bad", "both", "judge", "agents", "run-8", "run-9", "run-10", "run-11"];

function sparkline(values) {
  const seen = values.filter(known);
  if (seen.length < 2) return html("span", {}, DASH);
  const low = Math.min(...seen), high = Math.max(...seen), width = 110, height = 26;
  const d = values.map((v, i) => (known(v) ? `${i ? "L" : "M"}${(i / (values.length - 1)) * width} ${2 + (1 - (v - low) / (high - low || 1)) * (height - 4)}` : "")).join("").replace(/^L/, "M");
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" }, svg("path", { d, fill: "none", stroke: colour("generate"), "stroke-width": 1.6 }));
}
const ago = (epoch) => (epoch ? `${clock(Math.max(Math.round(Date.now() / 1000 - epoch), 0))} ago` : DASH);

async function runsPage(host) {
  const chosen = new Set();
  let closed = false, listed = await source.runs(), wanted = "";
  const compare = html("a", { class: "button", href: "#/", "aria-disabled": "true" }, "Compare");
  const search = html("input", { type: "search", placeholder: "Find a run by name", "aria-label": "Find a run by name", oninput: (event) => { wanted = event.target.value.toLowerCase(); draw(); } });
  const body = html("tbody", {}), empty = html("p", { class: "note" });
  const heads = ["", "Run", "State", "Reward", "", "pass@1", "Steps", "Tokens/s", "Staleness", "Time", "Last written"];
  host.replaceChildren(html("header", { class: "top" }, html("p", { class: "eyebrow" }, "Freerun"), html("h1", {}, "Runs"), html("p", { class: "outcome" }, listed.root)),
    html("div", { class: "bar" }, search, compare), html("div", { class: "scroll" }, html("table", { class: "runs" }, html("thead", {}, html("tr", {}, ...heads.map((head) => html("th", { scope: "col" }, head)))), body)), empty);

  function pick() {
    const names = [...chosen];
    compare.setAttribute("aria-disabled", String(names.length < 2));
    compare.href = names.length < 2 ? "#/" : `#/compare/${names.map(encodeURIComponent).join(",")}`;
    compare.textContent = names.length < 2 ? "Compare: choose two or more" : `Compare ${names.length} runs`;
  }
  function draw() {
    const shown = listed.runs.filter((run) => run.name.toLowerCase().includes(wanted));
    body.replaceChildren(...shown.map((run) => {
      const seen = run.spark.filter(known), link = `#/run/${encodeURIComponent(run.name)}`;
      const box = html("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, onchange: (event) => { if (event.target.checked) chosen.add(run.name); else chosen.delete(run.name); pick(); } });
      box.checked = chosen.has(run.name);
      return html("tr", { "data-run": run.name }, html("td", {}, box), html("th", { scope: "row" }, html("a", { href: link }, run.name), ...(run.problems?.length ? [html("p", { class: "note" }, run.problems[0])] : [])),
        html("td", {}, pill(run.state)), html("td", {}, sparkline(run.spark)),
        html("td", { class: "number" }, seen.length ? `${short(seen[0])} → ${short(seen.at(-1))}${run.curve === "trainer/loss" ? " loss" : ""}` : DASH),
        html("td", { class: "number" }, run.eval ? short(run.eval.pass_at_1) : DASH), html("td", { class: "number" }, `${run.step ?? 0}${run.steps_planned ? ` of ${run.steps_planned}` : ""}`),
        html("td", { class: "number" }, short(run.tokens_per_s)), html("td", { class: "number" }, known(run.staleness_max) ? `${run.staleness_max}${known(run.bound) ? ` of ${run.bound}` : ""}` : DASH),
        html("td", { class: "number" }, clock(run.time_s)), html("td", { class: "number" }, ago(run.changed)));
    }));
    empty.textContent = shown.length ? "" : listed.runs.length ? "No run has such a name." : `There is no run in ${listed.root} yet. \`freerun demo\` makes one in a minute; the page shows it as soon as it starts.`;
    pick();
  }
  draw();
  const againSoon = atMostEvery(2000, async () => {
    if (closed || document.hidden) return;
    listed = await source.runs().catch(() => listed);
    if (!closed) draw();
  });
  const stop = source.watch(null, againSoon, (lost) => { if (lost) empty.textContent = "The watching process does not answer: is freerun watch still running?"; });
  return () => { closed = true; stop(); };
}

// ---- side by side

const COMPARED = ["reward_mean_all", "eval/pass_at_1", "tokens_per_s", "staleness_mean", "trainer/entropy", "trainer/drift", "answer_tokens_mean", "truncated_share", "trainer/grad_norm", "engine_idle_share", "trainer_idle_share"];

// Several curves with x values of their own, over all x values.
function joined(lines) {
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b), place = new Map(x.map((value, i) => [value, i]));
  return [x, lines.map((line) => { const values = Array(x.length).fill(null); line.x.forEach((value, i) => { values[place.get(value)] = line.values[i]; }); return values; })];
}

async function comparePage(host, names) {
  const [described, compared, ...loaded] = await Promise.all([source.describe(), source.compare(names), ...names.map((name) => Promise.all([source.curves(name, {}), source.overview(name)]))]);
  const metrics = described.metrics, all = loaded.map(([curves, overview]) => {
    const evals = overview.evals, at = (e) => curves.columns.tokens?.[Math.max(curves.columns.step.findLastIndex((step) => step <= e.step), 0)] ?? 0;
    return { ...curves.columns, "eval/pass_at_1": { step: evals.map((e) => e.step), time_s: evals.map((e) => e.time_s), tokens: evals.map(at), figures: evals.map((e) => e.pass_at_1) } };
  });
  const state = { axis: "step", smooth: 0.6, range: null }, added = [];
  const [axes] = switcher("Curves over", [["step", "Steps"], ["time", "Time"], ["tokens", "Tokens"]], "step", (axis) => { state.axis = axis; state.range = null; draw(); });
  const slider = html("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth, "aria-label": "Smoothing of curves", oninput: (event) => { state.smooth = +event.target.value; draw(); } });
  const unzoom = html("button", { type: "button", class: "plain", hidden: "", onclick: () => zoom(null) }, "All");
  const others = [...new Set(all.flatMap((columns) => Object.keys(columns)))].filter((name) => !COMPARED.includes(name) && !["step", "time_s", "tokens", "version"].includes(name)).sort();
  const more = html("select", { "aria-label": "Another figure", onchange: (event) => { if (event.target.value) { added.unshift(event.target.value); make(event.target.value, true); event.target.value = ""; } } },
    html("option", { value: "" }, "Another figure…"), ...others.map((name) => html("option", { value: name }, metricOf(metrics, name)?.title ? `${metricOf(metrics, name).title} (${name})` : name)));
  const table = compared.differences.length
    ? html("div", { class: "scroll" }, html("table", { class: "differences" }, html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "Setting"), ...names.map((name, i) => html("th", { scope: "col" }, html("i", { class: "dot", "--c": colour(RUN_TINTS[i % RUN_TINTS.length]) }), name)))),
      html("tbody", {}, ...compared.differences.map(({ key, values }) => html("tr", {}, html("th", { scope: "row" }, key), ...names.map((name) => html("td", {}, values[name])))))))
    : note("Their settings do not differ.");
  const grid = html("div", { class: "multiples wide" });
  host.replaceChildren(html("header", { class: "top" }, html("p", { class: "eyebrow" }, html("a", { href: "#/" }, "Runs")), html("h1", {}, "Side by side")),
    html("div", { class: "controls" }, legend(names.map((name, i) => [name, colour(RUN_TINTS[i % RUN_TINTS.length])])), html("div", {}, unzoom, axes, html("label", { class: "smooth" }, "Smooth ", slider))),
    html("section", { id: "differences" }, html("h2", {}, "What differs in their settings"), table), html("section", { id: "curves" }, html("div", { class: "bar" }, html("h2", {}, "Curves"), more), grid));

  const drawing = [];
  function zoom(low, high) { state.range = low === null ? null : [low, high]; unzoom.hidden = low === null; draw(); }
  function linesOf(metric) {
    return all.map((columns) => {
      const of = columns[metric], x = (of?.figures ? of : columns)[AXES[state.axis]], values = of?.figures ?? of ?? [];
      const keep = (x ?? []).map((v) => !state.range || (v >= state.range[0] && v <= state.range[1]));
      return { x: (x ?? []).filter((_, i) => keep[i]).slice(0, values.length), values: values.filter((_, i) => keep[i]) };
    });
  }
  function make(metric, first) {
    const about = metricOf(metrics, metric) ?? { title: metric, says: "" };
    if (!all.some((columns) => (columns[metric]?.figures ?? columns[metric] ?? []).some(known))) return;
    const chart = html("div", { class: "chart" });
    const box = html("figure", { "data-chart": metric }, html("figcaption", {}, html("span", { class: "title" }, about.title), html("span", { class: "unit" }, about.unit ?? "")), chart, html("p", { class: "says" }, about.says));
    if (first) grid.prepend(box); else grid.append(box);
    drawing.push(curveChart(chart, { height: 210, label: about.title, onzoom: zoom, read: () => {
      const lines = linesOf(metric), [x, values] = joined(lines);
      return { x, axis: state.axis, smooth: metric.startsWith("eval/") ? 0 : state.smooth, titleOf: (i) => (state.axis === "step" ? `step ${x[i]}` : axisText[state.axis](x[i])),
        series: names.map((name, i) => ({ name, values: values[i], tint: RUN_TINTS[i % RUN_TINTS.length], format: formatOf(about.unit) })) };
    } }));
  }
  const draw = () => drawing.forEach((again) => again());
  COMPARED.forEach((metric) => make(metric, false));
  return () => {};
}
