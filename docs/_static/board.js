// The figure of "Choose epsilon with your board": what a promise means for an attacker's odds, and what it costs in noise.
// A classic script, so that the page works from a disk. Node reads the same file for tests.

"use strict";

// The normal distribution function, by a continued fraction far out and a series near 0.
function ndtr(x) {
  if (x === 0) return 0.5;
  const z = Math.abs(x);
  let tail;
  if (z > 3) {
    let fraction = 0;
    for (let n = 60; n > 0; n -= 1) fraction = n / (z + fraction);
    tail = Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI) / (z + fraction);
  } else {
    let term = z, sum = z;
    for (let n = 1; n < 80; n += 1) { term *= z * z / (2 * n + 1); sum += term; }
    tail = 0.5 - sum * Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
  }
  return x < 0 ? tail : 1 - tail;
}

// Of 100 guesses whether somebody took part, with a fair coin to begin with, the share that may be right.
const rightAtMost = (epsilon, delta) => (1 + delta * Math.exp(-epsilon)) / (1 + Math.exp(-epsilon));

// The smallest share of people that an attack misses, at a share of false alarms.
const missedAtLeast = (epsilon, delta, alarms) =>
  Math.max(0, 1 - delta - Math.exp(epsilon) * alarms, Math.exp(-epsilon) * (1 - delta - alarms));

// Delta of Gaussian noise whose neighbours are mu deviations apart (Balle and Wang 2018).
const deltaOf = (mu, epsilon) => ndtr(mu / 2 - epsilon / mu) - Math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu);

// How many deviations apart neighbours may be for the promise.
function muOf(epsilon, delta) {
  let low = 0, high = 1;
  while (deltaOf(high, epsilon) < delta) high *= 2;
  for (let n = 0; n < 100; n += 1) {
    const middle = (low + high) / 2;
    if (deltaOf(middle, epsilon) < delta) low = middle; else high = middle;
  }
  return low;
}

// What somebody may believe afterwards who believed `prior` before, but for a chance of delta. With Gaussian noise whose
// neighbours are mu apart the evidence is normal, with mean mu^2 / 2 and deviation mu: it exceeds epsilon more often than delta.
function believedAtMost(epsilon, delta, prior) {
  let low = 0, high = 40;
  for (let n = 0; n < 100; n += 1) {
    const middle = (low + high) / 2;
    if (ndtr(-middle) > delta) low = middle; else high = middle;
  }
  const mu = muOf(epsilon, delta), evidence = mu * mu / 2 + mu * high;
  return prior / (prior + (1 - prior) * Math.exp(-evidence));
}

// The noise on the mean contribution of all rounds together, beside what clients who agree would contribute: 1 is as loud.
const noiseToSignal = (epsilon, delta, clients, weights) => Math.sqrt(weights) / (muOf(epsilon, delta) * clients);

if (typeof module !== "undefined") module.exports = { ndtr, rightAtMost, believedAtMost, missedAtLeast, muOf, noiseToSignal };

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", () => {
  const board = document.getElementById("board");
  if (!board) return;
  const field = (name) => board.querySelector(`[name=${name}]`);
  const say = (name, text) => { board.querySelector(`[data-say=${name}]`).textContent = text; };
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
  const oneIn = (share) => `1 in ${Math.round(1 / share).toLocaleString("en")}`;
  const up = (share) => Math.min(100, Math.ceil(100 * share - 1e-9));

  function people(right) {
    const svg = board.querySelector("[data-picture=people]");
    svg.replaceChildren();
    for (let place = 0; place < 100; place += 1) {
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      dot.setAttribute("cx", 8 + 16 * (place % 10));
      dot.setAttribute("cy", 8 + 16 * Math.floor(place / 10));
      dot.setAttribute("r", 6);
      dot.setAttribute("class", place < 50 ? "chance" : place < right ? "beyond" : "wrong");
      svg.append(dot);
    }
    svg.setAttribute("aria-label", `${right} of 100 guesses may be right`);
  }

  function curve(epsilon, delta) {
    const points = [];
    for (let step = 0; step <= 200; step += 1) {
      const alarms = step / 200;
      points.push(`${(40 + 150 * alarms).toFixed(1)},${(160 - 150 * missedAtLeast(epsilon, delta, alarms)).toFixed(1)}`);
    }
    board.querySelector("[data-picture=curve] polyline").setAttribute("points", points.join(" "));
  }

  function draw() {
    const epsilon = Number((10 ** Number(field("epsilon").value)).toPrecision(2));  // what is shown is what is reckoned with
    const delta = 10 ** Number(field("delta").value);
    const clients = Math.round(10 ** Number(field("clients").value)), weights = Math.round(10 ** Number(field("weights").value));
    const prior = Number(field("prior").value) / 100;
    const right = up(rightAtMost(epsilon, delta)), noise = noiseToSignal(epsilon, delta, clients, weights);
    for (const [name, text] of [
      ["epsilon", epsilon.toPrecision(2)], ["delta", oneIn(delta)], ["clients", clients.toLocaleString("en")],
      ["weights", weights.toLocaleString("en")], ["prior", percent(prior, 0)],
    ]) {
      say(name, text);
      field(name).setAttribute("aria-valuetext", text);
    }
    say("right", `Of 100 guesses whether one person took part at most ${right} are right; a coin is right 50 times.`);
    say("believed", `Who believed ${percent(prior, 0)} before believes ${percent(Math.ceil(1000 * believedAtMost(epsilon, delta, prior) - 1e-9) / 1000)} at most afterwards, but for a chance of ${oneIn(delta)}.`);
    say("noise", noise < 0.1
      ? `The noise is ${percent(noise)} of what clients who agree would say: hardly felt.`
      : noise < 1
        ? `The noise is ${percent(noise, 0)} of what clients who agree would say: felt, and something is learnt.`
        : `The noise is ${noise.toPrecision(2)} times as loud as clients who agree: hardly anything is learnt.`);
    say("warning", delta * clients >= 0.1 ? "Delta is too large for so many clients: a hundredth of 1 / clients is a good rule." : "");
    people(right);
    curve(epsilon, delta);
  }

  board.addEventListener("input", draw);
  board.hidden = false;
  draw();
});
