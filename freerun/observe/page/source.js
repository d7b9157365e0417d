// Where the page's data comes from: the server that watches the runs, or, in a report, the page itself.
// Both answer the same questions; what went wrong is an Error whose message can be shown.

async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = new URLSearchParams(given).toString();
  let answer;
  try {
    answer = await fetch(words ? `${path}?${words}` : path);
  } catch {
    throw new Error("the watching process does not answer: is `freerun watch` still running?");
  }
  const type = answer.headers.get("content-type") ?? "";
  if (!type.includes("json")) throw new Error((await answer.text()).slice(0, 300) || `the answer was ${answer.status}`);
  const said = await answer.json();
  if (said?.error) throw new Error(said.error);
  return said;
}

function liveSource() {
  const of = (run) => `/api/runs/${encodeURIComponent(run)}`;
  return {
    isLive: true,
    describe: () => ask("/api/metrics"),
    runs: () => ask("/api/runs"),
    overview: (run) => ask(of(run)),
    curves: (run, query) => ask(`${of(run)}/curves`, query),
    timeline: (run, query) => ask(`${of(run)}/timeline`, query),
    samples: (run, filter) => ask(`${of(run)}/samples`, filter),
    sample: (run, id) => ask(`${of(run)}/samples/${id}`),
    task: (run, task) => ask(`${of(run)}/task`, { task }),
    compare: (runs) => ask("/api/compare", { runs: runs.join(",") }),
    // Calls `told` with what changed, and `lost(true)` while the watching process is away. Returns how to stop.
    watch(run, told, lost) {
      const events = new EventSource(`/api/events${run ? `?run=${encodeURIComponent(run)}` : ""}`);
      events.onmessage = (event) => told(JSON.parse(event.data));
      events.onopen = () => lost(false);
      events.onerror = () => lost(true);
      return () => events.close();
    },
  };
}

// A report has some of the samples, the whole timeline as a screen shows it, and a stretch of it in detail.
function reportSource(data) {
  const later = (value) => Promise.resolve(value);
  const within = (row, { text, reward_min, reward_max, truncated, staleness_min, prompt, task, branch, fate, step_min, step_max }) =>
    (!text || data.samples.records[row.id].text.toLowerCase().includes(text.toLowerCase())
      || data.samples.records[row.id].turns.some((turn) => turn.text.toLowerCase().includes(text.toLowerCase())))
    && (!reward_min || row.reward >= +reward_min) && (!reward_max || (known(row.reward) && row.reward <= +reward_max))
    && (!truncated || row.truncated) && (!staleness_min || row.staleness_max >= +staleness_min)
    && (!prompt || data.samples.records[row.id].prompt.toLowerCase().includes(prompt.toLowerCase()))
    && (!task || row.task === task) && (!branch || row.branches > 1) && (!fate || row.fate === fate)
    && (!step_min || row.step >= +step_min) && (!step_max || row.step <= +step_max);
  return {
    isLive: false,
    describe: () => later(data.described),
    overview: () => later(data.overview),
    curves: () => later(data.curves),
    // As finely as is there, unless that is more than a screen can show.
    timeline: (_, { from, to } = {}) => {
      const { whole, detail } = data.timeline;
      if (from === undefined) return later(detail);
      if (from < detail.from - 1e-6 || to > detail.to + 1e-6) return later(whole);
      const rows = detail.rows.map((row) => ({ ...row, bars: row.bars.filter((bar) => bar[1] >= from && bar[0] <= to) }));
      return later(rows.reduce((sum, row) => sum + row.bars.length, 0) > 3000 ? whole : { ...detail, rows });
    },
    samples: (_, filter) => {
      const found = data.samples.rows.filter((row) => within(row, filter));
      return later({ rows: found, total: found.length, more: false, recorded: data.samples.recorded });
    },
    sample: (_, id) => later(data.samples.records[id]),
    task: (_, task) => later({ task, rows: data.samples.rows.filter((row) => row.task === task) }),
    watch: () => () => {},
  };
}

const source = byId("data") ? reportSource(JSON.parse(byId("data").textContent)) : liveSource();
