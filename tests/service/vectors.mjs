// Checks the browser's modules against the shared vectors; prints what differs, a line each.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { answer, bounded, choosing, discreteLaplace, fitting, release, stretched, Words } from "../../incrowd/service/static/noise.mjs";
import { checked, features, gradientOf, repeatsOf, sizeOf } from "../../incrowd/service/static/learn.mjs";

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
const differ = [];
const expect = (what, found, expected) => { if (JSON.stringify(found) !== JSON.stringify(expected)) differ.push(what); };

// SHA-256(seed, counter as 8 bytes), as 32-bit words, all little-endian.
const wordsOf = (seed) => {
  let counter = 0n;
  return new Words((block) => {
    for (let i = 0; i < block.length; i += 8) {
      const number = Buffer.alloc(8);
      number.writeBigUInt64LE(counter++);
      const digest = createHash("sha256").update(seed, "utf8").update(number).digest();
      for (let j = 0; j < 8; j++) block[i + j] = digest.readUInt32LE(4 * j);
    }
  });
};
const floats = (hex, size, read) => Array.from({ length: hex.length / (2 * size) }, (_, i) => Buffer.from(hex, "hex")[read](size * i));
const mechanismOf = ({ size, clip, epsilon, privacy, bound }) =>
  fitting({ size, clip, epsilon, distances: privacy === "model" && bound === "element" ? size : 1, joint: bound === "norm" });

for (const { expected, ...keys } of vectors.steps) {
  const whole = mechanismOf(keys);
  expect(`steps of ${JSON.stringify(keys)}`, whole && { exponent: whole.exponent, bound: whole.bound, scale: whole.scale }, expected);
}
for (const { scale, seed, expected } of vectors.noise) {
  const words = wordsOf(seed);
  expect(`noise of scale ${scale}`, expected.map(() => discreteLaplace(words, scale)), expected);
}
for (const one of vectors.releases) {
  const whole = mechanismOf(one.mechanism), gradient = Float64Array.from(floats(one.gradient, 8, "readDoubleLE"));
  expect(`${one.name}: bounded`, [...bounded(whole, gradient)], one.bounded);
  const released = release(whole, gradient, wordsOf(one.seed));
  expect(`${one.name}: released`, [...released], one.released);
  const sent = answer(Float32Array.from(floats(one.weights, 4, "readFloatLE")), released, one.gamma, whole.exponent);
  expect(`${one.name}: answer`, Buffer.from(sent.buffer).toString("hex"), one.answer);
}
for (const one of vectors.directions) {
  const choice = choosing(one.mechanism), gradient = Float64Array.from(floats(one.gradient, 8, "readDoubleLE"));
  const { exponent, length, loss, candidates } = choice;
  expect(`${one.name}: choice`, { exponent, length, loss, candidates }, one.choice);
  const released = one.seeds.map((seed) => release(choice, gradient, wordsOf(seed)));
  expect(`${one.name}: bounded`, [...stretched(choice, gradient)], one.bounded);
  expect(`${one.name}: released`, released.map((steps) => [...steps]), one.released);
  const sent = answer(Float32Array.from(floats(one.weights, 4, "readFloatLE")), released[0], one.gamma, exponent);
  expect(`${one.name}: answer`, Buffer.from(sent.buffer).toString("hex"), one.answer);
}
for (const one of vectors.gradients) {
  const asked = checked(one.specification), weights = Float32Array.from(floats(one.weights, 4, "readFloatLE"));
  expect(`${one.name}: size`, sizeOf(asked), weights.length);
  expect(`${one.name}: repeats`, repeatsOf(asked), one.repeats);
  const found = one.usable.map((at) => {
    const { places, values } = features(asked, one.rows[at]);
    return places.map((place, i) => [place, values[i]]).sort(([a], [b]) => a - b);
  });
  expect(`${one.name}: features`, found, one.features);
  const gradient = gradientOf(asked, weights, one.rows);
  const far = one.gradient.some((value, i) => !(Math.abs(gradient[i] - value) <= 1e-12 * Math.max(1, Math.abs(value))));
  if (far || gradient.length !== one.gradient.length) differ.push(`${one.name}: gradient`);
}
for (const what of differ) console.log(what);
