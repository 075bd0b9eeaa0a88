// Stacked areas of one direction over the last minutes.

import { el, setText } from './dom.js';
import { live } from './live.js';
import { rate } from './units.js';

/** Classes that have an area of their own; the others share one. */
const MOST = 7;
const LIGHT = ['#0b5cad', '#d55e00', '#1a8a5f', '#a0408a', '#c79a00', '#3f9fd8', '#7a4b2a', '#8a929e'];
const DARK = ['#5aa9f5', '#f08a4b', '#4cc495', '#d685c4', '#e8c34a', '#8fd0f5', '#c39a78', '#7f8894'];
const dark = matchMedia('(prefers-color-scheme: dark)');

function swatch(color, isLine) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 10 10');
  svg.setAttribute('aria-hidden', 'true');
  const shape = document.createElementNS(ns, 'rect');
  for (const [key, value] of Object.entries({ x: 0, y: isLine ? 4 : 0, width: 10, height: isLine ? 2 : 10, fill: color })) shape.setAttribute(key, value);
  svg.append(shape);
  return svg;
}

/** The stacked sums of the largest classes by a measure, and lines of all measures. */
function stack(direction, measure) {
  const sums = new Map();
  for (const s of live.samples) {
    for (const [key, one] of Object.entries(s[direction])) sums.set(key, (sums.get(key) ?? 0) + one[measure]);
  }
  const largest = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([key]) => key);
  const own = new Set(largest);
  const columns = largest.map(() => []);
  const others = [], totals = { allocation: [], use: [], guarantee: [] }, capacity = [], times = [];
  for (const s of live.samples) {
    let below = 0;
    largest.forEach((key, i) => { below += s[direction][key]?.[measure] ?? 0; columns[i].push(below); });
    const sum = { allocation: 0, use: 0, guarantee: 0 };
    for (const [key, one] of Object.entries(s[direction])) {
      for (const name of Object.keys(sum)) sum[name] += one[name];
      if (!own.has(key)) below += one[measure];
    }
    others.push(below);
    for (const name of Object.keys(sum)) totals[name].push(sum[name]);
    capacity.push(s.capacity[direction]);
    times.push(s.at);
  }
  return { names: [...largest, 'others'], columns: [...columns, others], totals, capacity, times };
}

export function chart(direction, title) {
  const box = el('div', { class: 'chart', role: 'img' });
  const key = el('ul', { class: 'key' });
  let plot = null, names = '', measure = 'use';

  function build(data) {
    plot?.destroy();
    const colors = dark.matches ? DARK : LIGHT;
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue('--dim'), grid = { stroke: style.getPropertyValue('--line'), width: 1 };
    const areas = data.names.map((name, i) => ({ label: name, stroke: colors[i], fill: colors[i], width: 1, points: { show: false } }));
    const lines = [['capacity', [8, 4]], [measure === 'use' ? 'allocation' : 'use', [2, 2]]].map(([label, dash]) =>
      ({ label, stroke: style.getPropertyValue('--text'), dash, width: 1.5, points: { show: false } }));
    const axis = { stroke: text, grid, ticks: grid, font: '12px system-ui' };
    plot = new uPlot({
      width: Math.max(200, box.clientWidth - 14), height: 220, legend: { show: false }, cursor: { show: false },
      // Always 5 minutes, so that the areas move and their scale does not.
      scales: { x: { range: (u, first, last) => [last - 300, last] }, y: { range: (u, low, high) => [0, Math.max(1000, high) * 1.05] } },
      // The areas are drawn from the top of the stack down, each over the one before.
      series: [{}, ...areas.reverse(), ...lines],
      axes: [{ ...axis, space: 90, incrs: [30, 60, 120, 300], values: (u, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString()) }, { ...axis, size: 96, values: (u, ticks) => ticks.map(rate) }],
    }, values(data), box);
  }
  const values = (d) => [d.times, ...[...d.columns].reverse(), d.capacity, d.totals[measure === 'use' ? 'allocation' : 'use']];

  function update(wanted = measure) {
    if (!live.samples.length || !box.isConnected) return;
    const data = stack(direction, wanted);
    const now = `${wanted} ${dark.matches} ${data.names.join()}`;
    measure = wanted;
    if (now !== names) { names = now; build(data); } else plot.setData(values(data));
    const last = (column) => column[column.length - 1] ?? 0;
    const colors = dark.matches ? DARK : LIGHT;
    const known = live.document.classes;
    const items = data.names.map((name, i) => [known[name]?.name ?? name.replace(/^[^:]*:/, ''), colors[i], last(data.columns[i]) - (i ? last(data.columns[i - 1]) : 0)]);
    const texts = items.map(([name, , value]) => `${name} ${rate(value)}`);
    if (key.children.length !== items.length || key.dataset.names !== now) {
      key.dataset.names = now;
      key.replaceChildren(...items.map(([, color], i) => el('li', {}, swatch(color), el('span', {}, texts[i]))));
    }
    texts.forEach((text, i) => setText(key.children[i].lastChild, text));
    box.setAttribute('aria-label', `${title}: ${wanted} of ${rate(last(data.totals[wanted]))}, capacity ${rate(last(data.capacity))}, over the last ${data.times.length} s. The list below has each class.`);
  }
  const resize = () => plot?.setSize({ width: Math.max(200, box.clientWidth - 14), height: 220 });
  addEventListener('resize', resize);
  return { node: el('section', {}, el('h2', {}, title), box, key), update, end: () => { removeEventListener('resize', resize); plot?.destroy(); } };
}
