// Elements, figures, the tooltip, and two charts. Text only ever becomes text nodes: nothing here parses markup.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const DASH = "–";

function put(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const html = (tag, attributes = {}, ...children) => put(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// ---- figures, written as in figures.py

const known = (value) => typeof value === "number" && Number.isFinite(value);
function short(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (size >= scale) return `${+(value / scale).toPrecision(3)}${unit}`;
  if (size !== 0 && size < 0.001) return value.toExponential(1).replace(".0e", "e");
  return `${+value.toPrecision(3)}`;
}
const percent = (value) => (!known(value) ? DASH : `${+(value * 100).toFixed(value && Math.abs(value) < 0.1 ? 1 : 0)}%`);
function clock(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 1) return `${+(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 60) return `${+seconds.toFixed(2)}s`;
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${pad(Math.floor((whole % 3600) / 60))}m`;
}
const colour = (name) => `var(--${name})`;

// ---- ticks: round numbers, for time also 15, 30 and 60

function ticks(low, high, about, bases = [1, 2, 5, 10]) {
  const raw = (high - low) / Math.max(about, 1) || 1;
  const scale = 10 ** Math.floor(Math.log10(raw));
  const step = bases.map((base) => base * scale).find((size) => size >= raw * 0.7) ?? 10 * scale;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}
function timeTicks(low, high, about) {
  const raw = (high - low) / Math.max(about, 1);
  if (raw < 10) return ticks(low, high, about);
  const step = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200].find((s) => s >= raw)
    ?? Math.ceil(raw / 86400) * 86400;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
}
// Tick labels of one axis share their decimals.
function tickText(values) {
  if (values.length < 2) return short;
  const decimals = Math.max(-Math.floor(Math.log10(Math.abs(values[1] - values[0])) + 1e-9), 0);
  return (value) => (Math.max(...values.map(Math.abs)) >= 1000 || decimals > 3 ? short(value) : value.toFixed(decimals));
}

// ---- the tooltip

const tip = byId("tip");
function showTip(event, title, rows = []) {
  tip.replaceChildren(html("b", {}, title), ...rows.map(([name, value, tint]) =>
    html("div", {}, tint ? html("i", { "--c": tint }) : null, html("span", {}, name), html("em", {}, value))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - box.height - 8);
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${Math.max(top, 8)}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

// Draw now, and again whenever the width changes.
function drawn(host, draw) {
  let width = 0;
  const again = () => {
    if (!host.clientWidth || host.clientWidth === width) return;
    width = host.clientWidth;
    draw(width);
  };
  new ResizeObserver(again).observe(host);
  again();
  return () => { width = 0; again(); };
}

function legend(host, entries) {
  host.replaceChildren(...entries.map(([name, tint, shape]) =>
    html("span", {}, html("i", { "--c": tint, class: shape ?? "" }), name)));
}

function switcher(host, options, chosen, choose) {
  const buttons = options.map(([key, label, title]) => html("button", {
    type: "button", title: title ?? null, "aria-pressed": String(key === chosen),
    onclick: () => { mark(key); choose(key); },
  }, label));
  const mark = (key) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === key)));
  host.replaceChildren(...buttons);
  return mark;
}

// ---- curves over steps or time

function smooth(values, reach) {
  return values.map((_, i) => {
    const near = values.slice(Math.max(i - reach, 0), i + reach + 1).filter(known);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : null;
  });
}

function path(xs, ys, X, Y) {
  let out = "", pen = "M";
  ys.forEach((y, i) => {
    if (!known(y)) { pen = "M"; return; }
    out += `${pen}${X(xs[i]).toFixed(1)} ${Y(y).toFixed(1)}`;
    pen = "L";
  });
  return out;
}

/* spec: x, xName, yName, isTime, height, format, label, title(i), floor (a y to include), ceiling (the axis ends there
   unless the data is above), series [{name, values, tint, faint, quiet (not in the tooltip)}],
   points [{x, y, low, high, tint, title, rows}], line {y, text, tint}. `read` is asked anew at every drawing. */
function curves(host, read) {
  return drawn(host, (width) => {
    const spec = read();
    const format = spec.format ?? short, height = spec.height ?? 190;
    const values = spec.series.flatMap((s) => s.values).concat((spec.points ?? []).flatMap((p) => [p.y, p.low, p.high]));
    if (spec.line) values.push(spec.line.y);
    const seen = values.filter(known);
    if (!seen.length) { host.replaceChildren(html("p", { class: "note" }, "nothing but missing values")); return; }
    let low = Math.min(...seen), high = Math.max(...seen);
    if (spec.floor !== undefined) low = Math.min(low, spec.floor);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    if (low !== spec.floor) low -= room;
    high = spec.ceiling !== undefined && high <= spec.ceiling ? Math.min(high + room, spec.ceiling) : high + room;
    const yTicks = ticks(low, high, Math.max(height / 55, 3)), yText = spec.format ?? tickText(yTicks);
    const margin = { left: 14 + 6.4 * Math.max(...yTicks.map((t) => yText(t).length)), right: 10, top: spec.yName ? 26 : 10, bottom: spec.xName ? 38 : 24 };
    const xs = spec.x, x0 = Math.min(xs[0], ...(spec.points ?? []).map((p) => p.x));
    const x1 = Math.max(xs[xs.length - 1], ...(spec.points ?? []).map((p) => p.x), x0 + 1e-9);
    const X = (x) => margin.left + ((x - x0) / (x1 - x0)) * (width - margin.left - margin.right);
    const Y = (y) => height - margin.bottom - ((y - low) / (high - low)) * (height - margin.top - margin.bottom);
    const xTicks = (spec.isTime ? timeTicks : ticks)(x0, x1, (width - 80) / 110).filter((t) => spec.isTime || Number.isInteger(t));
    const bottom = height - margin.bottom;

    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label ?? "" });
    for (const t of yTicks) root.append(
      svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(t), y2: Y(t) }),
      svg("text", { x: margin.left - 8, y: Y(t) + 4, "text-anchor": "end" }, yText(t)));
    root.append(svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }));
    // A small chart names its axis in its last label; a large one below.
    xTicks.forEach((t, i) => {
      const text = spec.isTime ? clock(t) : !spec.xName && i === xTicks.length - 1 ? `step ${short(t)}` : short(t);
      const clipped = X(t) + text.length * 3.2 > width;
      root.append(svg("text", { x: clipped ? width : X(t), y: bottom + 17, "text-anchor": clipped ? "end" : "middle" }, text));
    });
    if (spec.xName) root.append(svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, spec.xName));
    if (spec.yName) root.append(svg("text", { x: 0, y: 11 }, spec.yName));
    if (spec.line) root.append(
      svg("line", { x1: margin.left, x2: width - margin.right, y1: Y(spec.line.y), y2: Y(spec.line.y),
        stroke: spec.line.tint, "stroke-dasharray": "5 4", "stroke-width": 1.2 }),
      svg("text", { x: width - margin.right, y: Y(spec.line.y) - 6, "text-anchor": "end", class: "strong" }, spec.line.text));
    for (const s of spec.series) {
      const alone = s.values.filter(known).length === 1;
      root.append(svg("path", { d: path(xs, s.values, X, Y), fill: "none", stroke: s.tint, "stroke-width": s.faint ? 1 : height > 250 ? 2 : 1.5,
        "stroke-opacity": s.faint ? 0.32 : 1, "stroke-linejoin": "round", "stroke-linecap": "round" }));
      if (alone) s.values.forEach((v, i) => known(v) && root.append(svg("circle", { cx: X(xs[i]), cy: Y(v), r: 3.5, fill: s.tint })));
    }
    const many = (spec.points ?? []).length > 40;
    if (many) root.append(
      svg("path", { d: `${path(spec.points.map((p) => p.x), spec.points.map((p) => p.high), X, Y)}${path(spec.points.map((p) => p.x).reverse(),
        spec.points.map((p) => p.low).reverse(), X, Y).replace("M", "L")}Z`, fill: spec.points[0].tint, "fill-opacity": 0.18 }),
      svg("path", { d: path(spec.points.map((p) => p.x), spec.points.map((p) => p.y), X, Y), fill: "none", stroke: spec.points[0].tint, "stroke-width": 1.5 }));
    for (const p of many ? [] : spec.points ?? []) {
      if (known(p.low) && known(p.high)) root.append(
        svg("path", { d: `M${X(p.x)} ${Y(p.low)}V${Y(p.high)}M${X(p.x) - 4} ${Y(p.low)}h8M${X(p.x) - 4} ${Y(p.high)}h8`,
          stroke: p.tint, "stroke-width": 1.4, fill: "none" }));
      root.append(svg("circle", { cx: X(p.x), cy: Y(p.y), r: 4.5, fill: p.tint, stroke: colour("paper"), "stroke-width": 1.5 }));
    }

    const cursor = svg("g", { visibility: "hidden" });
    root.append(cursor, svg("rect", { x: margin.left, y: 0, width: Math.max(width - margin.left - margin.right, 0), height: bottom, fill: "transparent",
      onpointermove: (event) => {
        const at = event.clientX - root.getBoundingClientRect().left;
        const point = (spec.points ?? []).find((p) => Math.abs(X(p.x) - at) < 6);
        let i = 0;
        for (let j = 1; j < xs.length; j++) if (Math.abs(X(xs[j]) - at) < Math.abs(X(xs[i]) - at)) i = j;
        const x = point ? point.x : xs[i];
        const told = spec.series.filter((s) => !s.quiet);
        cursor.replaceChildren(svg("line", { class: "cursor", x1: X(x), x2: X(x), y1: margin.top, y2: bottom }),
          ...(point ? [] : told.filter((s) => known(s.values[i])).map((s) => svg("circle", { cx: X(x), cy: Y(s.values[i]), r: 3.5, fill: s.tint }))));
        cursor.setAttribute("visibility", "visible");
        showTip(event, point ? point.title : spec.title(i),
          point ? point.rows : told.map((s) => [s.name, format(s.values[i]), s.tint]));
      },
      onpointerleave: () => { cursor.setAttribute("visibility", "hidden"); hideTip(); } }));
    host.replaceChildren(root);
  });
}

// ---- the staleness histogram: [[staleness, tokens], ...] with the bound marked

function histogram(host, counts, bound) {
  const all = counts.reduce((sum, [, n]) => sum + n, 0);
  const last = Math.max(...counts.map(([age]) => age), bound ?? 0);
  const by = new Map(counts);
  drawn(host, (width) => {
    const height = 230, margin = { left: 44, right: 10, top: 24, bottom: 38 }, bottom = height - margin.bottom;
    const slot = (width - margin.left - margin.right) / (last + 1);
    const top = Math.max(...counts.map(([, n]) => n)) / all;
    const Y = (part) => bottom - (part / (top * 1.12)) * (bottom - margin.top);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "trained tokens by staleness" });
    for (const t of ticks(0, top * 1.12, 4)) root.append(
      svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(t), y2: Y(t) }),
      svg("text", { x: margin.left - 8, y: Y(t) + 4, "text-anchor": "end" }, percent(t)));
    const every = Math.ceil(26 / slot);
    for (let age = 0; age <= last; age++) {
      const tokens = by.get(age) ?? 0, x = margin.left + age * slot, broken = bound !== null && age > bound;
      const wide = Math.min(slot * 0.72, 64), left = x + (slot - wide) / 2;
      const bar = Math.max(bottom - Y(tokens / all), tokens ? 1.5 : 0);
      root.append(svg("rect", { x: left, y: bottom - bar, width: wide, height: bar, rx: Math.min(3, bar / 2),
        fill: broken ? colour("bad") : colour("train") }));
      if (tokens && slot > 38) root.append(svg("text", { x: x + slot / 2, y: bottom - bar - 6, "text-anchor": "middle", class: "strong" }, percent(tokens / all)));
      if (age % every === 0) root.append(svg("text", { x: x + slot / 2, y: bottom + 17, "text-anchor": "middle" }, String(age)));
      root.append(svg("rect", { x, y: margin.top, width: slot, height: bottom - margin.top, fill: "transparent",
        onpointermove: (event) => showTip(event, age === 1 ? "1 version" : `${age} versions`, [["tokens", short(tokens)], ["share", percent(tokens / all)]]),
        onpointerleave: hideTip }));
    }
    root.append(svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }));
    if (bound !== null) {
      const x = Math.min(margin.left + (bound + 1) * slot, width - margin.right);
      root.append(svg("line", { x1: x, x2: x, y1: 8, y2: bottom, stroke: colour("bad"), "stroke-dasharray": "5 4", "stroke-width": 1.2 }),
        svg("text", { x: x - 7, y: 16, "text-anchor": "end", class: "strong" }, `bound ${bound}`));
    }
    root.append(svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, "staleness, versions"));
    host.replaceChildren(root);
  });
}
