// Findings first, then the link as it is divided.

import { call } from './api.js';
import { chart } from './charts.js';
import { el, setText } from './dom.js';
import { listen, live } from './live.js';
import { rate, time } from './units.js';

/** The findings that an operator must know, the worst first: `[text, isBad]`. */
export function findings({ status, classes }) {
  const found = [];
  if (status.config_error) found.push([`The configuration is refused, and the old one stays in force: ${status.config_error}`, true]);
  const held = new Set();
  for (const c of Object.values(classes)) {
    for (const [part, way] of [[c, ''], [c.down, ' (download)']]) {
      if (!part || part.enforced) continue;
      found.push([`${c.name}${way} is not enforced: ${part.not_enforced_because ?? 'no reason is given'}`, true]);
      held.add(`${c.name}: ${part.not_enforced_because}`);
    }
  }
  for (const why of status.not_ready ?? []) if (!held.has(why)) found.push([why, true]);
  for (const why of status.notices ?? []) found.push([why, true]);
  for (const why of status.warnings ?? []) found.push([why, false]);
  return found;
}

export function show(view) {
  const list = el('ul', { class: 'findings', 'aria-label': 'Findings' });
  const figures = el('dl', { class: 'figures' });
  const checks = el('div', { role: 'status' });
  const doctor = el('button', { type: 'button', click: check }, 'Run doctor');
  const measure = el('select', { id: 'measure', change: update }, ...['use', 'allocation', 'guarantee'].map((m) => el('option', { value: m }, m)));
  const up = chart('up', 'Upload');
  const down = chart('down', 'Download');
  const noDown = el('p', { class: 'empty' }, 'The download is not divided: set `download` in `[link]` of the configuration.');
  view.replaceChildren(el('h2', {}, 'Findings'), list, el('div', { class: 'bar' }, doctor), checks, figures,
    el('div', { class: 'bar' }, el('label', { for: 'measure' }, 'Areas show'), measure, el('span', { class: 'dim' }, 'Dashed: capacity. Dotted: all allocations, or all use.')),
    up.node, down.node, noDown);

  async function check() {
    doctor.disabled = true;
    checks.replaceChildren('Doctor tries each engine with traffic of its own. This takes up to a minute.');
    try {
      const answer = await call('GET', '/v1/doctor');
      const rank = { fail: 0, warn: 1, ok: 2 };
      const sorted = [...answer.checks].sort((a, b) => rank[a.verdict] - rank[b.verdict]);
      checks.replaceChildren(el('ul', { class: 'findings' }, ...sorted.filter((c) => c.verdict !== 'ok').map((c) =>
        el('li', { class: c.verdict === 'fail' ? 'bad' : undefined }, `${c.name}: ${c.found}${c.advice ? ` — ${c.advice}` : ''}`))),
      el('p', { class: 'dim' }, `${sorted.filter((c) => c.verdict === 'ok').length} of ${sorted.length} checks pass (${time(Date.now())}).`));
    } catch (error) {
      checks.replaceChildren(el('p', { class: 'said bad' }, error.message));
    }
    doctor.disabled = false;
  }

  function update() {
    if (!live.document) return;
    const { status } = live.document;
    const found = findings(live.document);
    const texts = found.length ? found : [['Each class is enforced, and the configuration is in force.', null]];
    const now = JSON.stringify(texts);
    if (list.dataset.now !== now) {
      list.dataset.now = now;
      list.replaceChildren(...texts.map(([text, isBad]) => el('li', { class: isBad ? 'bad' : isBad === null ? 'good' : undefined }, text)));
    }
    const d = status.download;
    const pairs = [['Link', status.link], ['Engine', status.engine], ['Classes', `${status.active} of ${status.classes} send`],
      ['Upload', `${rate(status.rate)} of ${rate(status.capacity)}`], ['Promised', `${rate(status.reserved)} of ${rate(status.reservable)}`]];
    if (d) pairs.push(['Download', `${rate(d.rate)} of ${rate(d.capacity)}`], ['Promised down', `${rate(d.reserved)} of ${rate(d.reservable)}`]);
    if (figures.children.length !== pairs.length) figures.replaceChildren(...pairs.map(([name]) => el('div', {}, el('dt', {}, name), el('dd', {}))));
    pairs.forEach(([, value], i) => setText(figures.children[i].lastChild, value));
    down.node.hidden = !d;
    noDown.hidden = Boolean(d);
    up.update(measure.value);
    if (d) down.update(measure.value);
  }
  const end = listen(update);
  update();
  return () => { end(); up.end(); down.end(); };
}
