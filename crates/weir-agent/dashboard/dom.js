// Elements. Names of containers are foreign text, so text is only ever set as text.

/** Makes an element: `el('td', { class: 'n' }, 'text', child)`. A key with a function is a listener. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, '');
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets a text only if it changes, so that readers of the screen and the layout are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A table in a box that scrolls. Columns are `[heading, isNumber]`, cells are texts or elements. */
export function table(label, columns, rows) {
  const kind = (i) => (columns[i][1] ? 'n' : undefined);
  const head = columns.map(([text], i) => el('th', { scope: 'col', class: kind(i) }, text));
  const body = rows.map((row) => el('tr', {}, ...row.map((cell, i) =>
    cell instanceof HTMLTableCellElement ? cell : el(i ? 'td' : 'th', { class: kind(i), scope: i ? undefined : 'row' }, cell))));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    el('table', {}, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...body)));
}

/** Shows a dialog with this title. */
export function panel(title, ...children) {
  const box = document.getElementById('panel');
  box.replaceChildren(el('h2', { id: 'panel-title' }, title), ...children);
  if (!box.open) box.showModal();
  return box;
}

export function close() {
  document.getElementById('panel').close();
}
