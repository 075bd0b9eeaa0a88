// The frame: views, the state of the connection, the token.

import { token } from './api.js';
import { show as classes } from './classes.js';
import { close, el, panel, setText } from './dom.js';
import { follow, listen, live } from './live.js';
import { agreements, congestion, history, images } from './lists.js';
import { show as overview } from './overview.js';

const VIEWS = { overview: ['Overview', overview], classes: ['Classes', classes], agreements: ['Agreements', agreements],
  images: ['Images', images], congestion: ['Congestion control', congestion], history: ['History', history] };
const view = document.getElementById('view');
const nav = document.getElementById('views');
const state = document.getElementById('state');
let end = null;

nav.append(...Object.entries(VIEWS).map(([key, [title]]) => el('a', { href: `#${key}` }, title)));

function route() {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : 'overview';
  end?.();
  for (const link of nav.children) {
    if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const [title, show] = VIEWS[name];
  document.title = `${title} – weir`;
  view.replaceChildren();
  end = show(view);
}

/** Asks for a token, and answers when one is given. */
function ask(error) {
  return new Promise((given) => {
    const input = el('input', { id: 'token', type: 'password', autocomplete: 'off', size: 40 });
    const done = () => {
      const secret = input.value.trim();
      if (!secret) return;
      token.set(secret);
      box.removeEventListener('close', later);
      close();
      given();
    };
    input.addEventListener('keydown', (event) => { if (event.key === 'Enter') done(); });
    const box = panel('This agent asks for a token',
      el('p', { class: 'said' }, error.message),
      el('p', {}, 'An operator makes one on the node: ', el('code', {}, 'weir token add dashboard --scope operate'), '. This tab keeps it until it is closed.'),
      el('div', { class: 'bar' }, el('label', { for: 'token' }, 'Token'), input, el('button', { type: 'button', click: done }, 'Use it')));
    const later = () => setTimeout(given, 5000);
    box.addEventListener('close', later, { once: true });
    token.forget();
    input.focus();
  });
}

listen(() => {
  setText(document.getElementById('node'), live.document ? `${live.document.status.link} · ${live.document.status.version}` : '');
  state.className = live.state;
  setText(state, live.state === 'live' ? 'Live' : `Not connected: ${live.error}. The figures are old.`);
});
addEventListener('hashchange', () => { route(); view.focus(); });
route();
follow(ask);
