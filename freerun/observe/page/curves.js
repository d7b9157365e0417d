// Curves over steps, time or tokens, drawn by uPlot: raw values thin, smoothed ones thick; drag to zoom all of them.

const axisText = { step: (value) => short(value), time: clock, tokens: short };

// An average that forgets: each value counts by 1 − weight, those before it ever less.
function smoothed(values, weight) {
  let mean = 0, counted = 0;
  return values.map((value) => {
    if (!known(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    counted = weight * counted + (1 - weight);
    return mean / counted;
  });
}

function stacked(series) {
  const sums = [];
  return series.map((s) => ({ ...s, own: s.values, values: s.values.map((v, i) => (sums[i] = (sums[i] ?? 0) + (known(v) ? v : 0))) }));
}

const withAlpha = (tint, alpha) => `color-mix(in srgb, ${tint} ${Math.round(alpha * 100)}%, transparent)`;

function valueRange(spec, series) {
  let low = Infinity, high = -Infinity;
  const see = (value) => { if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); } };
  for (const s of series) s.values.forEach(see);
  for (const p of spec.points ?? []) if (p.x >= spec.x[0] && p.x <= spec.x.at(-1)) [p.y, p.low, p.high].forEach(see);
  for (const line of spec.lines ?? []) see(line.y);
  if (low > high) return null;
  if (spec.floor !== undefined) low = Math.min(low, spec.floor);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  if (low !== spec.floor) low -= room;
  return [low, spec.ceiling !== undefined && high <= spec.ceiling ? Math.min(high + room, spec.ceiling) : high + room];
}

/* `read()` gives the chart anew at every drawing: x, axis (step, time, tokens), titleOf(i), series [{name, values, tint
   (a theme colour's name), format}], smooth (0 to 1), points [{x, y, low, high, tint, title, rows}] (evaluations),
   lines [{y, text, tint}], marks [{x, text}] (notes), floor, ceiling, stack. `onzoom(low, high)` or `onzoom(null)`. */
function curveChart(host, { height = 190, label, read, onzoom }) {
  let plot = null, seen = false;
  host.style.minHeight = `${height}px`;
  host.setAttribute("tabindex", "0");
  host.setAttribute("role", "img");
  host.setAttribute("aria-label", label);

  function draw() {
    if (!seen || !host.clientWidth) return;
    const spec = read();
    plot?.destroy();
    plot = null;
    host.replaceChildren();
    const base = spec.stack ? stacked(spec.series) : spec.series;
    const range = spec.x.length ? valueRange(spec, base) : null;
    if (!range) { host.append(note(spec.x.length ? "Nothing is known of it." : "Nothing yet.")); return; }
    const soft = spec.smooth > 0 && !spec.stack && spec.x.length > 12;
    const format = spec.series[0]?.format ?? short;
    const lines = [];
    for (const s of spec.stack ? [...base].reverse() : base) {
      const tint = tintNow(s.tint), alone = s.values.filter(known).length === 1;
      const dots = { show: alone, size: 7, fill: tint };
      lines.push({ data: s.values, stroke: soft ? withAlpha(tint, 0.33) : tint, width: soft || spec.stack ? 1 : 1.6,
        fill: spec.stack ? tint : undefined, points: dots });
      if (soft) lines.push({ data: smoothed(s.values, spec.smooth), stroke: tint, width: height > 250 ? 2.2 : 1.8, points: { show: false } });
    }
    const faint = tintNow("faint"), grid = { stroke: tintNow("grid"), width: 1 }, font = "11px system-ui, sans-serif";
    const xRange = [spec.x[0], spec.x.length > 1 ? spec.x.at(-1) : spec.x[0] + 1];
    for (const p of spec.points ?? []) if (!spec.zoomed) { xRange[0] = Math.min(xRange[0], p.x); xRange[1] = Math.max(xRange[1], p.x); }
    plot = new uPlot({
      width: host.clientWidth, height, padding: [10, 10, 0, 0], legend: { show: false },
      cursor: { sync: { key: "curves" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
      scales: { x: { time: false, range: () => xRange }, y: { range: () => range } },
      axes: [
        { stroke: faint, font, grid: { show: false }, ticks: { show: false }, size: 26, gap: 4,
          splits: (u, _, low, high) => (spec.axis === "time" ? timeTicks : ticks)(low, high, u.width / 110)
            .filter((t) => spec.axis !== "step" || Number.isInteger(t)),
          values: (_, found) => found.map(axisText[spec.axis]) },
        { stroke: faint, font, grid, ticks: { show: false }, gap: 6,
          size: (_, found) => 14 + 6.2 * Math.max(...(found ?? [""]).map((t) => t.length)),
          splits: (_, __, low, high) => ticks(low, high, Math.max(height / 55, 3)),
          values: (_, found) => { const text = spec.series[0]?.format ?? tickText(found); return found.map((t) => text(t)); } },
      ],
      series: [{}, ...lines.map(({ data, ...rest }) => ({ ...rest, spanGaps: true }))],
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          const [low, high] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          onzoom?.(low, high);
        }],
        draw: [(u) => drawExtras(u, spec, height)],
      },
    }, [spec.x, ...lines.map((line) => line.data)], host);
    plot.over.addEventListener("dblclick", () => onzoom?.(null));
    plot.over.addEventListener("pointermove", (event) => tellAt(plot, spec, format, event));
    plot.over.addEventListener("pointerleave", hideTip);
  }

  host.addEventListener("keydown", (event) => {
    if (!plot || !onzoom) return;
    const { min, max } = plot.scales.x, wide = max - min;
    const act = { "+": () => onzoom(min + wide / 4, max - wide / 4), "=": () => onzoom(min + wide / 4, max - wide / 4),
      "-": () => onzoom(min - wide / 2, max + wide / 2), 0: () => onzoom(null), Escape: () => onzoom(null),
      ArrowLeft: () => onzoom(min - wide / 4, max - wide / 4), ArrowRight: () => onzoom(min + wide / 4, max + wide / 4) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  new IntersectionObserver((entries) => {
    const was = seen;
    seen = entries.at(-1).isIntersecting;
    if (seen && !was) draw();
  }, { rootMargin: "200px" }).observe(host);
  new ResizeObserver(() => { if (plot && Math.abs(plot.width - host.clientWidth) > 1) draw(); }).observe(host);
  themeChanged.push(draw);
  return draw;
}

const themeChanged = [];

function tellAt(plot, spec, format, event) {
  const near = (spec.points ?? []).find((p) => Math.abs(plot.valToPos(p.x, "x") - event.offsetX) < 7);
  if (near) { showTip(event, near.title, near.rows); return; }
  const mark = (spec.marks ?? []).find((m) => Math.abs(plot.valToPos(m.x, "x") - event.offsetX) < 4);
  const i = plot.posToIdx(event.offsetX);
  showTip(event, spec.titleOf(i), [...spec.series.map((s) => [s.name, (s.format ?? format)(s.values[i]), colour(s.tint)]),
    ...(mark ? [["note", mark.text.slice(0, 120)]] : [])]);
}

// What lies on top of the curves: notes, limits, evaluations with their intervals. The canvas has its own pixels.
function drawExtras(u, spec) {
  const { ctx } = u, { left, top, width, height } = u.bbox, scale = devicePixelRatio || 1;
  const X = (x) => u.valToPos(x, "x", true), Y = (y) => u.valToPos(y, "y", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left - 6 * scale, top - 8 * scale, width + 12 * scale, height + 10 * scale);
  ctx.clip();
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.lineWidth = scale;
  ctx.fillStyle = tintNow("update");
  for (const mark of spec.marks ?? []) {
    const x = X(mark.x);
    ctx.beginPath();
    ctx.moveTo(x - 4 * scale, top - 7 * scale); ctx.lineTo(x + 4 * scale, top - 7 * scale); ctx.lineTo(x, top);
    ctx.fill();
  }
  for (const line of spec.lines ?? []) {
    ctx.strokeStyle = tintNow(line.tint);
    ctx.setLineDash([5 * scale, 4 * scale]);
    ctx.beginPath(); ctx.moveTo(left, Y(line.y)); ctx.lineTo(left + width, Y(line.y)); ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = tintNow("soft");
    ctx.textAlign = "right";
    ctx.fillText(line.text, left + width, Y(line.y) - 5 * scale);
  }
  const many = (spec.points ?? []).length > 60;
  for (const p of spec.points ?? []) {
    ctx.strokeStyle = ctx.fillStyle = tintNow(p.tint);
    ctx.lineWidth = 1.4 * scale;
    if (known(p.low) && known(p.high)) {
      ctx.beginPath(); ctx.moveTo(X(p.x), Y(p.low)); ctx.lineTo(X(p.x), Y(p.high));
      if (!many) for (const end of [p.low, p.high]) { ctx.moveTo(X(p.x) - 4 * scale, Y(end)); ctx.lineTo(X(p.x) + 4 * scale, Y(end)); }
      ctx.stroke();
    }
    ctx.beginPath(); ctx.arc(X(p.x), Y(p.y), (many ? 2.5 : 4.5) * scale, 0, 7); ctx.fill();
  }
  ctx.restore();
}

// ---- the staleness histogram: [[staleness, tokens], ...] with the bound marked

function histogram(host, read) {
  return drawn(host, (width) => {
    const { counts, bound } = read();
    if (!counts.length) { host.replaceChildren(note("Nothing yet.")); return; }
    const all = counts.reduce((sum, [, n]) => sum + n, 0), last = Math.max(...counts.map(([age]) => age), bound ?? 0);
    const by = new Map(counts);
    const height = 190, margin = { left: 44, right: 10, top: 24, bottom: 28 }, bottom = height - margin.bottom;
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
        onpointermove: (event) => showTip(event, plural(age, "version"), [["tokens", short(tokens)], ["share", percent(tokens / all)]]),
        onpointerleave: hideTip }));
    }
    root.append(svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }));
    if (bound !== null) {
      const x = Math.min(margin.left + (bound + 1) * slot, width - margin.right);
      root.append(svg("line", { x1: x, x2: x, y1: 8, y2: bottom, stroke: colour("bad"), "stroke-dasharray": "5 4", "stroke-width": 1.2 }),
        svg("text", { x: x - 7, y: 16, "text-anchor": "end", class: "strong" }, `bound ${bound}`));
    }
    host.replaceChildren(root);
  });
}
