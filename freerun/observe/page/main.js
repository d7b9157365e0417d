// Which page is shown, the theme, and what happens when something goes wrong.

const root = byId("page");
let leave = () => {}, opening = 0;

async function open() {
  const mine = ++opening, place = location.hash.replace(/^#\/?/, "");
  const [kind, names = ""] = place.split("/");
  leave();
  leave = () => {};
  themeChanged.length = 0;
  hideTip();
  try {
    const decoded = names.split(",").filter(Boolean).map(decodeURIComponent);
    const page = !source.isLive ? runPage(root, "") : kind === "run" ? runPage(root, decoded[0] ?? "") : kind === "compare" ? comparePage(root, decoded) : runsPage(root);
    document.title = !source.isLive ? document.title : kind === "run" ? `${decoded[0]} · Freerun` : kind === "compare" ? "Side by side · Freerun" : "Freerun";
    const left = await page;
    if (mine === opening) leave = left; else left();
  } catch (error) {
    if (mine !== opening) return;
    root.replaceChildren(html("header", { class: "top" }, html("p", { class: "eyebrow" }, source.isLive ? html("a", { href: "#/" }, "Runs") : "Freerun"), html("h1", {}, "Nothing to show"), html("p", { class: "outcome", role: "alert" }, error.message)));
  }
  document.body.dataset.ready = String(mine);
}

const THEMES = { auto: "◐", light: "☀", dark: "☾" };
const theme = html("button", { type: "button", id: "theme", onclick: () => {
  const order = Object.keys(THEMES), next = order[(order.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % order.length];
  try { localStorage.setItem("freerun-theme", next); } catch { /* a private window keeps nothing */ }
  wear(next);
} });
function wear(name) {
  if (name === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  theme.textContent = THEMES[name];
  theme.setAttribute("aria-label", `Colours: ${name}`);
  theme.title = `Colours: ${name}`;
  themeChanged.forEach((draw) => draw());
}
let kept = "auto";
try { kept = localStorage.getItem("freerun-theme") ?? "auto"; } catch { /* as above */ }
document.body.append(theme);
wear(kept in THEMES ? kept : "auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themeChanged.forEach((draw) => draw()));
addEventListener("hashchange", open);
open();
