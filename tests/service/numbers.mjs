// Reads cases from a file and prints what the browser's modules make of them.
import { readFileSync } from "node:fs";
import { bounded, discreteLaplace, answer, fitting, Words } from "../../incrowd/service/static/noise.mjs";
import { checked, features, gradientOf, sizeOf } from "../../incrowd/service/static/learn.mjs";

const { learning, noise } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const learned = learning.map(({ specification, rows, weights }) => {
  const asked = checked(specification);
  const dense = rows.map((row) => {
    const { places, values } = features(asked, row);
    return places.map((place, i) => [place, values[i]]);
  });
  return { size: sizeOf(asked), features: dense, gradient: [...gradientOf(asked, Float32Array.from(weights), rows)] };
});
const released = noise.map(({ mechanism, gradient, weights, gamma, words }) => {
  const whole = fitting(mechanism);
  if (whole === null) return null;
  let at = 0;
  const own = new Words((block) => { for (let i = 0; i < block.length; i++) block[i] = words[at++ % words.length]; });
  const within = bounded(whole, Float64Array.from(gradient));
  const steps = within.map((step) => step + discreteLaplace(own, whole.scale));
  const bytes = Buffer.from(answer(Float32Array.from(weights), steps, gamma, whole.exponent).buffer);
  return { exponent: whole.exponent, bound: whole.bound, scale: whole.scale, within: [...within], steps: [...steps], bytes: bytes.toString("hex") };
});
console.log(JSON.stringify({ learned, released }));
