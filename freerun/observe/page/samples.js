// Every sample of a run: searched and filtered, one at a time, token by token. What models wrote is text, never markup.

const SHOWN_TOKENS = 4000, SHOWN_TURNS = 60, SHOWN_CHARACTERS = 20000;
const visibleText = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(nothing)";
// A prompt without its chat template's marks.
const plain = (prompt) => prompt.replace(/<\|[^|>]*\|>(system|user|assistant)?/g, " ").replace(/\s+/g, " ").trim();
const rewardText = (reward) => (known(reward) ? short(reward) : "not judged");

// Oldest version cool, newest warm; neighbours differ enough to see the border.
function versionTint(index, count) {
  const hue = count < 2 ? 212 : 212 + (index / (count - 1)) * (count < 4 ? 120 : 190);
  return `hsl(${hue % 360} 75% 55% / ${index % 2 ? 0.32 : 0.2})`;
}
// A token taken for granted has no tint; a surprise is red.
const surpriseTint = (logprob) => (known(logprob) ? `hsl(8 80% 55% / ${(Math.min(-logprob / 5, 1) * 0.55).toFixed(3)})` : "none");
// Grown likelier since it was sampled: green; less likely: red.
function ratioTint(log) {
  if (!known(log)) return "none";
  return `hsl(${log > 0 ? 150 : 8} 70% 45% / ${(Math.min(Math.abs(log), 1) * 0.55).toFixed(3)})`;
}
const logRatio = (s, i) => (known(s.before?.[i]) && known(s.logprobs[i]) ? s.before[i] - s.logprobs[i] : null);

const COLOURINGS = {
  version: { label: "Version", tint: (s, versions) => (i) => versionTint(versions.indexOf(s.versions[i]), versions.length),
    chips: (s, versions) => versions.map((v, i) => [versionTint(i, versions.length), `v${v}, ${plural(s.versions.filter((x) => x === v).length, "token")}`]) },
  logprob: { label: "Probability", tint: (s) => (i) => surpriseTint(s.logprobs[i]),
    chips: () => [0, -1, -3, -5].map((p) => [surpriseTint(p), `${percent(Math.exp(p))} likely`]) },
  ratio: { label: "Ratio", tint: (s) => (i) => ratioTint(logRatio(s, i)),
    chips: () => [[-0.7, "half as likely when trained on"], [0, "as likely"], [0.7, "twice as likely"]].map(([log, text]) => [ratioTint(log), text]) },
};

// The sampled tokens from start to end, the first of so many, each with what is known of it in the tooltip.
function tokensOf(s, tint, start, end) {
  const spans = (from, to) => s.tokens.slice(from, to).map((text, i) => html("span", { "data-i": from + i, "--c": tint(from + i) }, text));
  const cut = Math.min(end, start + SHOWN_TOKENS), prose = html("div", { class: "prose" }, ...spans(start, cut));
  prose.addEventListener("pointermove", (event) => {
    const i = event.target.dataset?.i;
    if (i === undefined) { hideTip(); return; }
    const p = s.logprobs[i], v = s.versions[i], log = logRatio(s, i);
    showTip(event, visibleText(s.tokens[i]), [["log-probability", known(p) ? p.toFixed(3) : DASH],
      ["probability", known(p) ? percent(Math.exp(p)) : DASH],
      ...(known(log) ? [["trainer's, before the step", s.before[i].toFixed(3)], ["ratio", short(Math.exp(log))]] : []),
      ["policy version", known(v) ? `v${v}` : DASH], ["staleness", known(v) ? String(s.version - v) : DASH],
      ["token", `${i - start + 1} of ${end - start}`]]);
  });
  prose.addEventListener("pointerleave", hideTip);
  if (cut === end) return [prose];
  const more = html("button", { type: "button", class: "more", onclick: () => { prose.append(...spans(cut, end)); more.remove(); } },
    `Show the other ${end - cut} tokens`);
  return [prose, more];
}

function longText(text, kind) {
  const prose = html("div", { class: `prose ${kind}` }, text.slice(0, SHOWN_CHARACTERS));
  if (text.length <= SHOWN_CHARACTERS) return [prose];
  const more = html("button", { type: "button", class: "more", onclick: () => { prose.textContent = text; more.remove(); } },
    `Show the other ${text.length - SHOWN_CHARACTERS} characters`);
  return [prose, more];
}

const referenceOf = (s) => (s.answer === null ? [] : [html("h3", {}, "Reference answer"), ...longText(String(s.answer), "given")]);

function answerOf(s, tint, chips) {
  return [
    html("h3", {}, "Prompt"), ...longText(s.prompt || "(empty)", "given"), ...referenceOf(s), html("h3", {}, "Answer", ...chips),
    ...(s.tokens.length ? tokensOf(s, tint, 0, s.tokens.length) : longText(s.text || "(an empty answer)", "")),
  ];
}

function callOf(call) {
  return html("div", { class: "call" }, html("b", {}, "calls ", html("code", {}, call.name || "(no name)")),
    html("span", { class: "id" }, call.id), ...longText(call.arguments, ""));
}

function turnOf(s, turn, number, tint) {
  const isTool = turn.role === "tool", many = turn.end - turn.start;
  const who = turn.sampled ? "policy" : turn.role === "assistant" ? "assistant, not sampled" : turn.role;
  const facts = [
    ...(many ? [`${plural(many, "token")}: ${turn.versions.map(([v, count]) => `v${v} × ${count}`).join(", ")}`] : []),
    ...(turn.sampled && !many && s.branches > 1 ? ["trained on in another branch"] : []),
    ...(isTool && turn.result_of ? [`answers ${turn.result_of}`] : []),
  ];
  const said = many ? tokensOf(s, tint, turn.start, turn.end)
    : [...(turn.reasoning ? longText(turn.reasoning, "given thoughts") : []),
      ...(turn.text || !turn.calls.length ? longText(turn.text || "(nothing)", isTool ? "" : "given") : [])];
  return html("li", { class: `turn ${turn.sampled ? "policy" : isTool ? "tool" : "other"}` },
    html("h4", {}, html("b", {}, isTool ? "tool's result" : who), html("span", {}, `turn ${number}`), ...facts.map((fact) => html("span", {}, fact)),
      ...(known(turn.reward) ? [html("span", { class: "turn-reward" }, `reward ${short(turn.reward)}`)] : [])),
    ...said, ...turn.calls.map(callOf));
}

function conversationOf(s, tint, chips) {
  const turns = html("ol", { class: "turns" });
  const add = (from, to) => s.turns.slice(from, to).forEach((turn, i) => turns.append(turnOf(s, turn, from + i + 1, tint)));
  add(0, SHOWN_TURNS);
  const left = s.turns.length - SHOWN_TURNS;
  const more = html("button", { type: "button", class: "more", onclick: () => { add(SHOWN_TURNS, s.turns.length); more.remove(); } }, `Show the other ${plural(left, "turn")}`);
  return [html("h3", {}, "Conversation", ...chips), turns, ...(left > 0 ? [more] : []), ...referenceOf(s)];
}

// The beginning of an answer, or what stands around what was looked for, which is marked.
function peekOf(row) {
  const [from, to] = row.match ?? [0, 0], text = row.excerpt;
  return [html("i", {}, plain(row.prompt ?? "").slice(-60)), " ", text.slice(Math.max(from - 24, 0), from), ...(to > from ? [html("mark", {}, text.slice(from, to))] : []), text.slice(to, to + 90)];
}

function samplesView(host, run, isGoing) {
  const filter = {}, chosen = { id: null, colouring: "version" };
  let rows = [], more = false, next = null, asked = 0, record = null;
  const list = html("ol", { class: "list" }), detail = html("article", { class: "detail", tabindex: "0" }), count = html("span", { class: "count", role: "status" });
  const history = html("div", { class: "history", hidden: "" });

  const field = (name, label, attributes) => html("label", {}, html("span", {}, label),
    html("input", { name, ...attributes, oninput: (event) => { filter[name] = event.target.type === "checkbox" ? (event.target.checked ? "true" : "") : event.target.value.trim(); searchSoon(); } }));
  const fates = html("select", { name: "fate", onchange: (event) => { filter.fate = event.target.value; searchSoon(); } },
    ...[["", "any"], ["trained", "trained on"], ["no_signal", "dropped: no signal"], ["too_stale", "dropped: too stale"], ["judge_failed", "dropped: not judged"]]
      .map(([value, text]) => html("option", { value }, text)));
  const search = html("input", { type: "search", name: "text", placeholder: "Search in answers and conversations", "aria-label": "Search in answers and conversations",
    oninput: (event) => { filter.text = event.target.value; searchSoon(); } });
  const form = html("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault(), onreset: () => { for (const key of Object.keys(filter)) delete filter[key]; setTimeout(searchSoon); } },
    search, field("reward_min", "Reward from", { type: "number", step: "any" }), field("reward_max", "to", { type: "number", step: "any" }),
    field("step_min", "Steps from", { type: "number", min: 0 }), field("step_max", "to", { type: "number", min: 0 }),
    field("staleness_min", "Staleness from", { type: "number", min: 0 }), field("prompt", "Prompt has", { type: "text", size: 12 }), field("task", "Task", { type: "text", size: 12 }),
    html("label", {}, html("span", {}, "Fate"), fates), field("truncated", "cut off", { type: "checkbox" }), field("branch", "several branches", { type: "checkbox" }),
    html("button", { type: "reset", class: "plain" }, "Clear"));
  const [colours] = switcher("Colour of tokens", Object.entries(COLOURINGS).map(([key, { label }]) => [key, label]), chosen.colouring,
    (key) => { chosen.colouring = key; drawDetail(); });
  host.replaceChildren(form, html("div", { class: "bar" }, count, colours), history, html("div", { class: "browser" }, list, detail));

  // Only the newest question's answer is shown.
  async function find(before = null, reading = false) {
    const mine = ++asked, began = performance.now();
    try {
      const found = await source.samples(run, { ...filter, before });
      if (mine !== asked) return;
      rows = before ? [...rows, ...found.rows] : found.rows;
      more = found.more;
      next = found.next_before;
      const said = found.total_is_exact === false ? `at least ${found.total.toLocaleString("en")}` : found.total?.toLocaleString("en");
      if (!before) count.textContent = `${said} sample${found.total === 1 ? "" : "s"}${Object.values(filter).some(Boolean) ? " found" : ""}`
        + (found.recorded > found.total && !Object.values(filter).some(Boolean) ? ` of ${found.recorded.toLocaleString("en")}: run.db has all, and freerun watch shows them` : "");
      host.dataset.searchMs = (performance.now() - began).toFixed(1);
      drawList();
      if (!before && !(reading && record) && (chosen.id === null || !rows.some((row) => row.id === chosen.id))) choose(rows[0]?.id ?? null, false);
    } catch (error) {
      if (mine !== asked) return;
      count.textContent = error.message;
      list.replaceChildren();
      detail.replaceChildren(note("There is nothing to show."));
    }
  }
  const searchSoon = atMostEvery(150, () => find());

  function drawList() {
    const rewards = rows.map((row) => row.reward).filter(known), best = Math.max(...rewards), worst = Math.min(...rewards);
    const tone = (reward) => (best === worst || !known(reward) ? "" : reward === best ? "best" : reward === worst ? "worst" : "");
    list.replaceChildren(...rows.map((row) => html("li", {}, html("button", {
      type: "button", "data-id": row.id, "aria-pressed": String(row.id === chosen.id), onclick: () => choose(row.id) },
      html("span", { class: `reward ${tone(row.reward)}` }, rewardText(row.reward)),
      html("span", { class: "from" }, `step ${row.step}, ${row.turns ? plural(row.turns, "turn") : plural(row.length, "token")}${row.truncated ? ", cut off" : ""}`),
      html("span", { class: "peek" }, ...[row.branches > 1 ? `branch ${row.branch + 1} of ${row.branches}` : null, row.fate !== "trained" ? row.fate.replaceAll("_", " ") : null]
        .filter(Boolean).map((text) => html("b", {}, `${text} `)), ...peekOf(row))))),
      ...(more ? [html("li", {}, html("button", { type: "button", class: "more", onclick: () => find(next) }, "More"))] : []));
    if (!rows.length) list.replaceChildren(html("li", {}, note("No sample is like that.")));
  }

  async function choose(id, focus = true) {
    chosen.id = id;
    for (const button of list.querySelectorAll("button[data-id]")) button.setAttribute("aria-pressed", String(+button.dataset.id === id));
    if (id === null) { record = null; detail.replaceChildren(note("Choose a sample.")); return; }
    try {
      record = await source.sample(run, id);
      if (chosen.id === id) drawDetail();
      if (focus && innerWidth < 700) detail.scrollIntoView({ behavior: "smooth", block: "start" });
    } catch (error) { detail.replaceChildren(note(error.message)); }
  }

  function drawDetail() {
    const s = record;
    if (!s) return;
    detail.scrollTop = 0;
    const versions = [...new Set(s.versions)].sort((a, b) => a - b), colouring = COLOURINGS[chosen.colouring];
    const fact = (name, value) => html("span", {}, `${name} `, html("b", {}, String(value)));
    const ended = { stop: "it stopped by itself", length: "cut off by the length limit", abort: "cancelled" }[s.finish] ?? s.finish;
    const chips = colouring.chips(s, versions).slice(0, 12).map(([tint, text]) => html("span", { class: "chip" }, html("i", { "--c": tint }), text));
    const hasRatio = s.before?.some(known);
    if (chosen.colouring === "ratio" && !hasRatio) chips.push(html("span", { class: "chip" }, "The trainer's log-probabilities of this sample are not known."));
    detail.replaceChildren(
      html("div", { class: "facts" }, fact("reward", rewardText(s.reward)), fact("step", s.step), fact("version", s.version), fact("group", s.group),
        html("span", {}, "task ", html("button", { type: "button", class: "link", title: "this task over the run", onclick: () => showTask(s.task) }, s.task)),
        ...(known(s.member) ? [fact("member", s.member)] : []), ...(s.branches > 1 ? [fact("branch", `${s.branch + 1} of ${s.branches}`)] : []),
        ...(s.fate && s.fate !== "trained" ? [fact("dropped", s.fate.replaceAll("_", " "))] : []), html("span", {}, ended)),
      ...(s.turns.length ? conversationOf : answerOf)(s, colouring.tint(s, versions), chips));
  }

  // The answers to one task over the run: a dot each.
  async function showTask(task) {
    const found = await source.task(run, task).catch((error) => ({ rows: [], error: error.message }));
    const chart = html("div", { class: "chart" });
    const close = html("button", { type: "button", class: "plain", onclick: () => { history.hidden = true; } }, "Close");
    history.replaceChildren(html("div", { class: "bar" }, html("h3", {}, `Task ${task} over the run: ${plural(found.rows.length, "answer")}`), close), chart);
    history.hidden = false;
    history.scrollIntoView({ behavior: "smooth", block: "nearest" });
    if (!found.rows.length) { chart.append(note(found.error ?? "Nothing is known of it.")); return; }
    drawn(chart, (width) => {
      const height = 130, rewards = found.rows.map((row) => row.reward).filter(known), low = Math.min(...rewards, 0), high = Math.max(...rewards, 1);
      const steps = found.rows.map((row) => row.step), first = Math.min(...steps), last = Math.max(...steps, first + 1);
      const X = (step) => 40 + ((step - first) / (last - first)) * (width - 60), Y = (reward) => 14 + (1 - (reward - low) / (high - low || 1)) * (height - 44);
      const spread = new Map();
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `rewards of task ${task} over the run` });
      for (const t of ticks(low, high, 3)) root.append(svg("line", { class: "grid", x1: 34, x2: width, y1: Y(t), y2: Y(t) }), svg("text", { x: 28, y: Y(t) + 4, "text-anchor": "end" }, short(t)));
      for (const row of found.rows) {
        if (!known(row.reward)) continue;
        const key = `${row.step}/${row.reward}`, nth = spread.get(key) ?? 0;
        spread.set(key, nth + 1);
        root.append(svg("circle", { cx: X(row.step) + (nth % 8) * 3, cy: Y(row.reward) - Math.floor(nth / 8) * 3, r: 4, class: "dot", fill: colour("generate"), tabindex: 0, "fill-opacity": 0.7,
          onclick: () => choose(row.id), onpointermove: (event) => showTip(event, `step ${row.step}`, [["reward", rewardText(row.reward)], ["tokens", String(row.length)], ["answer", plain(row.excerpt).slice(0, 60)]]), onpointerleave: hideTip }));
      }
      for (const t of ticks(first, last, width / 120)) root.append(svg("text", { x: X(t), y: height - 6, "text-anchor": "middle" }, `step ${short(t)}`));
      chart.replaceChildren(root);
    });
  }

  // j and k go through the list, wherever the focus is, unless one writes.
  const byKey = (event) => {
    if (event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); search.scrollIntoView({ block: "center" }); return; }
    const place = rows.findIndex((row) => row.id === chosen.id), next = { j: place + 1, k: place - 1 }[event.key];
    if (next !== undefined && rows[next]) { choose(rows[next].id, false); list.querySelector(`[data-id="${rows[next].id}"]`)?.scrollIntoView({ block: "nearest" }); }
  };
  addEventListener("keydown", byKey);
  whenSeen(host, () => find());
  return {
    // While nobody filters or reads on, the newest are shown.
    refresh: () => { if (isGoing() && rows.length <= 50 && asked) find(null, true); },
    close: () => removeEventListener("keydown", byKey),
  };
}
