// Noise in whole numbers, word for word as incrowd/privacy/mechanism/whole_noise.py: the same
// random words give the same whole numbers, and the same whole numbers the same bytes. All are safe integers, below 2^53.

const FINEST = 40, COARSEST = -400, LARGEST_BOUND = 2 ** 40, LARGEST_SCALE = 2 ** 31, LARGEST_SUM = 2 ** 52;
const PARTS = 2 ** 24, MOST_LOSS = 64, FEWEST = 4, MOST = 4_096, SMALLEST = 2 ** -500, SEED_BITS = 20;
const WORDS = 2 ** 32, BLOCK = 8_192;

// Random 32-bit words, each used once and in order; `fill` fills a Uint32Array.
export class Words {
  #fill; #block = new Uint32Array(BLOCK); #at = BLOCK;
  constructor(fill) { this.#fill = fill; }

  word() {
    if (this.#at === BLOCK) { this.#fill(this.#block); this.#at = 0; }
    const word = this.#block[this.#at];
    this.#block[this.#at++] = 0; // nobody reads it a second time
    return word;
  }

  // A whole number from 0 to most - 1, each alike, for most up to 2^32: words beyond the last full run are left out.
  below(most) {
    const usable = WORDS - WORDS % most;
    for (;;) { const word = this.word(); if (word < usable) return word % most; }
  }
}

// Words of the browser's own generator.
export const systemWords = () => new Words((block) => crypto.getRandomValues(block));

// A whole number z with a probability proportional to exp(-|z| / scale), exactly; scale from 1 to 2^31.
export function discreteLaplace(words, scale) {
  for (;;) {
    let remainder;
    do remainder = words.below(scale); while (!kept(words, remainder, scale));
    let magnitude = remainder;
    while (oneMore(words)) magnitude += scale; // whole scales: each one more with probability exp(-1)
    const negative = words.word() & 1;
    if (!negative) return magnitude;
    if (magnitude) return -magnitude; // there is one zero
  }
}

// True with probability exp(-u / scale): Bernoulli(u / (scale * trial)) for trial = 1, 2, ... until one fails.
function kept(words, u, scale) {
  let trial = 1;
  while (!(trial > 1 && words.below(trial) !== 0) && words.below(scale) < u) trial++;
  return (trial & 1) === 1;
}

function oneMore(words) {
  let trial = 2;
  while (words.below(trial) === 0) trial++;
  return (trial & 1) === 1;
}

// The finest steps of 2^-exponent in which noise of scale 2 clip distances / epsilon can be drawn; null if there are none.
export function fitting({ size, clip, epsilon, distances, joint }) {
  for (let exponent = FINEST; exponent > COARSEST; exponent--) {
    const scaled = clip * 2 ** exponent;
    if (!(scaled < LARGEST_BOUND)) continue;
    const bound = Math.floor(scaled);
    if (bound < 1) return null;
    const wanted = 2 * bound * distances / epsilon;
    if (wanted <= LARGEST_SCALE - 2) return { exponent, bound, scale: Math.ceil(wanted) + 1, size, joint };
  }
  return null;
}

const finite = (value) => (Number.isFinite(value) ? value : 0);
const longestOf = (gradient) => gradient.reduce((longest, value) => Math.max(longest, Math.abs(finite(value))), 0);

// A gradient in whole steps, within the bound. Private.
export function bounded({ exponent, bound, size, joint }, gradient) {
  const unit = 2 ** exponent, step = 2 ** -exponent, steps = new Float64Array(gradient.length);
  if (!joint) {
    const most = bound * step;
    for (let i = 0; i < steps.length; i++) steps[i] = toEven(Math.min(most, Math.max(-most, finite(gradient[i]))) * unit);
    return steps;
  }
  const most = Math.floor(LARGEST_SUM / Math.max(1, size)) * step;
  const longest = longestOf(gradient), shrunk = longest > most ? most / longest : 1;
  let total = 0;
  for (let i = 0; i < steps.length; i++) {
    steps[i] = toEven(finite(gradient[i]) * shrunk * unit);
    total += Math.abs(steps[i]); // exact: whole numbers below 2^53
  }
  if (total > bound) {
    const share = bound / total;
    for (let i = 0; i < steps.length; i++) steps[i] = Math.trunc(steps[i] * share);
  }
  return steps;
}

// The choice among random directions that an epsilon allows; null where no steps are as short as the clip asks.
export function choosing({ size, clip, epsilon }) {
  const most = Math.min(epsilon, MOST_LOSS), loss = Math.floor(most * PARTS), each = clip / Math.sqrt(size);
  const candidates = Math.min(MOST, Math.max(FEWEST, 2 ** Math.floor(most + 0.5)));
  for (let exponent = FINEST; exponent > COARSEST; exponent--) {
    const length = each * 2 ** exponent * (1 - 2 ** -50);
    if (length >= 1 && length < LARGEST_SCALE) return { exponent, length: Math.floor(length), loss, candidates, size };
  }
  return null;
}

// A gradient in whole numbers whose sizes add up to at most 2^52: only its direction is kept. Private.
export function stretched({ size }, gradient) {
  const steps = new Float64Array(gradient.length), longest = longestOf(gradient);
  if (longest < SMALLEST) return steps;
  const unit = Math.floor(LARGEST_SUM / Math.max(1, size)) / longest;
  for (let i = 0; i < steps.length; i++) steps[i] = toEven(finite(gradient[i]) * unit);
  return steps;
}

// The seed that is named: of the direction most along the gradient, or, exp(-loss / 2^24) as often, any other.
export function named({ candidates, loss }, steps, words) {
  const seeds = Array.from({ length: candidates }, () => words.word() % 2 ** SEED_BITS);
  let best = 0, most = -Infinity;
  seeds.forEach((seed, i) => {
    let along = 0; // exact: whole numbers below 2^53
    forEachSign(seed, steps.length, (plus, at) => { if (plus) along += steps[at]; });
    if (along > most) [best, most] = [i, along];
  });
  for (;;) {
    const chosen = words.below(candidates);
    if (survives(words, loss) || chosen === best) return seeds[chosen];
  }
}

// The direction of a seed, each number plus or minus a length.
export function directed({ length, size }, seed) {
  const steps = new Float64Array(size);
  forEachSign(seed, size, (plus, at) => { steps[at] = plus ? length : -length; });
  return steps;
}

// True with probability exp(-loss / 2^24), exactly.
export function survives(words, loss) {
  for (let whole = Math.floor(loss / PARTS); whole > 0; whole--) if (!kept(words, PARTS, PARTS)) return false;
  return kept(words, loss % PARTS, PARTS);
}

// First the bits of the seed, then those of its words, the lowest of each first.
function forEachSign(seed, size, say) {
  const first = mixed(seed);
  for (let i = 0; i < Math.min(size, SEED_BITS); i++) say((seed >>> i) & 1, i);
  for (let start = SEED_BITS, number = 1; start < size; start += 32, number++) {
    const word = mixed(first ^ mixed(number)), end = Math.min(32, size - start);
    for (let bit = 0; bit < end; bit++) say((word >>> bit) & 1, start + bit);
  }
}

// A word mixed by itself, one to one (the last steps of MurmurHash3).
function mixed(word) {
  word = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  word = Math.imul(word ^ (word >>> 13), 0xc2b2ae35);
  return (word ^ (word >>> 16)) >>> 0;
}

// What may leave the device: a direction, or bounded whole steps and noise on each.
export function release(whole, gradient, words) {
  if (whole.candidates) return directed(whole, named(whole, stretched(whole, gradient), words));
  const steps = bounded(whole, gradient);
  for (let i = 0; i < steps.length; i++) steps[i] += discreteLaplace(words, whole.scale);
  return steps;
}

// The instance that goes back: weights - (gamma * step) * steps, in float64 and this order, then float32.
export function answer(weights, steps, gamma, exponent) {
  const each = gamma * 2 ** -exponent, updated = new Float32Array(weights.length);
  for (let i = 0; i < updated.length; i++) updated[i] = weights[i] - each * steps[i];
  return updated;
}

// The nearest whole number; of two, the even one.
function toEven(value) {
  const near = Math.round(value);
  return near - value === 0.5 && near % 2 !== 0 ? near - 1 : near + 0;
}
