// What a screen reader and a keyboard need, in the manner of axe: a list of what is wrong.
const wrong = [], seen = (one) => one.getClientRects().length > 0;
const labelled = (one) => (one.getAttribute("aria-labelledby") || "").split(" ")
  .map((id) => document.getElementById(id)?.textContent || "").join("");
const name = (one) => (one.getAttribute("aria-label") || one.textContent || labelled(one)).trim();
if (!document.documentElement.lang) wrong.push("no language");
if (!document.title) wrong.push("no title");
if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
let level = 1;
for (const one of document.querySelectorAll("h1, h2, h3, h4")) {
  const next = Number(one.tagName[1]);
  if (next > level + 1) wrong.push(`h${level} is followed by ${one.outerHTML.slice(0, 60)}`);
  level = next;
}
for (const one of document.querySelectorAll("button, a, summary, [tabindex='0'], svg[role=img], section, [role]")) {
  if (seen(one) && !name(one)) wrong.push(`no name: ${one.outerHTML.slice(0, 80)}`);
}
for (const one of document.querySelectorAll("img")) {
  if (!one.alt || !one.naturalWidth) wrong.push("a picture without words, or none");
}
for (const one of document.querySelectorAll("table")) {
  if (!one.querySelector("thead th[scope=col]")) wrong.push("a table without headings");
}
for (const one of document.querySelectorAll("button, a, summary")) {
  const box = one.getBoundingClientRect();
  if (!seen(one) || one.matches(".skip")) continue;
  if (box.width < 24 || box.height < 20) wrong.push(`small: ${one.outerHTML.slice(0, 60)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
if (new Set(ids).size !== ids.length) wrong.push("an id twice");
return wrong;
