// Samples one at a time: an answer with its prompt and reference, or a conversation turn by turn. Sampled tokens are
// coloured by who sampled them or how likely they were.

const visibleText = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(nothing)";

// A prompt without its chat template's marks.
const plain = (prompt) => prompt.replace(/<\|[^|>]*\|>(system|user|assistant)?/g, " ").replace(/\s+/g, " ").trim();

// Oldest version cool, newest warm; neighbours differ enough to see the border.
function versionTint(index, count) {
  const hue = count < 2 ? 212 : 212 + (index / (count - 1)) * (count < 4 ? 120 : 190);
  return `hsl(${hue % 360} 75% 55% / ${index % 2 ? 0.3 : 0.2})`;
}
// A token taken for granted has no tint; a surprise is red.
const surpriseTint = (logprob) => (known(logprob) ? `hsl(8 80% 55% / ${(Math.min(-logprob / 5, 1) * 0.55).toFixed(3)})` : "none");

const note = (text) => html("p", { class: "note" }, text);
const plural = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
const rewardText = (reward) => (known(reward) ? `reward ${short(reward)}` : "not judged");
const branchText = (s) => (s.branches > 1 ? `branch ${s.branch + 1} of ${s.branches}` : "");

// The sampled tokens from start to end, the first of so many, each with what is known of it in the tooltip.
function tokensOf(s, tint, start, end, many) {
  const prose = html("div", { class: "prose" },
    ...s.tokens.slice(start, end).map((text, i) => html("span", { "data-i": start + i, "--c": tint(start + i) }, text)));
  prose.addEventListener("pointermove", (event) => {
    const i = event.target.dataset?.i;
    if (i === undefined) { hideTip(); return; }
    const p = s.logprobs[i], v = s.versions[i];
    showTip(event, visibleText(s.tokens[i]), [["log-probability", known(p) ? p.toFixed(3) : DASH],
      ["probability", known(p) ? percent(Math.exp(p)) : DASH], ["policy version", known(v) ? `v${v}` : DASH],
      ["staleness", known(v) ? String(s.version - v) : DASH], ["token", `${i - start + 1} of ${many}`]]);
  });
  prose.addEventListener("pointerleave", hideTip);
  return prose;
}

function answerOf(s, tint, chips) {
  return [
    html("h3", {}, "Prompt"), html("div", { class: "prose given" }, s.prompt || "(empty)"),
    ...referenceOf(s),
    html("h3", {}, "Answer", ...chips),
    s.tokens.length ? tokensOf(s, tint, 0, s.tokens.length, s.length) : html("div", { class: "prose" }, s.text || "(an empty answer)"),
    ...(s.length > s.tokens.length && s.tokens.length ? [note(`The first ${s.tokens.length} of ${s.length} tokens.`)] : []),
  ];
}

const referenceOf = (s) => (s.answer === null ? [] : [html("h3", {}, "Reference answer"), html("div", { class: "prose given" }, s.answer)]);

// A text that was cut for the page says by how much.
const cutText = ([text, left], kind) => [html("div", { class: `prose ${kind}` }, text),
  ...(left ? [note(`${left} more characters are in run.db.`)] : [])];

function callOf(call) {
  return html("div", { class: "call" }, html("b", {}, "calls ", html("code", {}, call.name || "(no name)")),
    html("span", { class: "id" }, call.id), ...cutText(call.arguments, ""));
}

function turnOf(s, turn, tint) {
  const isTool = turn.role === "tool";
  const who = turn.sampled ? "policy" : turn.role === "assistant" ? "assistant, not sampled" : turn.role;
  const facts = [
    ...(turn.num_tokens ? [`${plural(turn.num_tokens, "token")}: ${turn.versions.map(([v, count]) => `v${v} × ${count}`).join(", ")}`] : []),
    ...(turn.sampled && !turn.num_tokens && s.branches > 1 ? ["trained on in another branch"] : []),
    ...(isTool && turn.result_of ? [`answers ${turn.result_of}`] : []),
  ];
  const [start, end] = turn.tokens, left = turn.num_tokens - (end - start);
  const said = end > start
    ? [tokensOf(s, tint, start, end, turn.num_tokens), ...(left ? [note(`${left} more tokens are in run.db.`)] : [])]
    : [...(turn.reasoning[0] ? cutText(turn.reasoning, "given thoughts") : []),
      ...(turn.text[0] || !turn.calls.length ? cutText(turn.text[0] ? turn.text : ["(nothing)", 0], isTool ? "" : "given") : [])];
  return html("li", { class: `turn ${turn.sampled ? "policy" : isTool ? "tool" : "other"}` },
    html("h4", {}, html("b", {}, isTool ? "tool's result" : who), html("span", {}, `turn ${turn.number}`),
      ...facts.map((fact) => html("span", {}, fact)),
      ...(known(turn.reward) ? [html("span", { class: "turn-reward" }, `reward ${short(turn.reward)}`)] : [])),
    ...said, ...turn.calls.map(callOf));
}

function conversationOf(s, tint, chips) {
  const turns = [];
  s.turns.forEach((turn, i) => {
    const missing = turn.number - (i ? s.turns[i - 1].number : 0) - 1;
    if (missing) turns.push(html("li", { class: "gap" }, `${missing} more ${missing === 1 ? "turn is" : "turns are"} in run.db`));
    turns.push(turnOf(s, turn, tint));
  });
  return [html("h3", {}, "Conversation", ...chips), html("ol", { class: "turns" }, ...turns), ...referenceOf(s)];
}

function samples(all) {
  const list = byId("samples-list"), detail = byId("samples-detail");
  const chosen = { when: all.late.length ? "late" : "early", colour: "version", index: 0 };

  const rewards = [...all.early, ...all.late].map((s) => s.reward).filter(known);
  const best = Math.max(...rewards), worst = Math.min(...rewards);
  const tone = (reward) => (best === worst || !known(reward) ? "" : reward === best ? "best" : reward === worst ? "worst" : "");

  function drawList() {
    list.replaceChildren(...all[chosen.when].map((s, i) => html("li", {}, html("button", {
      type: "button", "aria-pressed": String(i === chosen.index), onclick: () => { chosen.index = i; drawList(); drawDetail(); } },
      html("span", { class: `reward ${tone(s.reward)}` }, rewardText(s.reward)),
      html("span", { class: "from" }, `step ${s.step}, ${s.num_turns ? plural(s.num_turns, "turn") : `${s.length} tokens`}`),
      html("span", { class: "peek" }, branchText(s) ? html("b", {}, `${branchText(s)} `) : null, plain(s.prompt).slice(0, 160) || s.task)))));
  }

  function drawDetail() {
    const s = all[chosen.when][chosen.index];
    detail.scrollTop = 0;
    if (!s) { detail.replaceChildren(note("No sample here.")); return; }
    const versions = [...new Set(s.versions)].sort((a, b) => a - b);
    const tint = (i) => chosen.colour === "version"
      ? versionTint(versions.indexOf(s.versions[i]), versions.length) : surpriseTint(s.logprobs[i]);
    const fact = (name, value) => html("span", {}, `${name} `, html("b", {}, String(value)));
    const ended = { stop: "it stopped by itself", length: "cut off by the length limit", abort: "cancelled" }[s.finish] ?? s.finish;
    const chips = chosen.colour === "version"
      ? versions.map((v, i) => html("span", { class: "chip" }, html("i", { "--c": versionTint(i, versions.length) }),
        `v${v}, ${s.versions.filter((x) => x === v).length} tokens`))
      : [0, -1, -3, -5].map((p) => html("span", { class: "chip" }, html("i", { "--c": surpriseTint(p) }), `${percent(Math.exp(p))} likely`));
    detail.replaceChildren(
      html("div", { class: "facts" }, fact("reward", known(s.reward) ? short(s.reward) : "not judged"), fact("step", s.step),
        fact("trained at version", s.version), fact("group", s.group), fact("task", s.task),
        ...(s.num_turns && known(s.member) ? [fact("member", s.member)] : []),
        ...(s.branches > 1 ? [fact("branch", `${s.branch + 1} of ${s.branches}`)] : []), html("span", {}, ended)),
      ...(s.num_turns ? conversationOf : answerOf)(s, tint, chips));
  }

  const turn = (key) => (value) => { chosen[key] = value; if (key === "when") { chosen.index = 0; drawList(); } drawDetail(); };
  const ends = [["early", "Early"], ["late", "Late"]].filter(([key]) => all[key].length);
  switcher(byId("samples-when"), ends, chosen.when, turn("when"));
  switcher(byId("samples-colour"), [["version", "Policy version"], ["surprise", "Log-probability"]], chosen.colour, turn("colour"));
  drawList();
  drawDetail();
}
