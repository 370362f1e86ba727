// The contrast of every text with its ground, the worst first.
const rgb = (said) => said.match(/[\d.]+/g).map(Number);
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const ground = (one) => { for (; one; one = one.parentElement) {
  const colour = rgb(getComputedStyle(one).backgroundColor);
  if (colour.length === 3 || colour[3] === 1) return colour;
} return [255, 255, 255]; };
const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const one = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || !one.getClientRects().length || one.closest("script, noscript")) continue;
  const [a, b] = [light(rgb(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), walk.currentNode.data.trim()]);
}
return found.sort(([a], [b]) => a - b);
