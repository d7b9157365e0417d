// Rows of spans over a window that can be moved. Spans narrower than a pixel are drawn together, so a frame costs
// a few thousand rectangles at most, however long the run.

const ROW = { generate: 30, train: 30, both: 14, eval: 14, wait: 10 };
const GUTTER = 112;

// The latest end so far at every span: spans may nest, so their own ends are not in order.
const reaches = new Map();
function reached(spans) {
  let latest = -Infinity;
  if (!reaches.has(spans)) reaches.set(spans, spans.map(([, end]) => (latest = Math.max(latest, end))));
  return reaches.get(spans);
}

// [{left, right, span or null, n}] in pixels; null where several spans share the pixels.
function visible(spans, from, to, X) {
  const ends = reached(spans);
  let low = 0, high = spans.length;
  while (low < high) { const mid = (low + high) >> 1; if (ends[mid] < from) low = mid + 1; else high = mid; }
  const bars = [];
  for (let i = low; i < spans.length && spans[i][0] <= to; i++) {
    if (spans[i][1] < from) continue;
    const left = Math.max(X(spans[i][0]), GUTTER), right = Math.max(X(Math.min(spans[i][1], to)), left + 0.5);
    const before = bars[bars.length - 1];
    if (before && left - before.right < 0.6 && (right - left < 1.5 || before.n > 1)) {
      before.right = Math.max(before.right, right);
      before.n += 1;
      before.span = null;
    } else bars.push({ left, right, span: spans[i], n: 1 });
  }
  return bars;
}

// 12.5s, 105m02.5s: minutes, and seconds with the decimals that the window needs.
function timeOf(seconds, text) {
  if (seconds < 60) return `${text(seconds)}s`;
  const minutes = Math.floor(seconds / 60 + 1e-9), rest = Math.max(seconds - minutes * 60, 0);
  return `${minutes}m${rest < 9.9995 ? "0" : ""}${text === short ? Math.round(rest) : text(rest)}s`;
}

function spanTip(event, label, bar, seconds) {
  if (!bar.span) return showTip(event, label, [["here", `${bar.n} spans, zoom in`], ["at", clock(seconds)]]);
  if (!bar.span[2]) return showTip(event, label, [["here", "several spans, drawn as one"], ["at", clock(seconds)]]);
  const [start, end, name, args] = bar.span;
  return showTip(event, `${label}: ${name}`, [["at", clock(start)], ["took", clock(end - start)],
    ...Object.entries(args).slice(0, 8).map(([key, value]) =>
      [key.replaceAll("_", " "), known(value) ? short(value) : typeof value === "string" ? value : JSON.stringify(value)])]);
}

function lanes(host, spec) {
  const [first, last] = spec.wall, whole = Math.max(last - first, 1e-6);
  const view = { from: spec.window[0], to: spec.window[1] };
  const closest = Math.min(whole, 0.02);
  const rows = svg("svg", { class: "lanes", tabindex: "0", role: "img", "aria-label": "spans of engines and trainer over time" });
  const strip = svg("svg", { class: "strip", "aria-hidden": "true" });
  host.replaceChildren(rows, strip);
  let width = 0, scheduled = false, onmove = () => {};

  function look(from, to) {
    const span = Math.min(Math.max(to - from, closest), whole);
    const start = Math.min(Math.max((from + to - span) / 2, first), last - span);
    view.from = start;
    view.to = start + span;
    onmove(span > whole * 0.999 ? "whole" : "part");
    if (!scheduled) { scheduled = true; requestAnimationFrame(() => { scheduled = false; draw(); }); }
  }
  const zoom = (factor, at = (view.from + view.to) / 2) => look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const shift = (seconds) => look(view.from + seconds, view.to + seconds);
  const at = (event) => {
    const x = event.clientX - rows.getBoundingClientRect().left;
    return view.from + ((Math.max(x, GUTTER) - GUTTER) / (width - GUTTER)) * (view.to - view.from);
  };

  function draw() {
    const X = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * (width - GUTTER);
    const top = 20, heights = spec.rows.map((row) => ROW[row.kind]);
    const bottom = top + heights.reduce((a, b) => a + b + 9, 0), height = bottom + 24;
    rows.setAttribute("viewBox", `0 0 ${width} ${height}`);
    rows.setAttribute("height", height);
    const parts = [svg("rect", { width, height, fill: "transparent" })];
    const marks = timeTicks(view.from, view.to, (width - GUTTER) / 110), text = tickText(marks);
    for (const t of marks) parts.push(
      svg("line", { class: "grid", x1: X(t), x2: X(t), y1: top - 4, y2: bottom }),
      svg("text", { x: X(t), y: bottom + 17, "text-anchor": "middle" }, timeOf(t, text)));
    let y = top;
    spec.rows.forEach((row, index) => {
      const tall = heights[index];
      parts.push(svg("text", { x: GUTTER - 14, y: y + tall / 2 + 4, "text-anchor": "end", class: "strong" }, row.label),
        svg("rect", { x: GUTTER, y, width: width - GUTTER, height: tall, rx: 4, fill: colour("grid"), "fill-opacity": 0.7 }));
      for (const bar of visible(row.spans, view.from, view.to, X)) {
        const wide = bar.right - bar.left;
        parts.push(svg("rect", { x: bar.left, y, width: Math.max(wide - (wide > 4 ? 0.8 : 0), 0.5), height: tall,
          rx: Math.min(3, wide / 3), fill: colour(row.kind), "fill-opacity": row.kind === "generate" ? 0.9 : 1,
          onpointermove: (event) => held || spanTip(event, row.label, bar, at(event)), onpointerleave: hideTip }));
        if (bar.span?.[2] && tall >= 24 && wide > 12 + 6.6 * bar.span[2].length) parts.push(svg("text", {
          x: bar.left + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", "pointer-events": "none",
          style: `fill: ${colour("on-bar")}` }, bar.span[2]));
      }
      let labelled = -Infinity;
      for (const bar of visible(row.updates ?? [], view.from, view.to, X)) {
        const middle = (bar.left + bar.right) / 2;
        parts.push(svg("rect", { x: Math.min(bar.left, middle - 1.25), y: y - 4, width: Math.max(bar.right - bar.left, 2.5), height: tall + 8, rx: 1,
          fill: colour("update"), onpointermove: (event) => held || spanTip(event, `${row.label}, new weights`, bar, at(event)), onpointerleave: hideTip }));
        const version = bar.span?.[3].version;
        if (index === 0 && known(version) && middle - labelled > 44 && middle < width - 12) {
          parts.push(svg("text", { x: middle, y: 11, "text-anchor": "middle", style: `fill: ${colour("update")}` }, `v${version}`));
          labelled = middle;
        }
      }
      y += tall + 9;
    });
    rows.replaceChildren(...parts);
    drawStrip();
  }

  function drawStrip() {
    const height = 30, X = (t) => GUTTER + ((t - first) / whole) * (width - GUTTER);
    strip.setAttribute("viewBox", `0 0 ${width} ${height}`);
    strip.setAttribute("height", height);
    const parts = [svg("text", { x: GUTTER - 14, y: height / 2 + 4, "text-anchor": "end" }, "whole run"),
      svg("rect", { x: GUTTER, width: width - GUTTER, height, rx: 4, fill: colour("grid"), "fill-opacity": 0.7 })];
    for (const [kind, y] of [["generate", 5], ["train", 16]]) {
      const row = spec.rows.find((r) => r.kind === kind);
      for (const bar of row ? visible(row.spans, first, last, X) : [])
        parts.push(svg("rect", { x: bar.left, y, width: Math.max(bar.right - bar.left, 0.5), height: 9, fill: colour(kind), "fill-opacity": 0.55 }));
    }
    const left = X(view.from), right = X(view.to), wide = Math.max(right - left, 6);
    parts.push(svg("rect", { x: (left + right - wide) / 2, y: 0.75, width: wide, height: height - 1.5, rx: 4, fill: colour("ink"), "fill-opacity": 0.08,
      stroke: colour("soft"), "stroke-width": 1.5 }));
    strip.replaceChildren(...parts);
  }

  // Pointer: drag the rows to pan, drag or click the strip to move the frame.
  let held = null;
  rows.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to };
    rows.setPointerCapture(event.pointerId);
    rows.classList.add("held");
    hideTip();
  });
  rows.addEventListener("pointermove", (event) => {
    if (!held) return;
    const seconds = ((held.x - event.clientX) / (width - GUTTER)) * (held.to - held.from);
    look(held.from + seconds, held.to + seconds);
  });
  for (const over of ["pointerup", "pointercancel"])
    rows.addEventListener(over, () => { held = null; rows.classList.remove("held"); });
  rows.addEventListener("dblclick", (event) => zoom(0.5, at(event)));
  rows.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), at(event));
  }, { passive: false });
  rows.addEventListener("keydown", (event) => {
    const part = (view.to - view.from) / 5;
    const act = { ArrowLeft: () => shift(-part), ArrowRight: () => shift(part), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const centre = (event) => {
    const x = event.clientX - strip.getBoundingClientRect().left;
    const t = first + ((x - GUTTER) / (width - GUTTER)) * whole, half = (view.to - view.from) / 2;
    look(t - half, t + half);
  };
  let moving = false;
  strip.addEventListener("pointerdown", (event) => { moving = true; strip.setPointerCapture(event.pointerId); centre(event); });
  strip.addEventListener("pointermove", (event) => moving && centre(event));
  for (const over of ["pointerup", "pointercancel"]) strip.addEventListener(over, () => { moving = false; });

  drawn(host, (now) => { width = now; draw(); });
  return { look, zoom, onmove: (told) => { onmove = told; } };
}
