// Views that are read again while they are shown: agreements, images, congestion control, history.

import { get } from './api.js';
import { el, table } from './dom.js';
import { bytes, rate, time } from './units.js';

const AGAIN_MS = 5000;
const DAY_MS = 86_400_000;

/** A view that `load` fills now and every 5 s. An error shows the agent's words and leaves the last figures. */
function polled(title, load) {
  return (view) => {
    const error = el('p', { class: 'said bad', role: 'status' });
    const box = el('div', {});
    let timer = null, isShown = true;
    view.replaceChildren(el('h2', {}, title), error, box);
    async function again() {
      try {
        const parts = await load();
        if (!isShown) return;
        error.textContent = '';
        // A reader who stands in the list is not moved.
        if (!box.contains(document.activeElement)) box.replaceChildren(...parts);
      } catch (refused) {
        if (isShown) error.textContent = refused.status ? refused.message : 'The agent does not answer.';
      }
      if (isShown) timer = setTimeout(again, AGAIN_MS);
    }
    again();
    return () => { isShown = false; clearTimeout(timer); };
  };
}

const empty = (text) => el('p', { class: 'empty' }, text);
const milliseconds = (us) => `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;

/** Bars of the promised rate over the next days. */
function timeline(calendar, from, to) {
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  const set = (node, pairs) => { for (const [k, v] of Object.entries(pairs)) node.setAttribute(k, v); return node; };
  set(svg, { viewBox: '0 0 700 80', preserveAspectRatio: 'none', width: '100%', height: 80, role: 'img',
    'aria-label': `Promised rate from ${time(from)} to ${time(to)}; the table has the figures` });
  const top = Math.max(1, calendar.promisable, ...calendar.steps.map((s) => s.reserved));
  const x = (at) => ((Math.min(Math.max(at, from), to) - from) / (to - from)) * 700;
  calendar.steps.forEach((step, i) => {
    const left = x(Date.parse(step.from)), right = i + 1 < calendar.steps.length ? x(Date.parse(calendar.steps[i + 1].from)) : 700;
    const height = (step.reserved / top) * 78;
    svg.append(set(document.createElementNS(ns, 'rect'), { x: left, y: 80 - height, width: Math.max(0, right - left), height, fill: '#3f84c9' }));
  });
  return svg;
}

export const agreements = polled('Agreements', async () => {
  const from = Date.now(), to = from + 7 * DAY_MS;
  const iso = (ms) => new Date(ms).toISOString().replace(/\.\d+/, '');
  const [all, status] = await Promise.all([get('/v1/agreements/status'), get('/v1/status')]);
  const directions = status.download ? ['upload', 'download'] : ['upload'];
  const calendars = await Promise.all(directions.map((one) => get(`/v1/agreements/calendar?direction=${one}&from=${iso(from)}&to=${iso(to)}`)));
  const rows = all.map(({ agreement: a, in_force: now, class: name, not_enforced_because: why, violations = [] }) => [
    a.offer.name ?? a.id, a.offer.terms.direction ?? 'upload', a.state, rate(a.offer.terms.min), rate(a.offer.terms.max), name ?? '–',
    now ? (why ? `not enforced: ${why}` : 'in force') : 'not in force', a.until ? time(Date.parse(a.until)) : 'no end', String(violations.length)]);
  const broken = all.flatMap((one) => (one.violations ?? []).map((v) => [one.agreement.offer.name ?? one.agreement.id,
    time(Date.parse(v.start)), `${(v.violated_ms / 1000).toFixed(0)} s`, rate(v.guarantee), rate(v.worst), bytes(v.lacking), v.cause]));
  return [
    all.length ? table('Agreements', [['Agreement'], ['Direction'], ['State'], ['Minimum', true], ['Maximum', true], ['Class'], ['Now'], ['Until'], ['Violations', true]], rows)
      : empty('There is no agreement. A customer offers one with `weir agree offer`.'),
    el('h2', {}, 'Violations of this month'),
    broken.length ? table('Violations', [['Agreement'], ['From'], ['Fell short for', true], ['Guarantee', true], ['Worst shortfall', true], ['Lacking', true], ['Cause']], broken)
      : empty('No guarantee was violated this month.'),
    ...calendars.flatMap((calendar) => [
      el('h2', {}, `Calendar of the next 7 days: ${calendar.direction}`), el('div', { class: 'chart' }, timeline(calendar, from, to)),
      table(`Calendar: ${calendar.direction}`, [['From'], ['Promised', true], ['Free', true]], calendar.steps.map((s) => [time(Date.parse(s.from)), rate(s.reserved), rate(s.free)])),
    ]),
  ];
});

export const images = polled('Image cache', async () => {
  const [usage, list] = await Promise.all([get('/v1/images/usage'), get('/v1/images')]);
  const of = (name) => usage.counters[name] ?? 0;
  const asked = of('blob_hits') + of('blob_joined') + of('blob_misses');
  const figures = [['Size', `${bytes(usage.bytes)} of ${bytes(usage.budget)}`], ['Blobs asked for', String(asked)],
    ['Hits', asked ? `${of('blob_hits')} (${((of('blob_hits') / asked) * 100).toFixed(0)} %)` : '0'],
    ['Sent to clients', bytes(of('served_bytes'))], ['Fetched from registries', bytes(of('upstream_bytes'))],
    ['Saved', bytes(Math.max(0, of('served_bytes') - of('upstream_bytes')))],
    ['Policy', usage.follows || usage.policy || '–']];
  return [
    el('dl', { class: 'figures' }, ...figures.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))),
    list.images.length ? table('Images', [['Image'], ['Cached', true], ['Size', true], ['Requests', true], ['Last used'], ['Kept']],
      list.images.map((i) => [i.image, bytes(i.present), bytes(i.total), String(i.hits), time(i.used_ms), [i.pinned && 'pinned', i.in_use && 'in use'].filter(Boolean).join(', ')]))
      : empty('The cache is empty. Pull an image, or fetch one with `weir image warm`.'),
  ];
});

export const congestion = polled('Congestion control', async () => {
  const [now, flows] = await Promise.all([get('/v1/congestion'), get('/v1/congestion/flows')]);
  const sums = new Map();
  for (const f of flows) {
    const name = f.first === f.last ? f.last : `${f.first} > ${f.last}`;
    const s = sums.get(name) ?? { flows: 0, sent: 0, retransmits: 0, rtt: 0 };
    sums.set(name, { flows: s.flows + 1, sent: s.sent + f.sent, retransmits: s.retransmits + f.retransmits, rtt: s.rtt + f.smoothed_rtt_us });
  }
  return [
    now.not_enforced_because ? el('ul', { class: 'findings' }, el('li', { class: 'bad' }, now.not_enforced_because)) : '',
    el('h2', {}, 'Rules'),
    now.rules.length ? table('Rules', [['Rule'], ['Connections'], ['Algorithm'], ['Problem']], now.rules.map((r) => [String(r.number), r.connections, r.action, r.problem ?? '']))
      : empty('There is no rule. `[[congestion]]` of the configuration or `weir cc set` makes one.'),
    el('h2', {}, 'Ended connections by algorithm'),
    sums.size ? table('Algorithms', [['Algorithm'], ['Connections', true], ['Sent', true], ['Segments sent again', true], ['Mean round trip', true]],
      [...sums].map(([name, s]) => [name, String(s.flows), bytes(s.sent), String(s.retransmits), milliseconds(s.rtt / s.flows)]))
      : empty('No connection has ended since the agent keeps records.'),
    el('h2', {}, 'Latest ended connections'),
    table('Connections', [['Class'], ['To'], ['Algorithm'], ['Sent', true], ['Took', true], ['Round trip', true], ['Sent again', true]],
      flows.slice(-50).reverse().map((f) => [f.class ?? '–', `${f.to} port ${f.remote_port}`, f.last, bytes(f.sent), milliseconds(f.took_us), milliseconds(f.smoothed_rtt_us), String(f.retransmits)])),
  ];
});

// The changes of one record that are shown, and the records.
const SHOWN_CHANGES = 20;
const SHOWN_RECORDS = 300;

export const history = polled('History of the last 24 hours', async () => {
  const since = Date.now() - DAY_MS;
  let records = [], after = 0, seen = 0;
  // A page has 1,000 records. The newest are shown, so all pages are read, 20 at most.
  for (let page = 0; page < 20; page += 1) {
    const part = await get(`/v1/history?since_ms=${since}&after=${after}`);
    seen += part.records.length;
    records = [...records, ...part.records].slice(-SHOWN_RECORDS);
    after = part.next;
    if (!after) break;
  }
  const rows = records.reverse().flatMap((r) => {
    if (r.is_whole) return [];
    const row = (what, before, now) => [time(r.time_ms), `${r.by.kind} ${r.by.name ?? ''}`.trim(), r.cause, what, before, now];
    const more = r.changes.length - SHOWN_CHANGES;
    return [...r.changes.slice(0, SHOWN_CHANGES).map((c) => row(`${c.what} ${c.name}`, c.old ?? '–', c.new ?? '–')),
      ...(more > 0 ? [row(`${more} more changes: \`weir history\` lists them`, '–', '–')] : [])];
  });
  const left = [
    seen > records.length ? `The last ${records.length} of ${seen} records are shown.` : '',
    after ? `Records after number ${after} are not read: \`weir history\` lists them.` : '',
  ].filter(Boolean).join(' ');
  return [
    left ? el('p', {}, left) : '',
    rows.length ? table('History', [['When'], ['Who'], ['Cause'], ['What'], ['Before'], ['After']], rows) : empty('Nothing has changed.'),
  ];
});
