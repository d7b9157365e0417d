// Which chart shows what. Names, descriptions and what is healthy come from the source's list of figures.

const PARTS = [["trainer/drift_staleness", "staleness", "train"], ["trainer/drift_cache", "old caches", "update"], ["trainer/drift_cutoffs", "cut-offs", "eval"],
  ["trainer/drift_numerics", "numerics", "generate"], ["trainer/drift_tokens", "tokens that do not match", "bad"], ["trainer/drift_unexplained", "not explained", "wait"]];

const CHARTS = {
  Learning: [{ names: ["trainer/signal_share"], floor: 0, ceiling: 1 }, { names: ["solved"], floor: 0 }],
  Staleness: [
    { names: ["staleness_max", "staleness_mean"], labels: ["oldest token", "mean"], tints: ["wait", "train"], title: "Over the run", unit: "versions", floor: 0, bound: true,
      says: "How many versions old the trained tokens were: the oldest, and the mean.", healthy: "The mean near 1 in an asynchronous run, the oldest never above the bound." },
    { names: ["trainer/masked_tokens"], floor: 0 },
  ],
  Drift: [
    { names: PARTS.map(([name]) => name), labels: PARTS.map(([, label]) => label), tints: PARTS.map(([, , tint]) => tint), stack: true, floor: 0, title: "Drift by cause", unit: "nats a token",
      says: "How far the policy that sampled the tokens is from the one being trained, and what each part comes from.",
      healthy: "Below 0.01 most of the time, nearly all of it by staleness." },
    { names: ["trainer/effective_samples"], ceiling: 1 }, { names: ["trainer/engine_mismatch"], floor: 0 }, { names: ["trainer/kept_share"], ceiling: 1 },
    { names: ["trainer/behavior_capped_share"], floor: 0 }, { names: ["trainer/cache_error"], floor: 0, tints: ["update"] },
  ],
  Speed: [
    { names: ["tokens_per_s"], floor: 0 },
    { names: ["engine_idle_share", "trainer_idle_share"], labels: ["engines", "trainer"], tints: ["generate", "train"], title: "Idle", unit: "share of a step", floor: 0, ceiling: 1,
      says: "Who had nothing to do, and for how much of each step.", healthy: "One of the two near 0: that one is the bottleneck, as it should be. Both high: judging, or the weights' way, holds the run back." },
    { names: ["step_s"], floor: 0 },
    { names: ["update_s", "update_pause_s", "first_token_s"], labels: ["until engines have them", "engines stand still", "first token after"], tints: ["update", "bad", "generate"], title: "New weights", unit: "a step", floor: 0,
      says: "What bringing the engines a new version costs: how long it takes, how long they stand still for it, how long until they sample with it.", healthy: "Small beside the time of a step; the pause is milliseconds." },
    { names: ["running", "waiting"], labels: ["answers in the making", "judged groups that wait"], tints: ["generate", "train"], title: "In flight", unit: "at the end of a step", floor: 0,
      says: "Answers that engines work on, and judged groups that wait for the trainer.", healthy: "Level. Many that wait grow old; none in the making means that engines wait." },
    { names: ["cache_hit_share"], floor: 0, ceiling: 1 }, { names: ["trainer/kept_caches"], floor: 0, ceiling: 1, tints: ["generate"] }, { names: ["trainer/mfu"], floor: 0 },
  ],
  Answers: [
    { names: ["answer_tokens_mean"], floor: 0, tints: ["generate"] }, { names: ["truncated_share"], floor: 0, ceiling: 1, tints: ["generate"] },
    { family: "dropped/", floor: 0 }, { family: "judgements/", without: ["judgements/ok"], floor: 0, title: "Judgements that were not ok" },
  ],
  Agents: [
    { names: ["agents/turns_mean", "agents/branches_mean"], labels: ["turns", "branches"], tints: ["generate", "train"], title: "Turns and branches", unit: "a member, mean", floor: 0,
      says: "How often the policy speaks in a conversation, and how many samples that becomes.", healthy: "As many turns as the task needs; one branch where conversations are only added to." },
    { family: "agents/sessions/", floor: 0 }, { family: "agents/forks/", floor: 0 }, { names: ["agents/reread_tokens"], floor: 0 },
  ],
  Trainer: [
    { names: ["trainer/loss"] }, { names: ["trainer/entropy"], floor: 0 }, { names: ["trainer/grad_norm"], floor: 0 }, { names: ["trainer/clip_share"], floor: 0, ceiling: 1 },
    { names: ["trainer/lr"], floor: 0 }, { names: ["trainer/reference_kl"], floor: 0 }, { names: ["trainer/value_loss"], floor: 0 },
  ],
};
const TINTS = ["generate", "train", "update", "eval", "bad", "both", "judge", "agents"];

// What is drawn of a chart's figures now: those that were reported and that vary.
function seriesOf(chart, columns, metrics) {
  const names = chart.names ?? Object.keys(columns).filter((name) => name.startsWith(chart.family) && !chart.without?.includes(name));
  return names.filter((name) => columns[name]?.some(chart.stack ? (value) => value > 1e-9 : known)).map((name) => {
    const place = names.indexOf(name), metric = metricOf(metrics, name);
    return { name: chart.labels?.[place] ?? (chart.family ? name.slice(chart.family.length).replaceAll("_", " ") : metric?.title ?? name), key: name, values: columns[name],
      tint: chart.tints?.[place] ?? (chart.names && names.length === 1 ? "train" : TINTS[place % TINTS.length]), format: formatOf(metric?.unit) };
  });
}
const metricOf = (metrics, name) => metrics[name] ?? Object.entries(metrics).find(([key]) => key.endsWith("*") && name.startsWith(key.slice(0, -1)))?.[1];
const varies = (values) => { const seen = values.filter(known); return seen.length === 1 ? seen[0] !== 0 : seen.some((value) => value !== seen[0]); };

// A chart with its title, its newest value, and what it shows; `state` has columns, axis, range, smooth.
function figure(chart, state, metrics, extras = {}) {
  const metric = metricOf(metrics, chart.names?.[0] ?? chart.family) ?? {};
  const host = html("div", { class: "chart" }), now = html("b", {}), key = html("div", { class: "keys" });
  const says = chart.says ?? metric.says ?? "", healthy = chart.healthy ?? metric.healthy ?? "";
  const box = html("figure", { hidden: "", "data-chart": chart.names?.[0] ?? chart.family }, html("figcaption", {}, html("span", { class: "title" }, chart.title ?? metric.title ?? chart.names[0]),
    html("span", { class: "unit" }, chart.unit ?? (metric.unit === "s" ? "" : metric.unit ?? "")), now, key), host,
    html("p", { class: "says" }, says, ...(healthy ? [" ", html("span", { class: "healthy" }, html("b", {}, "Healthy: "), healthy)] : [])));
  const draw = curveChart(host, { height: extras.height ?? 170, label: `${chart.title ?? metric.title ?? ""}. ${says}`, onzoom: state.zoom,
    read: () => ({ ...xOf(state), series: seriesOf(chart, state.columns, metrics), smooth: state.smooth, floor: chart.floor, ceiling: chart.ceiling, stack: chart.stack,
      lines: chart.bound && known(state.bound) ? [{ y: state.bound, text: `bound ${state.bound}`, tint: "bad" }] : [], marks: state.marks(), ...(extras.read?.() ?? {}) }) });
  return { box, refresh() {
    const series = seriesOf(chart, state.columns, metrics), wanted = extras.always ? true : series.some((s) => varies(s.values));
    box.hidden = !wanted;
    if (!wanted) return false;
    now.textContent = series.length === 1 ? series[0].format(series[0].values.findLast(known)) : "";
    key.replaceChildren(...(series.length > 1 ? legend(series.map((s) => [s.name, colour(s.tint)])).children : []));
    draw();
    return true;
  } };
}

// The parts of drift as shares of the whole, over the last steps, with what to do about each.
function driftShares(columns, metrics) {
  const last = (name) => (columns[name] ?? []).slice(-50).filter(known), mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(values.length, 1);
  const whole = mean(last("trainer/drift")), parts = PARTS.map(([name, label, tint]) => ({ name, label, tint, nats: mean(last(name)) })).filter(({ nats }) => nats > 0.004 * whole);
  if (!(whole > 0)) return null;
  const share = ({ nats }) => nats / whole, sum = parts.reduce((total, part) => total + share(part), 0);
  return html("figure", { class: "shares", "data-chart": "drift-shares" }, html("figcaption", {}, html("span", { class: "title" }, "What drift comes from"), html("span", { class: "unit" }, "share, in the last steps"), html("b", {}, `${short(whole)} nats`)),
    html("div", { class: "stack", role: "img", "aria-label": parts.map((part) => `${part.label} ${percent(share(part))}`).join(", ") }, ...parts.map((part) => html("i", { "--c": colour(part.tint), "--w": share(part) }))),
    html("ul", {}, ...parts.sort((a, b) => b.nats - a.nats).map((part) => html("li", {}, html("i", { "--c": colour(part.tint) }), html("b", {}, percent(share(part))), ` ${part.label}. `, html("span", {}, metricOf(metrics, part.name)?.healthy ?? "")))),
    html("p", { class: "says" }, `The parts add up to ${percent(sum)} of the whole.`));
}

const AXES = { step: "step", time: "time_s", tokens: "tokens" };
function xOf(state) {
  const columns = state.columns, x = columns[AXES[state.axis]] ?? [], each = state.each;
  return { x, axis: state.axis, zoomed: state.range !== null,
    titleOf: (i) => `${each > 1 ? `steps ${columns.step[i] - each + 1} to ${columns.step[i]}` : `step ${columns.step[i]}`}, ${clock(columns.time_s[i])}` };
}
