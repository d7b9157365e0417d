// Samples one at a time: the prompt, the reference, and the answer's tokens coloured by who sampled them or how likely.

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

function samples(all) {
  const list = byId("samples-list"), detail = byId("samples-detail");
  const chosen = { when: all.late.length ? "late" : "early", colour: "version", index: 0 };

  const rewards = [...all.early, ...all.late].map((s) => s.reward).filter(known);
  const best = Math.max(...rewards), worst = Math.min(...rewards);
  const tone = (reward) => (best === worst || !known(reward) ? "" : reward === best ? "best" : reward === worst ? "worst" : "");

  function drawList() {
    list.replaceChildren(...all[chosen.when].map((s, i) => html("li", {}, html("button", {
      type: "button", "aria-pressed": String(i === chosen.index), onclick: () => { chosen.index = i; drawList(); drawDetail(); } },
      html("span", { class: `reward ${tone(s.reward)}` }, known(s.reward) ? `reward ${short(s.reward)}` : "not judged"),
      html("span", { class: "from" }, `step ${s.step}, ${s.length} tokens`),
      html("span", { class: "peek" }, plain(s.prompt).slice(0, 160) || s.task)))));
  }

  function drawDetail() {
    const s = all[chosen.when][chosen.index];
    detail.scrollTop = 0;
    if (!s) { detail.replaceChildren(html("p", { class: "note" }, "No sample here.")); return; }
    const versions = [...new Set(s.versions)].sort((a, b) => a - b);
    const tint = (i) => chosen.colour === "version"
      ? versionTint(versions.indexOf(s.versions[i]), versions.length) : surpriseTint(s.logprobs[i]);
    const fact = (name, value) => html("span", {}, `${name} `, html("b", {}, String(value)));
    const ended = { stop: "it stopped by itself", length: "cut off by the length limit", abort: "cancelled" }[s.finish] ?? s.finish;
    const answer = html("div", { class: "prose" },
      ...(s.tokens.length ? s.tokens.map((text, i) => html("span", { "data-i": i, "--c": tint(i) }, text)) : [s.text || "(an empty answer)"]));
    answer.addEventListener("pointermove", (event) => {
      const i = event.target.dataset?.i;
      if (i === undefined) { hideTip(); return; }
      const p = s.logprobs[i], v = s.versions[i];
      showTip(event, visibleText(s.tokens[i]), [["log-probability", known(p) ? p.toFixed(3) : DASH],
        ["probability", known(p) ? percent(Math.exp(p)) : DASH], ["policy version", known(v) ? `v${v}` : DASH],
        ["staleness", known(v) ? String(s.version - v) : DASH], ["token", `${+i + 1} of ${s.length}`]]);
    });
    answer.addEventListener("pointerleave", hideTip);
    const chips = chosen.colour === "version"
      ? versions.map((v, i) => html("span", { class: "chip" }, html("i", { "--c": versionTint(i, versions.length) }),
        `v${v}, ${s.versions.filter((x) => x === v).length} tokens`))
      : [0, -1, -3, -5].map((p) => html("span", { class: "chip" }, html("i", { "--c": surpriseTint(p) }), `${percent(Math.exp(p))} likely`));
    detail.replaceChildren(
      html("div", { class: "facts" }, fact("reward", known(s.reward) ? short(s.reward) : "not judged"), fact("step", s.step),
        fact("trained at version", s.version), fact("group", s.group), fact("task", s.task), html("span", {}, ended)),
      html("h3", {}, "Prompt"), html("div", { class: "prose given" }, s.prompt || "(empty)"),
      ...(s.answer === null ? [] : [html("h3", {}, "Reference answer"), html("div", { class: "prose given" }, s.answer)]),
      html("h3", {}, "Answer", ...chips), answer,
      ...(s.length > s.tokens.length && s.tokens.length ? [html("p", { class: "note" }, `The first ${s.tokens.length} of ${s.length} tokens.`)] : []));
  }

  const turn = (key) => (value) => { chosen[key] = value; if (key === "when") { chosen.index = 0; drawList(); } drawDetail(); };
  const ends = [["early", "Early"], ["late", "Late"]].filter(([key]) => all[key].length);
  switcher(byId("samples-when"), ends, chosen.when, turn("when"));
  switcher(byId("samples-colour"), [["version", "Policy version"], ["surprise", "Log-probability"]], chosen.colour, turn("colour"));
  drawList();
  drawDetail();
}
