"use strict";
// Small tools for drawing: elements, scales, numbers in words.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children. */
function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** An HTML element with a class and text. */
function make(name, className, text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}

/** Differences to what they add up to, in units of `unit`. */
function added(differences, unit = 1) {
  let sum = 0;
  return differences.map((difference) => (sum += difference) * unit);
}

/** Index of the last of these rising numbers that is not above `value`; -1: all are. */
function lastUpTo(rising, value) {
  let low = 0;
  let high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** The round step that makes at most `most` intervals of `span`. */
function roundStep(span, most, isTime = false) {
  const least = span / Math.max(1, most);
  if (isTime && least > 1) {
    const found = TIME_STEPS.find((step) => step >= least);
    if (found) return found;
  }
  const power = 10 ** Math.floor(Math.log10(least || 1));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999999);
}

/** Round numbers from `low` to `high`. */
function ticks(low, high, most, isTime = false) {
  if (!(high > low)) return [low];
  const step = roundStep(high - low, most, isTime);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) found.push(index * step);
  return found;
}

/** Up to five digits, thousands apart, no trailing zeros. */
function numberText(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(5)).toLocaleString("en-US", { maximumFractionDigits: 6 });
}

/** A moment of the run; `step` is how finely it is told. */
function timeText(seconds, step = 0.01) {
  if (Math.abs(seconds) < 120) return `${seconds.toFixed(Math.max(0, Math.min(4, Math.ceil(-Math.log10(step) - 1e-9))))} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const fraction = step < 1 ? (seconds - whole).toFixed(Math.min(3, Math.ceil(-Math.log10(step)))).slice(1) : "";
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}${fraction}` : `${minutes}:${two(rest)}${fraction}`;
}

/** How long something took. */
function spanText(seconds) {
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : seconds < 0.1 ? 1 : 0)} ms`;
  return seconds < 120 ? `${seconds.toFixed(2)} s` : timeText(seconds, 1);
}
