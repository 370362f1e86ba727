// Asks the page's own server for the page, and swaps what has changed; what a reader has opened stays open.

let seen = "";

function swap(old, fresh) {
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  fresh.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? one.open; });
  if (old.innerHTML !== fresh.innerHTML) old.replaceChildren(...fresh.childNodes);
}

async function look() {
  try {
    const reply = await fetch("/", { headers: { "if-none-match": seen }, cache: "no-store" });
    if (reply.status === 200) {
      seen = reply.headers.get("etag");
      const fresh = new DOMParser().parseFromString(await reply.text(), "text/html"); // no script in it runs
      const ids = (one) => [...one.querySelectorAll("section")].map(({ id }) => `#${id}`).join(" ");
      const parts = ids(document) === ids(fresh) ? ids(fresh).split(" ") : ["nav", "main"];
      for (const part of ["#live", ...parts]) swap(document.querySelector(part), fresh.querySelector(part));
    } else if (reply.status === 304 && !document.querySelector("#live").matches(".away")) return;
    document.querySelector("#live").classList.remove("away");
  } catch {
    document.querySelector("#live").textContent = "No connection; trying again";
    document.querySelector("#live").classList.add("away");
    seen = "";
  }
}

setInterval(look, 1000);
