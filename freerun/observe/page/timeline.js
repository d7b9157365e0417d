// What every process did when, over a window that can be moved through the whole run. The source gives the bars of the
// window; while it is asked for others, those at hand are drawn.

const GUTTER = 104;
const KINDS = { generate: "generate", step: "train", evaluate: "eval", wait: "wait", judge: "judge", session: "agents", checkpoint: "save",
  publish: "update", fetch: "update", phase: "phase" };
const TALL = { generate: 28, train: 28, judge: 16, agents: 16, eval: 16, both: 12, wait: 8, save: 8, phase: 8, update: 8, other: 12 };
const NAMES = { generate: "generating", train: "training", both: "both at once", judge: "judging", agents: "agents' sessions",
  eval: "evaluating", wait: "waiting", save: "saving", phase: "phases of a step", update: "new weights", other: "other" };

const kindOf = (row) => KINDS[row.track] ?? (row.process.startsWith("rewards") ? "judge" : row.process.startsWith("agents") ? "agents"
  : row.process.startsWith("evaluator") ? "eval" : "other");

// Times that two rows share, at the resolution they are drawn in.
function sharedTime(a, b) {
  const found = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    const start = Math.max(a[i][0], b[j][0]), end = Math.min(a[i][1], b[j][1]);
    if (start < end) found.push([start, end, "both busy", {}, 1]);
    if (a[i][1] < b[j][1]) i++; else j++;
  }
  return found;
}
const byStart = (bars) => [...bars].sort((x, y) => x[0] - y[0]);

// The rows to draw: updates lie on their engine's row, and one row says when engines and trainer were both busy.
function lanesOf(rows) {
  const updates = new Map(rows.filter((row) => row.track === "update").map((row) => [row.process, row.bars]));
  const lanes = rows.filter((row) => row.track !== "update").map((row) => ({ label: row.process, track: row.track, kind: kindOf(row),
    bars: row.bars, updates: row.track === "generate" ? updates.get(row.process) ?? [] : [] }));
  const generating = byStart(lanes.filter((lane) => lane.kind === "generate").flatMap((lane) => lane.bars));
  const training = byStart(lanes.filter((lane) => lane.kind === "train").flatMap((lane) => lane.bars));
  const main = (lane) => lane.kind === "generate" || lane.kind === "train";
  if (generating.length && training.length) {
    const last = lanes.findLastIndex(main);
    lanes.splice(last + 1, 0, { label: "both busy", track: "", kind: "both", bars: sharedTime(generating, training), updates: [] });
  }
  // A process is named once, at its tallest row.
  for (const label of new Set(lanes.map((lane) => lane.label))) {
    const own = lanes.filter((lane) => lane.label === label);
    own.sort((x, y) => TALL[y.kind] - TALL[x.kind]).forEach((lane, i) => { lane.text = i ? lane.track : label; lane.first = !i; });
  }
  const order = new Map([...new Set(lanes.map((lane) => lane.label))].map((label, i) => [label, i]));
  return lanes.sort((x, y) => order.get(x.label) - order.get(y.label) || TALL[y.kind] - TALL[x.kind]);
}

function timeOf(seconds, text) {
  if (seconds < 60) return `${text(seconds)}s`;
  const minutes = Math.floor(seconds / 60 + 1e-9), rest = Math.max(seconds - minutes * 60, 0);
  if (minutes >= 600) return `${Math.floor(minutes / 60)}h${String(minutes % 60).padStart(2, "0")}m`;
  return `${minutes}m${rest < 9.9995 ? "0" : ""}${text === short ? Math.round(rest) : text(rest)}s`;
}

function spanTip(event, lane, bar) {
  const [start, end, name, args, many] = bar;
  if (many > 1 || !name) return showTip(event, `${lane.label}, ${NAMES[lane.kind]}`, [["here", many > 1 ? `${many} spans, zoom in` : "several spans, drawn as one"], ["from", clock(start)], ["to", clock(end)]]);
  return showTip(event, `${lane.label}: ${name}`, [["at", clock(start)], ["took", clock(end - start)],
    ...Object.entries(args).slice(0, 8).map(([key, value]) =>
      [key.replaceAll("_", " "), known(value) ? short(value) : typeof value === "string" ? value.slice(0, 80) : JSON.stringify(value)])]);
}

function timelineView(host, run, isGoing) {
  const view = { from: 0, to: 1 };
  let wall = [0, 1], at = null, whole = null, width = 0, scheduled = false, asking = false, again = false, held = null, following = isGoing();
  const rows = svg("svg", { class: "lanes", tabindex: "0", role: "img", "aria-label": "what every process did when: arrow keys move, plus and minus zoom" });
  const strip = svg("svg", { class: "strip", "aria-hidden": "true" });
  const key = html("div", { class: "legend" });
  const [zooms, mark] = switcher("Zoom of the timeline", [...(source.isLive ? [["follow", "Follow", "keep to the newest"]] : []), ["opening", isGoing() ? "Last steps" : "Mid-run"],
    ["whole", "Whole run"], ["in", "+", "zoom in"], ["out", "−", "zoom out"]], following ? "follow" : "opening", (choice) => {
    following = choice === "follow";
    if (choice === "in") zoom(0.5);
    else if (choice === "out") zoom(2);
    else if (choice === "whole") look(...wall);
    else if (at) look(...at.opening);
  });
  host.replaceChildren(html("div", { class: "bar" }, key, zooms), html("div", { class: "chart" }, rows, strip));

  function look(from, to) {
    const all = Math.max(wall[1] - wall[0], 1e-6), span = Math.min(Math.max(to - from, Math.min(all, 0.01)), all);
    view.from = Math.min(Math.max((from + to - span) / 2, wall[0]), wall[1] - span);
    view.to = view.from + span;
    if (!scheduled) { scheduled = true; requestAnimationFrame(() => { scheduled = false; draw(); }); }
    fetchSoon();
  }
  const moved = () => { following = false; mark(null); };
  const zoom = (factor, around = (view.from + view.to) / 2) => { moved(); look(around - (around - view.from) * factor, around + (view.to - around) * factor); };
  const shift = (seconds) => { moved(); look(view.from + seconds, view.to + seconds); };
  const timeAt = (event) => view.from + ((Math.max(event.clientX - rows.getBoundingClientRect().left, GUTTER) - GUTTER) / (width - GUTTER)) * (view.to - view.from);

  // Ask for a little more than is seen, one question at a time.
  const fetchSoon = atMostEvery(120, async () => {
    if (asking) { again = true; return; }
    const margin = (view.to - view.from) * 0.25, from = Math.max(view.from - margin, wall[0]), to = Math.min(view.to + margin, wall[1]);
    asking = true;
    try {
      at = { ...at, ...await source.timeline(run, { from, to, width: Math.round(width * 1.5) }) };
      draw();
    } catch (error) { key.replaceChildren(note(error.message)); }
    asking = false;
    if (again) { again = false; fetchSoon(); }
  });

  async function refresh() {
    if (!width) return;
    try {
      const opened = await source.timeline(run, {});
      wall = opened.wall;
      if (at === null) {
        at = opened;
        view.from = opened.opening[0];
        view.to = opened.opening[1];
      }
      at.opening = opened.opening;
      if (following) { at = opened; look(...opened.opening); }
      drawStripSoon();
      draw();
    } catch (error) { key.replaceChildren(note(error.message)); }
  }
  const drawStripSoon = atMostEvery(10000, async () => {
    whole = await source.timeline(run, { from: wall[0], to: wall[1], width: 600 }).catch(() => whole);
    drawStrip();
  });

  function draw() {
    if (!width || !at) return;
    const lanes = lanesOf(at.rows).filter((lane) => lane.bars.length || lane.kind === "generate" || lane.kind === "train");
    const X = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * (width - GUTTER);
    const top = 20, bottom = top + lanes.reduce((sum, lane) => sum + TALL[lane.kind] + (lane.first ? 9 : 4), 0), height = bottom + 24;
    rows.setAttribute("viewBox", `0 0 ${width} ${height}`);
    rows.setAttribute("height", height);
    const parts = [svg("rect", { width, height, fill: "transparent" })];
    const marks = timeTicks(view.from, view.to, (width - GUTTER) / 110), text = tickText(marks);
    for (const t of marks) parts.push(svg("line", { class: "grid", x1: X(t), x2: X(t), y1: top - 4, y2: bottom }),
      svg("text", { x: X(t), y: bottom + 17, "text-anchor": "middle" }, timeOf(t, text)));
    let y = top, labelled = -Infinity;
    lanes.forEach((lane, index) => {
      const tall = TALL[lane.kind];
      y += lane.first && index ? 5 : 0;
      if (lane.first || tall >= 8) parts.push(svg("text", { x: GUTTER - 12, y: y + tall / 2 + 4, "text-anchor": "end", class: lane.first ? "strong" : "small" }, lane.text));
      parts.push(svg("rect", { x: GUTTER, y, width: width - GUTTER, height: tall, rx: 3, fill: colour("grid"), "fill-opacity": 0.7 }));
      for (const bar of lane.bars) {
        const left = Math.max(X(bar[0]), GUTTER), right = Math.min(X(bar[1]), width), wide = Math.max(right - left, 0.6);
        if (right < GUTTER || left > width) continue;
        parts.push(svg("rect", { x: left, y, width: wide - (wide > 4 ? 0.8 : 0), height: tall, rx: Math.min(3, wide / 3), fill: colour(lane.kind),
          onpointermove: (event) => held || spanTip(event, lane, bar), onpointerleave: hideTip }));
        if (bar[2] && tall >= 24 && wide > 12 + 6.6 * bar[2].length) parts.push(svg("text", {
          x: left + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", "pointer-events": "none", class: "on-bar" }, bar[2]));
      }
      for (const bar of lane.updates) {
        const left = X(bar[0]), wide = Math.max(X(bar[1]) - left, 2.2), version = bar[3].version;
        if (left < GUTTER || left > width) continue;
        parts.push(svg("rect", { x: left - 1, y: y - 4, width: wide, height: tall + 8, rx: 1, fill: colour("update"),
          onpointermove: (event) => held || spanTip(event, { ...lane, kind: "update" }, bar), onpointerleave: hideTip }));
        if (index === 0 && known(version) && left - labelled > 44 && left < width - 12) {
          parts.push(svg("text", { x: left, y: 11, "text-anchor": "middle", class: "version" }, `v${version}`));
          labelled = left;
        }
      }
      y += tall + 4;
    });
    for (const [time, said] of at.notes ?? []) if (time >= view.from && time <= view.to)
      parts.push(svg("path", { class: "noted", d: `M${X(time)} ${top - 6}V${bottom}`, onpointermove: (event) => showTip(event, "note", [[said.slice(0, 200), ""]]), onpointerleave: hideTip }));
    rows.replaceChildren(...parts);
    const kinds = [...new Set(lanes.map((lane) => lane.kind))], swaps = lanes.some((lane) => lane.updates.length);
    key.replaceChildren(...legend([...kinds.filter((kind) => kind !== "update" || !swaps).map((kind) => [NAMES[kind], colour(kind), "block"]),
      ...(swaps ? [["new weights", colour("update"), "tick"]] : [])]).children);
    drawStrip();
  }

  function drawStrip() {
    if (!whole || !width) return;
    const height = 30, all = Math.max(wall[1] - wall[0], 1e-6), X = (t) => GUTTER + ((t - wall[0]) / all) * (width - GUTTER);
    strip.setAttribute("viewBox", `0 0 ${width} ${height}`);
    strip.setAttribute("height", height);
    const parts = [svg("text", { x: GUTTER - 12, y: height / 2 + 4, "text-anchor": "end" }, "whole run"),
      svg("rect", { x: GUTTER, width: width - GUTTER, height, rx: 4, fill: colour("grid"), "fill-opacity": 0.7 })];
    for (const [kind, y] of [["generate", 5], ["train", 16]])
      for (const bar of whole.rows.find((row) => kindOf(row) === kind)?.bars ?? [])
        parts.push(svg("rect", { x: X(bar[0]), y, width: Math.max(X(bar[1]) - X(bar[0]), 0.5), height: 9, fill: colour(kind), "fill-opacity": 0.55 }));
    const left = X(view.from), right = X(view.to), wide = Math.max(right - left, 6);
    parts.push(svg("rect", { x: (left + right - wide) / 2, y: 0.75, width: wide, height: height - 1.5, rx: 4, fill: colour("ink"), "fill-opacity": 0.08,
      stroke: colour("soft"), "stroke-width": 1.5 }));
    strip.replaceChildren(...parts);
  }

  rows.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to };
    rows.setPointerCapture(event.pointerId);
    rows.classList.add("held");
    hideTip();
  });
  rows.addEventListener("pointermove", (event) => {
    if (!held || Math.abs(event.clientX - held.x) < 3) return;
    const seconds = ((held.x - event.clientX) / (width - GUTTER)) * (held.to - held.from);
    moved();
    look(held.from + seconds, held.to + seconds);
  });
  for (const over of ["pointerup", "pointercancel"]) rows.addEventListener(over, () => { held = null; rows.classList.remove("held"); });
  rows.addEventListener("dblclick", (event) => zoom(0.5, timeAt(event)));
  rows.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), timeAt(event));
  }, { passive: false });
  rows.addEventListener("keydown", (event) => {
    const part = (view.to - view.from) / 5;
    const act = { ArrowLeft: () => shift(-part), ArrowRight: () => shift(part), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6),
      Home: () => shift(wall[0] - view.from), End: () => shift(wall[1] - view.to) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const centre = (event) => {
    const t = wall[0] + ((event.clientX - strip.getBoundingClientRect().left - GUTTER) / (width - GUTTER)) * (wall[1] - wall[0]), half = (view.to - view.from) / 2;
    moved();
    look(t - half, t + half);
  };
  let moving = false;
  strip.addEventListener("pointerdown", (event) => { moving = true; strip.setPointerCapture(event.pointerId); centre(event); });
  strip.addEventListener("pointermove", (event) => moving && centre(event));
  for (const over of ["pointerup", "pointercancel"]) strip.addEventListener(over, () => { moving = false; });

  drawn(rows.parentElement, (now) => { width = now; if (at) draw(); else refresh(); });
  return { refresh, goTo: (seconds) => { moved(); look(seconds - 2, seconds + 2); } };
}
