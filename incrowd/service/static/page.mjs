// The page of a service: asks /status.json every two seconds and shows it. Nothing is asked of anybody else.
const EVERY = 2_000, SHOWN = 20;
const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en"), percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1 });
const three = (value) => (value === null ? "no bound" : String(Number(value.toPrecision(3))));
const text = (id, value) => { if (at(id).textContent !== value) at(id).textContent = value; };

// A row of text for each list; the first cell is the row's header.
function rows(id, lists) {
  at(id).tBodies[0].replaceChildren(...lists.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell, place) => {
      const one = document.createElement(place ? "td" : "th");
      if (!place) one.scope = "row";
      one.textContent = cell;
      return one;
    }));
    return row;
  }));
}

function show(status) {
  document.title = `${status.name} · incrowd`;
  text("name", status.name);
  text("fingerprint", status.fingerprint);
  text("state", status.trouble ? "The store is away" : status.paused ? "Paused by its operator" : "Open");
  const best = Math.min(1, Math.ceil(1e3 / (1 + Math.exp(-status.epsilon)) - 1e-9) / 1e3);
  const each = status.privacy === "feature" ? `one of the ${whole.format(status.size)} numbers of a contribution` : "a whole contribution";
  text("odds", `Someone who sees ${each} and has to say which of two tables a device has is right at most ${percent.format(best)} of the time. A coin is right half of the time.`);
  text("promise", status.promise);
  rows("figures", [
    ["Accepted", whole.format(status.accepted)],
    ["Accepted a second", three(status.updates_per_second)],
    ["Pool", `${whole.format(status.instances)} instances of ${whole.format(status.size)} weights`],
    ["Spread of the instances (of noise alone)", `${three(status.spread.measured)} (${three(status.spread.theory)})`],
    ["Came twice, counts once", whole.format(status.repeated)],
    ...Object.entries(status.turned_away).map(([reason, count]) => [`Turned away: ${reason.replaceAll("_", " ")}`, whole.format(count)]),
  ]);
  text("admission", status.admission === "open" ? "Admission is open: anybody who can reach this service can move the model as far as they like." : "");
  rows("weights", status.weights.slice(0, SHOWN).map(({ feature, output, weight }) => [feature, output, three(weight)]));
  rows("adversaries", status.adversaries.map((one) => [one.adversary, one.sees, three(one.epsilon), one.meaning]));
}

async function look() {
  if (document.hidden) return;
  try {
    const reply = await fetch("/status.json", { cache: "no-store", credentials: "omit" });
    if (!reply.ok) throw new Error(String(reply.status));
    show(await reply.json());
  } catch {
    text("state", "This service does not answer");
  }
}

document.addEventListener("visibilitychange", look);
text("command", `incrowd contribute --server ${location.origin} --database FILE.sqlite`);
await look();
setInterval(look, EVERY);
