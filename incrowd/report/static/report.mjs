// The page can be seen, printed and read without this. It adds a switch for colours, a cursor that reads the values of a
// figure, and tables that are open when the page is printed.

const root = document.documentElement;

const themes = document.querySelector(".themes");
if (themes) {
  const kept = () => { try { return localStorage.getItem("incrowd-theme"); } catch { return null; } };
  const choose = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
    for (const button of themes.children) {
      button.setAttribute("aria-pressed", String(button.dataset.theme === (root.dataset.theme ?? "auto")));
    }
    try { localStorage.setItem("incrowd-theme", theme); } catch { /* a file may keep nothing */ }
  };
  themes.addEventListener("click", ({ target }) => { if (target.dataset.theme) choose(target.dataset.theme); });
  choose(kept() ?? "auto");
  themes.hidden = false;
}

const rowsOf = (figure) => [...figure.querySelectorAll("tr[data-x]")];

function read(figure, row) {
  const output = figure.querySelector("output.read"), svg = figure.querySelector("svg[data-plot]");
  const names = [...figure.querySelectorAll("thead th")].map((one) => one.textContent);
  const values = [...row.children].map((one) => one.textContent);
  output.textContent = values.map((value, place) => value && `${names[place]}: ${value}`).filter(Boolean).join(" · ");
  output.hidden = false;
  figure.querySelector("tr.here")?.classList.remove("here");
  row.classList.add("here");
  if (!svg) return;
  let line = svg.querySelector(".cursor");
  if (!line) {
    line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", "cursor");
    svg.append(line);
  }
  const [top, bottom] = svg.dataset.plot.split(" ");
  for (const [name, value] of [["x1", row.dataset.x], ["x2", row.dataset.x], ["y1", top], ["y2", bottom]]) {
    line.setAttribute(name, value);
  }
}

function forget(figure) {
  figure.querySelector(".cursor")?.remove();
  figure.querySelector("tr.here")?.classList.remove("here");
  const output = figure.querySelector("output.read");
  if (output) { output.hidden = true; output.textContent = ""; }
}

document.addEventListener("keydown", (event) => {
  const figure = event.target.closest?.("figure");
  if (!figure || event.target !== figure || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") { forget(figure); return; }
  const rows = rowsOf(figure), step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
  if (!step || !rows.length) return;
  event.preventDefault();
  const at = rows.findIndex((row) => row.classList.contains("here"));
  const next = at < 0 ? (step > 0 && step < 1e9 ? 0 : step < 0 && step > -1e9 ? rows.length - 1 : step < 0 ? 0 : rows.length - 1) : at + step;
  read(figure, rows[Math.max(0, Math.min(rows.length - 1, next))]);
});

document.addEventListener("pointermove", ({ target, clientX }) => {
  const svg = target.closest?.("svg[data-plot]"), figure = svg?.closest("figure");
  if (!figure) return;
  const box = svg.getBoundingClientRect(), x = (clientX - box.left) / box.width * svg.viewBox.baseVal.width;
  let nearest = null;
  for (const row of rowsOf(figure)) {
    if (!nearest || Math.abs(row.dataset.x - x) < Math.abs(nearest.dataset.x - x)) nearest = row;
  }
  if (nearest) read(figure, nearest);
}, { passive: true });

addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not([open], .behind)")) { one.open = true; one.dataset.opened = ""; }
});
addEventListener("afterprint", () => {
  for (const one of document.querySelectorAll("details[data-opened]")) { one.open = false; delete one.dataset.opened; }
});
