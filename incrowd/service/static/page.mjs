// The page of a service: asks /status.json every two seconds and shows it. Nothing is asked of anybody else.
const EVERY = 2_000, SHOWN = 12, KEPT = 150;
const at = (id) => document.getElementById(id);
const made = (name, more = {}, ...inside) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(more)) key === "class" ? (one.className = value) : one.setAttribute(key, value);
  one.append(...inside);
  return one;
};
const digits = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
const whole = new Intl.NumberFormat("en"), near = new Intl.NumberFormat("en", digits), far = new Intl.NumberFormat("en", { ...digits, notation: "scientific" });
// Numbers are noisy: one may be so near to zero that its zeros would not fit beside the others.
const three = (value) => (value === 0 || (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6) ? near : far).format(value);
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const rateOf = (rate) => (rate >= 100 ? whole.format(Math.round(rate)) : new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format(rate));
const text = (id, value) => { if (at(id).textContent !== value) at(id).textContent = value; };

const REASONS = {
  unlike: "Unlike an honest answer", late: "Too late", forged: "Without a ticket of ours", not_weights: "Not a number for each weight",
  other_specification: "To another specification", too_large: "Too large", not_admitted: "Without an admission token", day_over: "More than the day's of an account",
};
const rates = [], scores = [];
let held = false, all = false, latest = null;

function line(id, values, { low = 0, high = Math.max(...values, 1e-9) } = {}) {
  const svg = at(id), name = (kind) => document.createElementNS("http://www.w3.org/2000/svg", kind);
  const x = (i) => (240 * i) / Math.max(1, values.length - 1), y = (value) => 46 - (44 * (value - low)) / Math.max(1e-9, high - low);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(Math.min(high, Math.max(low, value))).toFixed(1)}`);
  const ground = name("line"), area = name("polygon"), path = name("polyline");
  for (const [key, value] of [["x1", 0], ["x2", 240], ["y1", 47], ["y2", 47], ["class", "ground"]]) ground.setAttribute(key, value);
  area.setAttribute("points", [`0,47`, ...points, `${x(values.length - 1)},47`].join(" "));
  path.setAttribute("points", points.join(" "));
  svg.replaceChildren(...(values.length > 1 ? [area, ground, path] : [ground]));
}

function promise({ epsilon, privacy, size, promise: said }) {
  const best = Math.min(1, Math.ceil(1e4 / (1 + Math.exp(-epsilon)) - 1e-9) / 1e4), each = privacy === "feature";
  text("promise-lead", "Every device keeps its examples, and adds noise to what it has learnt before anything leaves it. "
    + "Nobody is trusted with more than that: not this server, and not whoever listens on the way.");
  at("odds").hidden = false;
  at("odds-bar").style.width = `${100 * best}%`;
  text("odds-text", `Someone who sees ${each ? `one of the ${whole.format(size)} numbers of a contribution` : "a whole contribution"} and has to say which of two tables a device has `
    + `is right at most ${percent.format(best)} of the time. A coin is right half of the time.`);
  text("promise-more", `${said}`);
}

function turned(reasons) {
  const rows = Object.entries(reasons).filter(([, count]) => count > 0).sort(([, a], [, b]) => b - a);
  const shown = rows.map(([name, count]) => made("tr", {}, made("th", { scope: "row" }, REASONS[name] ?? name.replaceAll("_", " ")), made("td", { class: "number" }, whole.format(count))));
  at("turned").tBodies[0].replaceChildren(...(shown.length ? shown : [made("tr", {}, made("td", { class: "quiet" }, "None so far."))]));
}

function spread({ measured, theory }) {
  const longest = 1.15 * Math.max(measured, theory), ratio = theory > 0 ? measured / theory : 0;
  at("spread").replaceChildren(three(measured), " ", made("small", {}, `of ${three(theory)}`));
  at("spread-bullet").hidden = !(longest > 0);
  at("spread-bullet").querySelector(".bar").style.width = `${(100 * measured) / longest}%`;
  at("spread-bullet").querySelector(".mark").style.left = `${(100 * theory) / longest}%`;
  text("spread-note", ratio > 1.5
    ? `The instances are ${three(ratio)} times as far apart as noise alone makes them: look at who contributes.`
    : `How far the instances are apart, and (the mark) what noise alone makes of it in the long run: ${percent.format(ratio)} of that.`);
}

function score(found) {
  const card = at("public").closest("section");
  card.hidden = !found;
  if (!found) return;
  text("public-title", found.measure === "accuracy" ? "Right on public examples" : "Explained of public examples");
  text("public", percent.format(found.value));
  scores.push(found.value);
  line("public-line", scores.splice(0, scores.length - KEPT) && scores, { low: 0, high: 1 });
  text("public-note", `${found.measure === "accuracy" ? "Right answers on" : "Variance explained of"} ${whole.format(found.rows)} examples that anybody may see; the line is since this page was opened.`);
}

function weights(list, size) {
  const table = at("weights"), largest = Math.max(...list.map(({ weight }) => Math.abs(weight)), 1e-12);
  table.classList.toggle("single", new Set(list.map(({ output }) => output)).size <= 1);
  const rows = list.slice(0, all ? list.length : SHOWN).map(({ feature, output, weight }) => {
    const bar = made("span", { class: weight < 0 ? "against" : "for" });
    bar.style.width = `${(50 * Math.abs(weight)) / largest}%`;
    const signed = `${weight < 0 ? "−" : "+"}${three(Math.abs(weight))}`;
    return made("tr", {}, made("th", { scope: "row" }, feature), made("td", { class: "output" }, output),
      made("td", { class: "bars" }, made("div", { class: "signed", "aria-hidden": "true" }, bar)), made("td", { class: "number" }, signed));
  });
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = !rows.length;
  at("more").hidden = list.length <= SHOWN;
  at("more").setAttribute("aria-expanded", String(all));
  text("more", all ? "Show fewer" : `Show all ${whole.format(list.length)}`);
  text("weights-note", !rows.length ? "The weights of this model have no names to show."
    : `${list.length < size ? `The ${whole.format(list.length)} largest of ${whole.format(size)} weights` : `All ${whole.format(size)} weights`}, averaged over the pool. They hold noise, too: small ones may be nothing else.`);
}

function adversaries(list) {
  if (!list.length) return;
  const facts = (one) => [
    ["Epsilon", one.epsilon === null ? "no bound" : three(one.epsilon)],
    ...(one.delta ? [["Delta", one.delta.toExponential(0)]] : []),
    ...(one.expected_loss === undefined ? [] : [["Expected loss", one.expected_loss === null ? "–" : three(one.expected_loss)]]),
  ].map(([name, value]) => made("div", { class: "fact" }, made("dt", {}, name), made("dd", {}, value)));
  const sentence = (said) => said.charAt(0).toUpperCase() + said.slice(1);
  const cards = list.map((one) => made("article", { class: "card who" }, made("h3", {}, sentence(one.adversary.replace(/^I+, /, ""))),
    made("p", {}, `Sees ${one.sees}.`), made("dl", {}, ...facts(one)), made("p", { class: "quiet" }, `${sentence(one.meaning)}.`)));
  at("adversaries").replaceChildren(...cards);
}

function show(status) {
  document.title = `${status.name} · incrowd`;
  text("name", status.name);
  text("fingerprint", status.fingerprint.slice(0, 16));
  at("fingerprint").title = status.fingerprint;
  state(status.trouble ? "trouble" : status.paused ? "paused" : "open", status.trouble ? "The store is away" : status.paused ? "Paused by its operator" : "Open");
  text("rate", rateOf(status.updates_per_second));
  rates.push(status.updates_per_second);
  line("rate-line", rates.splice(0, rates.length - KEPT) && rates);
  text("accepted", whole.format(status.accepted));
  text("accepted-note", `In a pool of ${whole.format(status.instances)} instances of ${whole.format(status.size)} weights.`
    + (status.admission === "open" ? " Admission is open: anybody who can reach this service can move the model as far as they like." : "")
    + (status.repeated ? ` ${whole.format(status.repeated)} came twice and count once.` : ""));
  promise(status);
  turned(status.turned_away);
  score(status.public);
  spread(status.spread);
  weights(status.weights, status.size);
  if (!latest) adversaries(status.adversaries); // they depend on the specification alone
  latest = status;
}

function state(name, said) {
  at("state").dataset.state = name;
  text("state-text", said);
}

async function look() {
  if (held || document.hidden) return;
  try {
    const reply = await fetch("/status.json", { cache: "no-store", credentials: "omit" });
    if (!reply.ok) throw new Error(String(reply.status));
    show(await reply.json());
  } catch {
    state("trouble", "This service does not answer");
  }
}

at("hold").addEventListener("click", () => {
  held = !held;
  at("hold").setAttribute("aria-pressed", String(held));
  text("hold", held ? "Go on updating" : "Stop updating");
  look();
});
at("more").addEventListener("click", () => { all = !all; if (latest) weights(latest.weights, latest.size); });
document.addEventListener("visibilitychange", look);
text("command", `incrowd contribute --server ${location.origin} --database FILE.sqlite`);
await look();
setInterval(look, EVERY);
