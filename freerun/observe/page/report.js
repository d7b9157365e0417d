// Which chart shows what. A section without data is left out.

const c = data.curves, some = c.step.length > 0;
const show = (id, wanted) => { byId(id).hidden = !wanted; return wanted; };
const stepTitle = (i) => (c.each > 1 ? `steps ${c.step[i] - c.each + 1} to ${c.step[i]}` : `step ${c.step[i]}`) + `, ${clock(c.time_s[i])}`;
const overSteps = { x: c.step, title: stepTitle };

function figure(host, title, unit, series, spec = {}) {
  const chart = html("div", { class: "chart" }), key = html("div", { class: "legend" });
  if (series.length > 1) legend(key, series.map((s) => [s.name, s.tint]));
  host.append(html("figure", {}, html("figcaption", {}, title, html("span", {}, unit), series.length > 1 ? key : null), chart));
  curves(chart, () => ({ ...overSteps, series, label: title, ...spec }));
}

if (show("reward", some || data.evals.length > 0)) {
  const reach = Math.max(Math.round(c.step.length / 50), 2);
  const curve = (name, values, tint) => [{ name, values, tint, faint: c.step.length > 12 },
    ...(c.step.length > 12 ? [{ name: `${name}, smoothed`, values: smooth(values, reach), tint, quiet: true }] : [])];
  const series = [...curve("all judged", c.reward_mean_all, colour("generate")), ...curve("trained on", c.reward_mean, colour("train"))];
  let axis = "step";
  const points = () => data.evals.map((e) => ({ x: axis === "step" ? e.step : e.time_s, y: e.pass_at_1, low: e.low, high: e.high, tint: colour("eval"),
    title: `evaluation at step ${e.step}`, rows: [["pass@1", short(e.pass_at_1), colour("eval")], ["95% interval", `${short(e.low)} to ${short(e.high)}`],
      ...(e.k > 1 ? [[`pass@${e.k}`, short(e.pass_at_k)]] : []), ["tasks", String(e.tasks)], ["cut off", percent(e.truncated_share)]] }));
  const again = curves(byId("reward-chart"), () => ({ ...overSteps, height: 330, series, points: points(), label: "reward", xName: c.each > 1 ? `training step (each point: mean of ${c.each})` : "training step", yName: "mean reward",
    ...(some ? {} : { x: data.evals.map((e) => e.step) }), ...(axis === "time" ? { x: some ? c.time_s : data.evals.map((e) => e.time_s), isTime: true, xName: "time since the start" } : {}) }));
  legend(document.querySelector('[data-for="reward"]'), [...(some ? [["all judged answers", colour("generate")], ["trained on", colour("train")]] : []),
    ...(data.evals.length ? [["evaluation pass@1, 95% interval", colour("eval"), "dot"]] : [])]);
  switcher(byId("reward-axis"), [["step", "By step"], ["time", "By time"]], axis, (key) => { axis = key; again(); });
}

if (show("timeline", data.timeline !== null)) {
  const t = data.timeline, chart = lanes(byId("timeline-chart"), t), has = (kind) => t.rows.some((row) => row.kind === kind);
  legend(document.querySelector('[data-for="timeline"]'), [["generating", "generate"], ["training", "train"], ["both at once", "both"],
    ["evaluating", "eval"], ["waiting", "wait"]].filter(([, kind]) => has(kind)).map(([name, kind]) => [name, colour(kind), "block"])
    .concat(t.rows.some((row) => row.updates?.length) ? [["weight update", colour("update"), "tick"]] : []));
  const short_run = t.window[0] === t.wall[0] && t.window[1] === t.wall[1];
  const mark = switcher(byId("timeline-zoom"), [...(short_run ? [] : [["middle", "Mid-run"]]), ["whole", "Whole run"], ["in", "+", "zoom in"], ["out", "−", "zoom out"]],
    short_run ? "whole" : "middle", (key) => {
      if (key === "in") chart.zoom(0.5);
      else if (key === "out") chart.zoom(2);
      else { chart.look(...(key === "whole" ? t.wall : t.window)); mark(key); }
    });
  chart.onmove((extent) => mark(extent === "whole" ? "whole" : null));
  byId("timeline-note").textContent = (t.engines_left_out ? `${t.engines_left_out} more engines are counted, not drawn. ` : "")
    + (t.detail ? `Only from ${clock(t.detail[0])} to ${clock(t.detail[1])} is every span drawn; elsewhere those that nearly touch are one.` : "");
}

if (show("staleness", data.histogram.length > 0)) {
  histogram(byId("staleness-histogram"), data.histogram, data.bound);
  legend(document.querySelector('[data-for="staleness"]'), [["max", colour("wait")], ["mean", colour("train")]]);
  curves(byId("staleness-curve"), () => ({ ...overSteps, height: 230, floor: 0, label: "staleness over the run",
    series: [{ name: "max", values: c.staleness_max, tint: colour("wait") }, { name: "mean", values: c.staleness_mean, tint: colour("train") }],
    line: data.bound === null ? null : { y: data.bound, text: `bound ${data.bound}`, tint: colour("bad") } }));
}

if (show("throughput", some)) {
  const host = byId("throughput-charts");
  figure(host, "Trained tokens", "tokens/s", [{ name: "tokens/s", values: c.tokens_per_s, tint: colour("train") }], { floor: 0 });
  figure(host, "Idle", "share of a step", [{ name: "engines", values: c.engine_idle, tint: colour("generate") },
    { name: "trainer", values: c.trainer_idle, tint: colour("train") }], { floor: 0, ceiling: 1, format: percent });
  figure(host, "In flight", "at the end of a step", [{ name: "samples running", values: c.running, tint: colour("generate") },
    { name: "groups waiting", values: c.waiting, tint: colour("train") }], { floor: 0 });
  figure(host, "Weight update", "engine pause a step", [{ name: "pause", values: c.update_pause_s, tint: colour("update") }], { floor: 0, format: clock });
  figure(host, "Answer length", "tokens, mean", [{ name: "tokens", values: c.answer_tokens_mean, tint: colour("generate") }], { floor: 0 });
  figure(host, "Cut off by the length limit", "share of trained answers", [{ name: "cut off", values: c.truncated_share, tint: colour("generate") }], { floor: 0, ceiling: 1, format: percent });
  if (c.cache_hit_share.some(known))
    figure(host, "Prompts found in the cache", "share of their tokens", [{ name: "found", values: c.cache_hit_share, tint: colour("generate") }], { floor: 0, ceiling: 1, format: percent });
  if (c.turns_mean.some(known))
    figure(host, "Turns and branches", "a member, mean", [{ name: "turns", values: c.turns_mean, tint: colour("generate") },
      { name: "branches", values: c.branches_mean, tint: colour("train") }], { floor: 0 });
}

const title = (key) => names[key] ?? key[0].toUpperCase() + key.slice(1).replaceAll("_", " ");
const names = { loss: "Loss", entropy: "Entropy", grad_norm: "Gradient norm", kl: "KL", clip_share: "Clipped share", lr: "Learning rate" };
const units = { entropy: "nats a token", kl: "nats a token", clip_share: "share of tokens" };
if (show("trainer", Object.keys(c.trainer).length > 0))
  for (const [key, values] of Object.entries(c.trainer))
    figure(byId("trainer-charts"), title(key), units[key] ?? "", [{ name: title(key), values, tint: colour("train") }],
      { height: 140, ...(key.endsWith("_share") ? { format: percent, floor: 0, ceiling: 1 } : {}) });

if (show("samples", data.samples.recorded > 0)) samples(data.samples);
