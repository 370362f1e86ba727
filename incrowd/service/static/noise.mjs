// Noise in whole numbers, word for word as incrowd/privacy/mechanism/whole_laplace.py: the same random words give the
// same whole numbers, and the same whole numbers the same bytes. All numbers are safe integers, below 2^53.

const FINEST = 40, COARSEST = -400, LARGEST_BOUND = 2 ** 40, LARGEST_SCALE = 2 ** 31, LARGEST_SUM = 2 ** 52;
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

// A gradient in whole steps, within the bound. Private.
export function bounded({ exponent, bound, size, joint }, gradient) {
  const unit = 2 ** exponent, step = 2 ** -exponent, steps = new Float64Array(gradient.length);
  const finite = (value) => (Number.isFinite(value) ? value : 0);
  if (!joint) {
    const most = bound * step;
    for (let i = 0; i < steps.length; i++) steps[i] = toEven(Math.min(most, Math.max(-most, finite(gradient[i]))) * unit);
    return steps;
  }
  const most = Math.floor(LARGEST_SUM / Math.max(1, size)) * step;
  let longest = 0, total = 0;
  for (const value of gradient) longest = Math.max(longest, Math.abs(finite(value)));
  const shrunk = longest > most ? most / longest : 1;
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

// What may leave the device: bounded whole steps, and noise on each.
export function release(whole, gradient, words) {
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
