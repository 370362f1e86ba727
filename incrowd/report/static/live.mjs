// Keeps a page as its server says it is: sections are swapped in place, and what a reader has opened stays open.

const state = document.querySelector("#live");
const { version, layout, live, away, over } = state.dataset;
let seen = version;

function say(text, kind) {
  if (state.textContent !== text) state.textContent = text;
  state.dataset.state = kind;
}

const opened = (section) => [...section.querySelectorAll("details")].map((one) => one.open);
const figures = (section) => [...section.querySelectorAll("figure")];
const cursor = (figure) => [...figure.querySelectorAll("tr[data-x]")].findIndex((row) => row.classList.contains("here"));
const scrolls = (section) => [...section.querySelectorAll(".scroll, table, pre")].map((one) => [one.scrollLeft, one.scrollTop]);

function swap(id, html) {
  const section = document.querySelector(`#${CSS.escape(id)} > .content`);
  if (!section) { location.reload(); return; }
  const open = opened(section), at = figures(section).map(cursor), moved = scrolls(section);
  const focusable = () => [...section.querySelectorAll("a, button, summary, [tabindex]")];
  const focus = focusable().indexOf(document.activeElement);
  section.innerHTML = html; // the server's own markup: whatever it holds of runs is escaped there, and no script in it runs
  section.querySelectorAll("details").forEach((one, place) => { if (open[place] !== undefined) one.open = open[place]; });
  section.querySelectorAll(".scroll, table, pre").forEach((one, place) => {
    if (moved[place]) [one.scrollLeft, one.scrollTop] = moved[place];
  });
  figures(section).forEach((figure, place) => {
    const row = at[place] >= 0 && figure.querySelectorAll("tr[data-x]")[at[place]];
    if (row) figure.dispatchEvent(new CustomEvent("read", { detail: row }));
  });
  if (focus >= 0) focusable()[focus]?.focus({ preventScroll: true });
}

function watch() {
  const source = new EventSource(`events?layout=${encodeURIComponent(layout)}&seen=${encodeURIComponent(seen)}`);
  source.addEventListener("sections", ({ data, lastEventId }) => {
    for (const [id, html] of Object.entries(JSON.parse(data))) swap(id, html);
    seen = lastEventId;
  });
  source.addEventListener("standing", ({ data }) => {
    const { is, trouble } = JSON.parse(data);
    say([is === "over" ? over : live, trouble].filter(Boolean).join(" · "), trouble ? "trouble" : is);
  });
  source.addEventListener("reload", () => { source.close(); location.reload(); });
  source.addEventListener("error", () => {
    say(away, "away");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 2000);
  });
}

watch();
