// From examples to a gradient, as incrowd/drawdiscard does it: fields (fields.py, text_fields.py, texts.py), terms, and
// generalised linear models. Equal to Python within 1e-12, for exp differs between languages.

const LONGEST_TEXT = 4_000, LARGEST_LOG_RATE = 50;
const KEYS = ["name", "fields", "response", "terms", "link", "intercept", "hidden", "gamma", "clip", "epsilon", "delta",
  "noise", "privacy", "bound", "largest", "instances", "merge", "falls_every", "falls_by", "tail", "examples"];
const FIELD_KEYS = {
  number: ["low", "high"], integer: ["low", "high"], boolean: [], category: ["levels", "baseline"],
  hashed: ["buckets"], list: ["levels", "buckets", "separator", "most"],
  text: ["part", "lower", "buckets", "units", "shortest", "longest", "most"],
  words: ["part", "lower", "words", "where", "any"],
  count: ["part", "lower", "characters", "each", "run", "most", "steps"],
};
const PREDICTED = ["number", "integer", "boolean", "category"];
const PARTS = ["all", "scheme", "host", "name", "inner", "ending", "port", "path", "query", "fragment", "rest"];

// A specification that makes no sense, or asks for what a browser does not do.
export class Unusable extends Error { name = "Unusable"; }

// The specification that a service states, if this device can follow it. Every key is there: services write them all.
export function checked(said) {
  const whole = (value, most) => Number.isSafeInteger(value) && value >= 1 && value <= most;
  const positive = (value) => Number.isFinite(value) && value > 0;
  const fail = (key, why) => { throw new Unusable(`the service's specification makes no sense: ${key} ${why}`); };
  if (!plain(said)) fail("it", "is no object");
  for (const key of Object.keys(said)) if (!KEYS.includes(key)) fail("a key", "is unknown to this device");
  for (const key of KEYS) if (!Object.hasOwn(said, key)) fail(key, "is missing");
  if (!plain(said.fields)) fail("fields", "is no object");
  for (const field of Object.values(said.fields)) checkField(field, fail);
  const { fields, response, terms, link } = said, has = (name) => typeof name === "string" && Object.hasOwn(fields, name);
  if (!has(response) || !PREDICTED.includes(fields[response].type)) fail("response", "cannot be predicted");
  if (!Array.isArray(terms)) fail("terms", "is no list");
  const seen = new Set(), columnOf = (name) => fields[name].column ?? name;
  for (const term of terms) {
    if (!Array.isArray(term) || term.length < 1 || term.length > 2 || !term.every(has)) fail("terms", "names no field");
    const key = JSON.stringify([...term].sort());
    if (new Set(term).size !== term.length || seen.has(key)) fail("terms", "names fields twice");
    if (term.some((name) => columnOf(name) === columnOf(response))) fail("terms", "names the response");
    seen.add(key);
  }
  if (!Object.hasOwn(MEANS, link)) fail("link", "is unknown to this device");
  if ((link === "multinomial") !== (fields[response].type === "category")) fail("link", "does not fit the response");
  if (typeof said.intercept !== "boolean") fail("intercept", "is neither true nor false");
  if (!Array.isArray(said.hidden) || said.hidden.length) fail("hidden", "asks for layers, which a browser does not train");
  if (!["laplace", "direction"].includes(said.noise) || said.delta !== null) fail("noise", "is of a kind that a browser does not make");
  for (const key of ["gamma", "clip", "epsilon"]) if (!positive(said[key])) fail(key, "is no positive number");
  if (!["model", "feature"].includes(said.privacy)) fail("privacy", "is unknown to this device");
  if (!["element", "norm"].includes(said.bound)) fail("bound", "is unknown to this device");
  if (said.privacy === "feature" && said.bound === "norm") fail("bound", "of a norm goes with the whole model");
  if (said.noise === "direction" && (said.privacy !== "model" || said.bound !== "norm")) fail("noise", "of a direction goes with the whole model and a norm");
  if (said.largest !== null && !whole(said.largest, 2 ** 53 - 1)) fail("largest", "is no count");
  if (!whole(said.examples, 1e6) || !whole(said.instances, 2 ** 53 - 1)) fail("examples or instances", "is no count");
  if (!whole(sizeOf(said), 2 ** 31) || (link === "multinomial" && outputsOf(said) < 2)) fail("the model", "has no weights");
  return said;
}

function checkField(field, fail) {
  if (!plain(field) || !Object.hasOwn(FIELD_KEYS, field.type)) fail("a field", "is of a type unknown to this device");
  const known = ["type", "column", ...FIELD_KEYS[field.type]];
  if (!Object.keys(field).every((key) => known.includes(key))) fail("a field", "has a key unknown to this device");
  if (!known.every((key) => Object.hasOwn(field, key))) fail("a field", "misses a key");
  const listed = (list) => Array.isArray(list) && list.length > 0 && list.every((one) => typeof one === "string") && new Set(list).size === list.length;
  const count = (value) => Number.isSafeInteger(value) && value >= 1 && value <= 1e6;
  const good = {
    number: () => Number.isFinite(field.high - field.low) && field.low < field.high,
    integer: () => Number.isSafeInteger(field.low) && Number.isSafeInteger(field.high) && field.low < field.high,
    boolean: () => true,
    category: () => listed(field.levels) && (field.baseline === null || field.levels.includes(field.baseline)),
    hashed: () => count(field.buckets),
    list: () => count(field.most) && typeof field.separator === "string" && field.separator !== ""
      && (field.levels === null ? count(field.buckets) : field.buckets === null && listed(field.levels)),
    text: () => [field.buckets, field.shortest, field.longest, field.most].every(count) && field.longest <= 20
      && field.shortest <= field.longest && ["words", "characters"].includes(field.units),
    words: () => listed(field.words) && !field.words.includes("") && typeof field.any === "boolean"
      && ["anywhere", "start", "end", "whole"].includes(field.where),
    count: () => (field.characters === null || (typeof field.characters === "string" && field.characters !== ""))
      && (field.steps === null ? count(field.most) : field.most === null && Array.isArray(field.steps) && field.steps.length > 0 && field.steps.every(count))
      && typeof field.each === "boolean" && typeof field.run === "boolean"
      && !(field.each && (field.characters === null || field.steps !== null || field.run)),
  }[field.type];
  const part = !("part" in field) || (PARTS.includes(field.part) && typeof field.lower === "boolean");
  const column = field.column === null || (typeof field.column === "string" && field.column !== "");
  if (!good() || !part || !column) fail(`a field of type ${field.type}`, "is not well described");
}

const plain = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export function widthOf(field) {
  switch (field.type) {
    case "category": return field.levels.length - (field.baseline === null ? 0 : 1);
    case "hashed": case "text": return field.buckets;
    case "list": return field.levels === null ? field.buckets : field.levels.length;
    case "words": return field.any ? 1 : field.words.length;
    case "count": return field.each ? [...field.characters].length : field.steps === null ? 1 : field.steps.length;
    default: return 1;
  }
}

// How many pieces of text are looked at for one example at most, as incrowd/drawdiscard/policy.py counts them.
export function piecesOf({ fields, response, terms }) {
  const each = { text: ({ shortest, longest }) => LONGEST_TEXT * (1 + longest - shortest), list: () => LONGEST_TEXT,
    words: ({ words }) => (LONGEST_TEXT / 100) * words.length, count: ({ characters }) => (LONGEST_TEXT / 100) * [...(characters ?? "a")].length };
  return [...new Set([response, ...terms.flat()])].reduce((sum, name) => sum + (each[fields[name].type]?.(fields[name]) ?? 1), 0);
}

export const outputsOf = ({ fields, response }) => (fields[response].type === "category" ? fields[response].levels.length : 1);

export function sizeOf(asked) {
  const widths = asked.terms.map((term) => term.reduce((product, name) => product * widthOf(asked.fields[name]), 1));
  return (widths.reduce((sum, width) => sum + width, 0) + (asked.intercept ? 1 : 0)) * outputsOf(asked);
}

// In how many of the released numbers one feature of a column may be told again, at most: what counts per feature is
// paid for so many times.
export function repeatsOf(asked) {
  const times = new Map();
  for (const term of asked.terms)
    term.forEach((name, at) => {
      const column = asked.fields[name].column ?? name, width = term.length === 2 ? widthOf(asked.fields[term[1 - at]]) : 1;
      times.set(column, (times.get(column) ?? 0) + width);
    });
  return outputsOf(asked) * [...times.values()].reduce((most, one) => Math.max(most, one), times.size ? 0 : 1);
}

// The columns of the table that are read, the response's first.
export function columnsOf({ fields, response, terms }) {
  return [...new Set([response, ...terms.flat()].map((name) => fields[name].column ?? name))];
}

// Why a value does not count; null where it does. For the owner of the examples, never for a service.
export function misfit(field, value) {
  if (value === null || value === undefined) return "is missing";
  if (["number", "integer", "boolean"].includes(field.type)) {
    const number = numberOf(value), [low, high] = field.type === "boolean" ? [0, 1] : [field.low, field.high];
    if (Number.isNaN(number)) return "is no number";
    if (number < low || number > high) return `lies beyond ${low} to ${high}`;
    return field.type === "number" || Number.isInteger(number) ? null : "is no whole number";
  }
  if (field.type === "category") return field.levels.includes(textOf(value)) ? null : "is none of the levels";
  if (field.type === "list" && Array.isArray(value)) return null;
  return textOf(value) === null ? "is no text" : null;
}

// Whether a value is there and makes sense as a response; an example without one is left out.
const counts = (field, value) =>
  (field.type === "category" ? field.levels.includes(textOf(value)) : !Number.isNaN(numberOf(value)));

// The features of an example that are not zero: places and values.
export function features(asked, row) {
  const places = [], values = [];
  let first = 0;
  for (const term of asked.terms) {
    const [one, two] = term.map((name) => encoded(asked.fields[name], row[asked.fields[name].column ?? name]));
    const width = two ? widthOf(asked.fields[term[1]]) : 1;
    for (const [place, value] of one) {
      if (two) for (const [other, factor] of two) { places.push(first + place * width + other); values.push(value * factor); }
      else { places.push(first + place); values.push(value); }
    }
    first += widthOf(asked.fields[term[0]]) * width;
  }
  return { places, values };
}

// The gradient of the mean loss over rows (objects, a value a column), with respect to the flat weights. Private.
export function gradientOf(asked, weights, rows) {
  const outputs = outputsOf(asked), gradient = new Float64Array(sizeOf(asked)), first = asked.intercept ? 1 : 0;
  const field = asked.fields[asked.response], column = field.column ?? asked.response;
  const usable = rows.filter((row) => counts(field, row[column]));
  for (const row of usable) {
    const { places, values } = features(asked, row), output = new Float64Array(outputs);
    for (let o = 0; o < outputs; o++) {
      for (let i = 0; i < places.length; i++) output[o] += values[i] * weights[(places[i] + first) * outputs + o];
      if (first) output[o] += weights[o];
    }
    const predicted = MEANS[asked.link](output), wanted = responseOf(field, row[column]);
    for (let o = 0; o < outputs; o++) {
      const residual = (predicted[o] - wanted[o]) / usable.length;
      if (first) gradient[o] += residual;
      for (let i = 0; i < places.length; i++) gradient[(places[i] + first) * outputs + o] += values[i] * residual;
    }
  }
  return kept(gradient, asked.largest);
}

// Only the numbers that are as large in size as the largest so many; nearly equal ones stay or go together.
function kept(gradient, largest) {
  if (largest === null || largest >= gradient.length) return gradient;
  const least = gradient.map(Math.abs).sort()[gradient.length - largest] * (1 - 2 ** -30);
  return gradient.map((one) => (Math.abs(one) >= least ? one : 0));
}

const MEANS = {
  linear: (output) => output,
  logistic: (output) => output.map((one) => (one >= 0 ? 1 / (1 + Math.exp(-one)) : Math.exp(one) / (1 + Math.exp(one)))),
  poisson: (output) => output.map((one) => Math.exp(Math.min(one, LARGEST_LOG_RATE))),
  multinomial: (output) => {
    const top = Math.max(...output), each = output.map((one) => Math.exp(one - top));
    const sum = each.reduce((total, one) => total + one, 0);
    return each.map((one) => one / sum);
  },
};

function responseOf(field, value) {
  if (field.type === "category") return field.levels.map((level) => (level === textOf(value) ? 1 : 0));
  return [scaled(field, value)];
}

// The features of a value that are not zero: [place, value] each, places rising.
export function encoded(field, value) {
  switch (field.type) {
    case "number": case "integer": case "boolean": {
      const one = scaled(field, value);
      return one === 0 ? [] : [[0, one]];
    }
    case "category": return place(field.levels.filter((level) => level !== field.baseline), textOf(value));
    case "hashed": return textOf(value) === null ? [] : inBuckets([textOf(value)], field.buckets, 1);
    case "list": {
      const items = itemsOf(field, value);
      if (field.levels === null) return inBuckets(items.slice(0, field.most), field.buckets, 1);
      return ones(items.map((item) => field.levels.indexOf(item)).filter((at) => at >= 0).slice(0, field.most));
    }
    case "text": return inBuckets(ngrams(field, partOf(field, value) ?? ""), field.buckets, field.most);
    case "words": {
      const text = partOf(field, value), found = text === null ? [] : field.words.flatMap((word, at) => (holds(field.where, text, word) ? [at] : []));
      return field.any ? (found.length ? [[0, 1]] : []) : ones(found);
    }
    default: return counted(field, [...(partOf(field, value) ?? "")]);
  }
}

const ones = (places) => [...places].sort((a, b) => a - b).map((at) => [at, 1]);
const place = (levels, text) => { const at = text === null ? -1 : levels.indexOf(text); return at < 0 ? [] : [[at, 1]]; };

function counted(field, letters) {
  const share = (count) => Math.min(count, field.most) / field.most, nonZero = ([, value]) => value > 0;
  if (field.each) return [...field.characters].map((one, at) => [at, share(letters.filter((letter) => letter === one).length)]).filter(nonZero);
  let count = letters.length;
  if (field.characters !== null) {
    const inside = new Set(field.characters);
    let run = 0, longest = 0, sum = 0;
    for (const letter of letters) {
      run = inside.has(letter) ? run + 1 : 0;
      sum += inside.has(letter) ? 1 : 0;
      longest = Math.max(longest, run);
    }
    count = field.run ? longest : sum;
  }
  return field.steps === null ? [[0, share(count)]].filter(nonZero) : field.steps.flatMap((step, at) => (count >= step ? [[at, 1]] : []));
}

function scaled(field, value) {
  const [low, high] = field.type === "boolean" ? [0, 1] : [field.low, field.high], number = numberOf(value);
  if (Number.isNaN(number)) return 0;
  return (Math.min(high, Math.max(low, field.type === "number" ? number : toEven(number))) - low) / (high - low);
}

function numberOf(value) {
  if (typeof value === "bigint") return Math.max(-(2 ** 1023), Math.min(2 ** 1023, Number(value)));
  return typeof value === "number" ? value : typeof value === "boolean" ? Number(value) : NaN;
}

function toEven(value) {
  const near = Math.round(value);
  return near - value === 0.5 && near % 2 !== 0 ? near - 1 : near;
}

// The text that a value counts as; null where it counts as none.
export function textOf(value) {
  if (typeof value === "boolean") return value ? "1" : "0";
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return Number.isInteger(value) && Math.abs(value) <= 2 ** 53 ? String(value + 0) : null;
  return typeof value === "string" ? value.replace(/\p{Surrogate}/gu, "\uFFFD") : null;
}

const beginning = (text) => (text.length <= LONGEST_TEXT ? text : [...text].slice(0, LONGEST_TEXT).join(""));
const lowered = (text) => text.replace(/[A-Z]/g, (letter) => String.fromCharCode(letter.charCodeAt(0) + 32));
const stripped = (text) => text.replace(/^[ \t\n\r\f\v]+|[ \t\n\r\f\v]+$/g, "");
const wordsOf = (text) => text.match(/[a-zA-Z0-9\u{80}-\u{10ffff}]+/gu) ?? [];
const holds = (where, text, word) => ({ anywhere: text.includes(word), start: text.startsWith(word), end: text.endsWith(word), whole: text === word })[where];

function itemsOf(field, value) {
  const texts = Array.isArray(value) ? value.map(textOf).filter((text) => text !== null) : beginning(textOf(value) ?? "").split(field.separator);
  return [...new Set(texts.map(stripped).filter((text) => text))];
}

function ngrams(field, text) {
  const words = field.units === "words", units = words ? wordsOf(text) : [...text], found = [];
  for (let length = field.shortest; length <= field.longest; length++)
    for (let at = 0; at + length <= units.length; at++) found.push(units.slice(at, at + length).join(words ? " " : ""));
  return found;
}

// How many texts fall into each bucket, at most so many, divided by that.
function inBuckets(texts, buckets, most) {
  const counts = new Map();
  for (const text of texts) { const at = fnv(text) % buckets; counts.set(at, (counts.get(at) ?? 0) + 1); }
  return [...counts].sort(([a], [b]) => a - b).map(([at, count]) => [at, Math.min(count, most) / most]);
}

// FNV-1a, 32 bits, of the UTF-8 bytes.
export function fnv(text) {
  let hash = 2_166_136_261;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 16_777_619) >>> 0;
  return hash;
}

function partOf(field, value) {
  const text = textOf(value);
  if (text === null) return null;
  const counted = field.lower ? lowered(beginning(text)) : beginning(text);
  return field.part === "all" ? counted : urlParts(counted)[field.part];
}

const SECOND_LEVELS = new Set(["ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"]);

// The parts of a text that is taken for a URL; nothing is looked up, and every text has parts.
function urlParts(text) {
  const cut = (whole, mark) => { const at = whole.indexOf(mark); return at < 0 ? [whole, ""] : [whole.slice(0, at), whole.slice(at + mark.length)]; };
  const written = stripped(text), has = written.includes("://"), [before, after] = cut(written, "://");
  const [scheme, remaining] = has ? [before, after] : ["", written], end = remaining.search(/[/?#]|$/);
  const rest = remaining.slice(end), [resource, fragment] = cut(rest, "#"), [path, query] = cut(resource, "?");
  const authority = remaining.slice(0, end), [host, port] = cut(authority.slice(authority.lastIndexOf("@") + 1), ":");
  const labels = host.split("."), last = labels.at(-1);
  const compound = labels.length > 2 && [...last].length === 2 && SECOND_LEVELS.has(labels.at(-2));
  const own = Math.max(0, labels.length - (compound ? 3 : 2));
  const inner = labels.slice(labels[0] === "www" ? 1 : 0, Math.max(own, 0)).join(".");
  return { scheme, host, port, path, query, fragment, rest, ending: last, name: labels[own], inner };
}
