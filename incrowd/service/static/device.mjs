// A device in a browser: it keeps its examples, and answers a service with noise of its own, within its owner's limits.
//
//   import { openDevice } from "./device.mjs";
//   const device = await openDevice({ policy: { epsilon: 2, daily: 2, total: 20 } });
//   await device.add([{ opened: 1, sender: "friend", words: 120 }]);
//   const { reason, accepted } = await device.contribute("https://learn.example.org");
//
// Everything is in IndexedDB: examples, ledger, and the one answer that is paid for and has not arrived. One lock for
// all tabs; a charge is on disk before the noise is drawn; a service's word is data, bounded and read strictly.
import { Unusable, checked, columnsOf, gradientOf, misfit, piecesOf, repeatsOf, sizeOf } from "./learn.mjs";
import { answer, choosing, fitting, release, systemWords } from "./noise.mjs";

// The device will not do what it was asked to: nothing was spent and nothing left.
export class Refused extends Error { name = "Refused"; }
// The owner's limits do not allow it: nothing was spent and nothing left.
export class NoBudget extends Refused { name = "NoBudget"; }
// The service could not be reached, or did not answer as one. What was paid for waits.
export class ServiceFailed extends Error { name = "ServiceFailed"; }

export const POLICY = Object.freeze({
  unit: "model", // what the limits count: all numbers of a contribution together, or ("feature") each on its own
  epsilon: 2, // of one contribution
  daily: 2, // of those of a day
  total: 20, // of all time; fixed when the ledger is begun
  whole: null, // of one contribution, all numbers together, whatever the unit; null: ten times `epsilon`
  fields: null, // the columns that models may use; null: every column
  mostWeights: 100_000,
  mostExamples: 100,
  mostInstances: 1_000,
  mostWork: 4_000_000, // pieces of text to look at, were every text as long as any that is read
});
const SPECIFICATION_BYTES = 8_000_000, EXPLANATION_BYTES = 65_536, LARGEST = 1e30, DRAWS = 4;
const STORES = ["examples", "ledger", "outbox"];
const FINAL = new Set(["accepted", "repeated", "other_specification", "not_weights", "unlike"]);
const LATER = new Set(["not_admitted", "day_over"]); // the same answer waits
const AGAIN = new Set(["late", "forged"]); // a service that lost its pool has lost its key, too
const ROUNDING = 1 + 1e-12; // of sums, as of 3 times 0.1

export async function openDevice({ name = "incrowd", policy = {}, deadline = 60_000, pace = 10_000, now = () => new Date(), token = "" } = {}) {
  const limits = { ...POLICY, ...policy };
  for (const key of Object.keys(limits)) if (!(key in POLICY)) throw new Refused(`policy.${key}: there is no such limit`);
  for (const key of ["epsilon", "daily", "total", "mostWeights", "mostExamples", "mostInstances", "mostWork"])
    if (!(Number.isFinite(limits[key]) && limits[key] > 0)) throw new Refused(`policy.${key}: give a positive number`);
  if (limits.whole !== null && !(limits.whole > 0 && limits.whole < Infinity)) throw new Refused("policy.whole: give a positive number, or null");
  if (limits.unit !== "model" && limits.unit !== "feature") throw new Refused("policy.unit: model or feature");
  if (!globalThis.isSecureContext || !globalThis.crypto?.subtle || !navigator.locks || !navigator.storage?.persist)
    throw new Refused("a device needs a page that came over https, in a browser of today");
  let kept = false;
  try { kept = (await navigator.storage.persisted()) || (await navigator.storage.persist()); } catch { /* it is not */ }
  if (!kept && !token) throw new Refused("this browser may forget the ledger (a private window, or storage that it may clear): "
    + "give the operator's admission token, by which the service keeps the day's limit, or allow the page to store data for good");
  return new Device(await opened(`incrowd device ${name}`), name, Object.freeze(limits), { deadline, pace, now, token, kept });
}

class Device {
  #database; #lock; #policy; #deadline; #pace; #now; #token; #kept;
  constructor(database, name, policy, { deadline, pace, now, token, kept }) {
    this.#database = database; this.#lock = `incrowd device ${name}`; this.#policy = policy;
    this.#deadline = deadline; this.#pace = pace; this.#now = now; this.#token = token; this.#kept = kept;
  }

  close() { this.#database.close(); }

  // Examples: plain objects, a value a field. They stay here.
  add(rows) {
    return this.#transact(["examples"], "readwrite", ({ examples }) => { for (const row of rows) examples.add({ ...row }); });
  }

  forget() { return this.#transact(["examples"], "readwrite", ({ examples }) => examples.clear()); }

  // What was spent, what is allowed, and whether an answer waits: for the owner.
  async status() {
    let found;
    await this.#transact(STORES, "readonly", ({ examples, ledger, outbox }) => {
      const all = [examples.count(), ledger.get("spent"), outbox.count()];
      all[2].onsuccess = () => { found = all.map((one) => one.result); };
    });
    const [examples, spent, waiting] = found, { unit, epsilon, daily, total } = this.#policy;
    const today = spent && spent.day >= this.#today() ? spent.today : 0;
    return { examples, kept: this.#kept, waiting: waiting > 0, spent: spent?.total ?? 0, today, charges: spent?.charges ?? 0,
      limits: { unit, epsilon, daily, total: spent?.budget ?? total } };
  }

  // What the owner should know before the first contribution: whether a specification (its text) is allowed, what a
  // contribution costs, and what of the examples would not count. Nothing is spent, and no service learns of it.
  async check(text) {
    let asked, cost = null;
    const problems = [];
    try { asked = read(text); cost = this.#cost(asked); }
    catch (error) {
      if (!(error instanceof Refused)) throw error;
      problems.push(`refused: ${error.message}`);
      if (!asked) return { examples: 0, usable: 0, cost, problems };
    }
    const rows = await this.#rows(Infinity), counts = new Map(), names = new Set([asked.response, ...asked.terms.flat()]);
    const why = (row, name) => misfit(asked.fields[name], row[asked.fields[name].column ?? name]);
    for (const row of rows) for (const name of names) {
      const told = why(row, name), line = `${name} ${told}`;
      if (told) counts.set(line, (counts.get(line) ?? 0) + 1);
    }
    for (const [line, count] of counts) problems.push(`${count} of ${rows.length}: ${line}`);
    const usable = rows.filter((row) => !["is missing", "is no number", "is none of the levels"].includes(why(row, asked.response))).length;
    if (!usable) problems.push("no example has a response that counts: a contribution would be noise alone, and cost as much");
    return { examples: rows.length, usable, cost, problems };
  }

  // Draw, learn, pay, add noise and offer; what the service says to that. One at a time, over all tabs of the browser.
  contribute(service) {
    return navigator.locks.request(this.#lock, async () => {
      const asked = await this.#asked(service);
      let waiting = await this.#waiting();
      if (waiting && waiting.fingerprint !== asked.fingerprint) { // it was paid for, and nobody asks for it any more
        await this.#put(null);
        waiting = null;
      }
      let drawn = null;
      if (!waiting) {
        const cost = this.#cost(asked.specification);
        drawn = await this.#draw(service, asked);
        waiting = await this.#paid(asked, drawn, cost);
      }
      return this.#bring(service, asked, waiting, drawn);
    });
  }

  // The gradient first, then the charge, on disk; only then the noise.
  async #paid(asked, drawn, cost) {
    const { specification, fingerprint } = asked, whole = wholeOf(specification);
    const gradient = gradientOf(specification, drawn.weights, await this.#rows(specification.examples));
    await this.#charge(cost, fingerprint);
    const steps = release(whole, gradient, systemWords());
    return this.#put({ fingerprint, exponent: whole.exponent, steps, sent: null });
  }

  // What is paid for goes out until the service has said something final. A lost reply brings the same bytes again.
  async #bring(service, asked, waiting, drawn) {
    for (let draws = drawn ? 1 : 0; ; draws++) {
      if (!waiting.sent) {
        drawn ??= await this.#draw(service, asked);
        const row = littleEndian(answer(drawn.weights, waiting.steps, drawn.gamma, waiting.exponent));
        // Others may name the same direction from the same version: a mark tells these bytes from theirs.
        const mark = asked.specification.noise === "direction" ? hex(crypto.getRandomValues(new Uint8Array(8))) : "";
        waiting = await this.#put({ ...waiting, sent: { row, ticket: drawn.ticket + mark } });
      }
      if (drawn) await this.#paced(drawn.at);
      const reason = await this.#offer(service, asked.fingerprint, waiting.sent);
      if (FINAL.has(reason)) {
        await this.#put(null);
        return { reason, accepted: reason === "accepted" || reason === "repeated" };
      }
      if (LATER.has(reason)) return { reason, accepted: false };
      waiting = await this.#put({ ...waiting, sent: null }); // the same noise, on a newer instance
      drawn = null;
      if (draws >= DRAWS) throw new ServiceFailed("every answer came too late: it waits for another time");
    }
  }

  // Until a whole number of paces has gone since the draw: how long the work took would tell of the examples.
  #paced(since) {
    const left = this.#pace - ((performance.now() - since) % this.#pace);
    return this.#pace ? new Promise((done) => setTimeout(done, left)) : undefined;
  }

  #cost(asked) {
    const { fields, unit, epsilon, mostWeights, mostExamples, mostInstances, mostWork } = this.#policy, size = sizeOf(asked);
    if (fields) for (const column of columnsOf(asked))
      if (!fields.includes(column)) throw new Refused(`the field ${column} is not one that this device lets models use`);
    for (const [what, value, most] of [["weights", size, mostWeights], ["examples", asked.examples, mostExamples],
      ["instances", asked.instances, mostInstances], ["pieces of text", asked.examples * piecesOf(asked), mostWork]])
      if (!(value <= most)) throw new Refused(`${value} ${what} are more than this device allows, ${most}`);
    if (!wholeOf(asked)) throw new Refused("no whole numbers hold the noise that is asked for");
    const whole = asked.privacy === "feature" ? asked.epsilon * size : asked.epsilon;
    const alone = asked.bound === "norm" || asked.privacy === "feature" ? asked.epsilon : asked.epsilon / size;
    const cost = unit === "model" ? whole : asked.bound === "norm" ? alone : Math.min(whole, alone * repeatsOf(asked));
    if (!(cost > 0 && cost <= epsilon))
      throw new Refused(`a contribution would cost epsilon = ${cost} per ${unit}; this device allows ${epsilon}`);
    const most = this.#policy.whole ?? 10 * epsilon;
    if (!(whole <= most))
      throw new Refused(`all ${size} numbers together would cost epsilon = ${whole}; this device allows ${most}`);
    return cost;
  }

  // On disk when this returns; one transaction, so that no two can pass the limits together.
  async #charge(cost, fingerprint) {
    const { unit, daily, total } = this.#policy;
    let refused = null;
    await this.#transact(["ledger"], "readwrite", ({ ledger }, transaction) => {
      ledger.get("spent").onsuccess = (event) => {
        const before = event.target.result ?? { unit, budget: total, total: 0, day: "", today: 0, charges: 0 };
        const here = this.#today(), day = here > before.day ? here : before.day; // a clock put back brings no day back
        const today = (day === before.day ? before.today : 0) + cost, sum = before.total + cost;
        if (before.unit !== unit) refused = new Refused(`the ledger counts per ${before.unit}, not per ${unit}`);
        else if (!(before.budget <= total)) refused = new Refused(`the ledger was begun for ${before.budget}, not ${total}`);
        else if (!(sum <= before.budget * ROUNDING)) refused = new NoBudget(`all contributions would come to epsilon = ${sum}; the limit is ${before.budget}`);
        else if (!(today <= daily * ROUNDING)) refused = new NoBudget(`on ${day} this would come to epsilon = ${today}; the daily limit is ${daily}: wait for the next day`);
        if (refused) return transaction.abort();
        ledger.put({ ...before, total: sum, day, today, charges: before.charges + 1 }, "spent");
        ledger.add({ day, epsilon: cost, per: unit, specification: fingerprint });
      };
    }).catch((error) => { throw refused ?? error; });
  }

  // So many random examples at most, as plain objects.
  async #rows(most) {
    const rows = [];
    await this.#transact(["examples"], "readonly", ({ examples }) => {
      examples.getAllKeys().onsuccess = ({ target: { result: keys } }) => {
        for (const key of chosen(keys, most)) examples.get(key).onsuccess = (event) => rows.push(event.target.result);
      };
    });
    return rows;
  }

  async #waiting() {
    let found;
    await this.#transact(["outbox"], "readonly", ({ outbox }) => {
      outbox.get("answer").onsuccess = (event) => { found = event.target.result; };
    });
    return found ?? null;
  }

  // Keep an answer, on disk when this returns; null: it has arrived.
  async #put(answered) {
    await this.#transact(["outbox"], "readwrite", ({ outbox }) => (answered ? outbox.put(answered, "answer") : outbox.clear()));
    return answered;
  }

  #today() { return this.#now().toISOString().slice(0, 10); }

  // One transaction over some stores, done when it is on disk.
  #transact(names, mode, work) {
    return new Promise((done, failed) => {
      let transaction;
      try { transaction = this.#database.transaction(names, mode, { durability: "strict" }); }
      catch (error) { return failed(new Refused(`the browser's storage is closed: ${error.message}`)); }
      transaction.oncomplete = () => done();
      transaction.onabort = transaction.onerror = () => failed(new Refused(`the browser's storage failed: ${transaction.error?.message ?? "stopped"}`));
      try { work(Object.fromEntries(names.map((name) => [name, transaction.objectStore(name)])), transaction); }
      catch (error) { try { transaction.abort(); } catch { /* it has ended */ } failed(error); }
    });
  }

  async #asked(service) {
    const text = await this.#fetched(service, "/v1/specification", { most: SPECIFICATION_BYTES });
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", text.bytes));
    return { specification: read(new TextDecoder().decode(text.bytes)), fingerprint: hex(digest) };
  }

  async #draw(service, { specification, fingerprint }) {
    const size = sizeOf(specification), { bytes, headers } = await this.#fetched(service, "/v1/draw", { most: 4 * size });
    if (bytes.length !== 4 * size) throw new ServiceFailed("the service's instance is of another size");
    const view = new DataView(bytes.buffer), weights = Float32Array.from({ length: size }, (_, i) => view.getFloat32(4 * i, true));
    if (!weights.every((weight) => Math.abs(weight) <= LARGEST)) throw new ServiceFailed("the service's instance has weights that make no sense");
    if (headers.get("incrowd-fingerprint") !== fingerprint) throw new ServiceFailed("the service's instance is of another specification than it states");
    const gamma = Number(headers.get("incrowd-gamma")?.trim() || NaN), ticket = headers.get("incrowd-ticket") ?? "";
    if (!(gamma > 0 && gamma < Infinity)) throw new ServiceFailed("the service's gamma is no positive number");
    if (!/^(?:[0-9a-f]{2}){1,128}$/.test(ticket)) throw new ServiceFailed("the service's ticket is none");
    return { weights, gamma, ticket, at: performance.now() };
  }

  // What became of an answer, by its name in small letters.
  async #offer(service, fingerprint, { row, ticket }) {
    const headers = { "content-type": "application/octet-stream", "incrowd-fingerprint": fingerprint, "incrowd-ticket": ticket };
    if (this.#token) headers["incrowd-admission"] = this.#token;
    const { status, bytes, headers: said } = await this.#fetched(service, "/v1/answer", { most: EXPLANATION_BYTES, method: "POST", headers, body: row });
    let reason = said.get("incrowd-outcome");
    if (status !== 200) try { reason = JSON.parse(new TextDecoder().decode(bytes)).reason; } catch { reason = null; }
    reason = typeof reason === "string" ? reason.toLowerCase().replace(/[- ]/g, "_") : "";
    const taken = reason === "accepted" || reason === "repeated";
    if (taken !== (status === 200) || !(FINAL.has(reason) || AGAIN.has(reason) || LATER.has(reason))) throw new ServiceFailed("the service says nothing of what became of the answer");
    return reason;
  }

  // One request: without cookies or referrer, never led elsewhere, bounded in bytes and in time.
  async #fetched(service, path, { most, ...options }) {
    try {
      const reply = await fetch(new URL(`${String(service).replace(/\/+$/, "")}${path}`, globalThis.location?.href), {
        ...options, mode: "cors", credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
        signal: AbortSignal.timeout(this.#deadline) });
      const { status, headers } = reply, posted = options.method === "POST", taken = status === 200;
      if (taken !== posted && (taken || (status < 500 && status !== 429))) return { status, headers, bytes: await limited(reply, most) };
      reply.body?.cancel().catch(() => {}); // the headers of an accepted answer say all
      if (taken) return { status, headers };
      throw new ServiceFailed(`the service answers ${path} with status ${status}`);
    } catch (error) {
      if (error instanceof ServiceFailed) throw error;
      throw new ServiceFailed(error.name === "TimeoutError" ? "the service took too long" : "the service cannot be reached");
    }
  }
}

async function limited(reply, most) {
  const parts = [];
  let length = 0;
  await reply.body.pipeTo(new WritableStream({ write(part) {
    if ((length += part.length) > most) throw new ServiceFailed(`the service sent more than the ${most} bytes that it should`);
    parts.push(part);
  } }));
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function littleEndian(row) {
  const view = new DataView(new ArrayBuffer(4 * row.length));
  row.forEach((weight, i) => view.setFloat32(4 * i, weight, true));
  return view.buffer;
}

function read(text) {
  try { return checked(JSON.parse(text)); }
  catch (error) { throw new Refused(error instanceof Unusable ? error.message : "the service's specification makes no sense"); }
}

const wholeOf = (asked) => (asked.noise === "direction" ? choosing : fitting)({ size: sizeOf(asked), clip: asked.clip, epsilon: asked.epsilon,
  distances: asked.privacy === "model" && asked.bound === "element" ? sizeOf(asked) : 1, joint: asked.bound === "norm" });

// So many of the keys, each set of them as likely as any other.
function chosen(keys, most) {
  const words = systemWords(), taken = [...keys];
  for (let i = 0; i < Math.min(most, taken.length); i++) {
    const other = i + words.below(taken.length - i);
    [taken[i], taken[other]] = [taken[other], taken[i]];
  }
  return taken.slice(0, most);
}

function opened(name) {
  return new Promise((done, failed) => {
    const refused = () => failed(new Refused("this browser keeps nothing (a private window?): a device needs its storage"));
    if (!globalThis.indexedDB) return refused();
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("examples", { autoIncrement: true });
      request.result.createObjectStore("ledger", { autoIncrement: true });
      request.result.createObjectStore("outbox");
    };
    request.onsuccess = () => done(request.result);
    request.onerror = request.onblocked = refused;
  });
}
