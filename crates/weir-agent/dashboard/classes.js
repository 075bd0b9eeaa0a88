// All classes: weight, minimum and maximum are edited in place.

import { call, get } from './api.js';
import { close, el, panel, setText, table } from './dom.js';
import { listen, live } from './live.js';
import { bytes, rate, typed } from './units.js';

const FIELDS = [['weight', 'Weight'], ['min', 'Minimum'], ['max', 'Maximum']];
const HEADS = [['Class'], ['State'], ...FIELDS.map(([, title]) => [title, true]), ['Allocation', true], ['Use', true], ['Queued', true], ['Dropped', true], ['Reason']];
/** The name of a class in a request. */
const full = (c) => `${c.source}:${c.name}`;

export function show(view) {
  const rows = new Map();
  const filter = el('input', { id: 'filter', type: 'search', autocomplete: 'off', input: update });
  const way = el('select', { id: 'way', change: update }, el('option', { value: 'up' }, 'upload'), el('option', { value: 'down' }, 'download'));
  const said = el('p', { class: 'said', role: 'status', id: 'said' });
  const undo = el('button', { type: 'button', click: takeBack }, 'Undo the last change');
  const box = table('Classes', HEADS, []);
  const body = box.querySelector('tbody');
  const none = el('p', { class: 'empty' }, 'No class is here.');
  view.replaceChildren(el('h2', {}, 'Classes'),
    el('div', { class: 'bar' }, el('label', { for: 'filter' }, 'Filter'), filter, el('label', { for: 'way' }, 'Direction'), way, undo), said, box, none);

  function say(text, isBad) {
    said.className = isBad ? 'said bad' : 'said good';
    said.textContent = text;
  }

  function refused(error) {
    const numbers = error.asked === undefined ? '' : ` Asked: ${rate(error.asked)}. Free: ${rate(error.free)}.`;
    say(`${error.message}.${numbers}`, true);
  }

  async function takeBack() {
    try {
      const undone = await call('DELETE', '/v1/policies');
      const what = [...undone.names, ...undone.settings?.map((one) => one.key) ?? []].join(', ');
      say(`The change of ${what} is taken back.`);
    } catch (error) {
      refused(error);
    }
  }

  /** An input in place of the value. Enter sends it, Escape leaves it. */
  function edit(row, field, title) {
    const cell = row.cells[field], c = row.class, value = row.part?.policy[field];
    const input = el('input', { 'aria-label': `${title} of ${c.name}; empty takes back what was set`, value: field === 'weight' ? value : typed(value), autocomplete: 'off' });
    const leave = () => { cell.editing = false; cell.replaceChildren(cell.button); fill(row); cell.button.focus(); };
    input.addEventListener('keydown', async (event) => {
      if (event.key === 'Escape') return leave();
      if (event.key !== 'Enter') return undefined;
      const text = input.value.trim();
      const wanted = text === '' ? null : field === 'weight' && /^\d+$/.test(text) ? Number(text) : text;
      const change = way.value === 'down' ? { down: { [field]: wanted } } : { [field]: wanted };
      input.disabled = true;
      try {
        await call('PATCH', '/v1/policies', { changes: [{ name: full(c), ...change }] });
        say(`${title} of ${c.name} ${text === '' ? 'is taken back' : `is set to ${text}`}.`);
        leave();
      } catch (error) {
        refused(error);
        input.disabled = false;
        input.setAttribute('aria-invalid', 'true');
        input.focus();
      }
      return undefined;
    });
    cell.editing = true;
    cell.replaceChildren(input);
    input.focus();
    input.select();
  }

  async function explain(c) {
    try {
      const answer = await get(`/v1/classes/${encodeURIComponent(full(c))}/explain`);
      panel(`Why ${c.name} has ${rate(answer.class.allocation)}`,
        el('ol', {}, ...answer.reasons.map((why) => el('li', {}, why))),
        table('Sharers', [['Sharer'], ['Weight', true], ['Allocation', true], ['Bound by']], answer.sharers.map((s) => [s.name, String(s.weight), rate(s.allocation), s.bound])),
        el('ul', {}, ...answer.origins.map((text) => el('li', {}, text))),
        el('button', { type: 'button', click: close }, 'Close'));
    } catch (error) {
      refused(error);
    }
  }

  function make(c) {
    const row = { class: c, cells: {} };
    row.name = el('button', { type: 'button', title: 'Explain', click: () => explain(row.class) }, c.name);
    row.state = el('td', {});
    row.figures = ['allocation', 'rate', 'backlog', 'drops'].map(() => el('td', { class: 'n' }));
    row.reason = el('td', { class: 'wide bad' });
    for (const [field, title] of FIELDS) {
      const cell = el('td', { class: 'n' });
      cell.button = el('button', { type: 'button', class: 'value', click: () => edit(row, field, title) });
      cell.append(cell.button);
      row.cells[field] = cell;
    }
    row.node = el('tr', {}, el('th', { scope: 'row' }, row.name), row.state, ...Object.values(row.cells), ...row.figures, row.reason);
    return row;
  }

  function fill(row) {
    const c = row.class, part = row.part = way.value === 'down' ? c.down : c;
    setText(row.state, part?.activity ?? 'no part');
    for (const [field, title] of FIELDS) {
      const value = part?.policy[field];
      const text = value === undefined ? '–' : field === 'weight' ? String(value) : rate(value);
      const { button } = row.cells[field];
      if (button.textContent !== text) {
        button.textContent = text;
        button.setAttribute('aria-label', `${title} of ${c.name}: ${text === '–' ? 'none' : text}. Edit`);
      }
      button.title = part ? `from ${part.policy[`${field}_origin`]}` : '';
    }
    [rate(part?.allocation), rate(part?.rate), bytes(part?.backlog), String(part?.drops ?? '–')].forEach((text, i) => setText(row.figures[i], text));
    setText(row.reason, part && !part.enforced ? part.not_enforced_because ?? 'not enforced' : '');
  }

  function update() {
    if (!live.document) return;
    const wanted = filter.value.toLowerCase();
    const all = live.document.classes;
    const isNew = Object.keys(all).some((key) => !rows.has(key)) || [...rows.keys()].some((key) => !all[key]);
    for (const [key, row] of rows) {
      if (!all[key]) { row.node.remove(); rows.delete(key); }
    }
    for (const [key, c] of Object.entries(all)) {
      let row = rows.get(key);
      if (!row) { row = make(c); rows.set(key, row); }
      row.class = c;
      row.node.hidden = !`${key} ${c.group ?? ''}`.toLowerCase().includes(wanted);
      fill(row);
    }
    if (isNew) {
      const sorted = [...rows.values()].sort((a, b) => a.class.enforced - b.class.enforced || a.class.name.localeCompare(b.class.name));
      sorted.forEach((row, i) => { if (body.children[i] !== row.node) body.insertBefore(row.node, body.children[i] ?? null); });
    }
    none.hidden = rows.size > 0;
  }
  const end = listen(update);
  update();
  return end;
}
