// Elements, figures, the tooltip, small controls. Text only ever becomes text nodes: nothing here parses markup.

const byId = (id) => document.getElementById(id);
const DASH = "–";

function put(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const html = (tag, attributes = {}, ...children) => put(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const note = (text) => html("p", { class: "note" }, text);
const plural = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;

// ---- figures, written as in figures.py

const known = (value) => typeof value === "number" && Number.isFinite(value);
function short(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  for (const [unit, scale] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (size >= scale * 0.9995) return `${+(value / scale).toPrecision(3)}${unit}`;
  if (size !== 0 && size < 0.001) return value.toExponential(1).replace(".0e", "e");
  return `${+value.toPrecision(3)}`;
}
const percent = (value) => (!known(value) ? DASH : `${+(value * 100).toFixed(value && Math.abs(value) < 0.1 ? 1 : 0)}%`);
function clock(seconds) {
  if (!known(seconds)) return DASH;
  if (Math.abs(seconds) < 1) return seconds ? `${+(seconds * 1000).toPrecision(3)} ms` : "0 s";
  if (seconds < 60) return `${+seconds.toFixed(2)} s`;
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${pad(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${pad(Math.floor((whole % 86400) / 3600))}h`;
}
const bytes = (value) => (known(value) ? `${short(value)}B` : DASH);
const formatOf = (unit) => ({ share: percent, s: clock, bytes })[unit] ?? short;
const colour = (name) => `var(--${name})`;
// The canvas knows no variables: what one stands for now, in this theme.
const tintNow = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

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
  const large = Math.max(...values.map(Math.abs)) >= 1000;
  return (value) => (large || decimals > 3 ? short(value) : value.toFixed(decimals));
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

// Call once, when the element is about to be seen.
function whenSeen(host, act) {
  const eye = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    eye.disconnect();
    act();
  }, { rootMargin: "300px" });
  eye.observe(host);
}

const legend = (entries) => html("div", { class: "legend" }, ...entries.map(([name, tint, shape]) =>
  html("span", {}, html("i", { "--c": tint, class: shape ?? "" }), name)));

// Buttons of which one is chosen; returns the element and a function that marks one.
function switcher(label, options, chosen, choose) {
  const buttons = options.map(([key, text, title]) => html("button", {
    type: "button", title: title ?? null, "aria-pressed": String(key === chosen),
    onclick: () => { mark(key); choose(key); },
  }, text));
  const mark = (key) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === key)));
  return [html("div", { class: "switch", role: "group", "aria-label": label }, ...buttons), mark];
}

// At most once in so many milliseconds, and never lost.
function atMostEvery(ms, act) {
  let due = 0, timer = null;
  return () => {
    if (timer) return;
    timer = setTimeout(() => { timer = null; due = performance.now() + ms; act(); }, Math.max(due - performance.now(), 0));
  };
}
