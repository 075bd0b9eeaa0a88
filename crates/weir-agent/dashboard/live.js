// The present state of the node, and its last minutes.

import { open } from './api.js';

/** Samples that are kept: 5 minutes. */
const KEPT = 300;
/** Silence after which a stream is given up. */
const SILENCE_MS = 5000;

export const live = { document: null, samples: [], state: 'connecting', error: null };
const listeners = new Set();

/** Calls a function with each change. Returns the function that ends this. */
export function listen(changed) {
  listeners.add(changed);
  return () => listeners.delete(changed);
}

function tell() {
  for (const changed of [...listeners]) {
    // A fault of one view must not look like a lost agent.
    try { changed(live); } catch (error) { reportError(error); }
  }
}

/** RFC 7396. */
export function patch(target, changes) {
  if (changes === null || typeof changes !== 'object' || Array.isArray(changes)) return changes;
  const made = target !== null && typeof target === 'object' && !Array.isArray(target) ? target : {};
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) delete made[key];
    else made[key] = patch(made[key], value);
  }
  return made;
}

function sample(document) {
  const one = (part) => ({ allocation: part.allocation ?? 0, use: part.rate ?? 0, guarantee: part.policy?.min ?? 0 });
  const up = {}, down = {};
  for (const [key, c] of Object.entries(document.classes)) {
    // A group's share is that of its members.
    if (c.kind === 'group') continue;
    up[key] = one(c);
    if (c.down) down[key] = one(c.down);
  }
  live.samples.push({ at: document.time_ms / 1000, up, down, capacity: { up: document.status.capacity, down: document.status.download?.capacity ?? 0 } });
  if (live.samples.length > KEPT) live.samples.shift();
}

function take(text) {
  let kind = '', data = '';
  for (const line of text.split('\n')) {
    if (line.startsWith('event: ')) kind = line.slice(7);
    if (line.startsWith('data: ')) data += line.slice(6);
  }
  if (!data) return;
  if (kind === 'whole') live.document = patch({ classes: {} }, JSON.parse(data));
  else if (kind === 'patch') live.document = patch(live.document, JSON.parse(data));
  else return;
  live.state = 'live';
  live.error = null;
  sample(live.document);
  tell();
}

async function read() {
  const end = new AbortController();
  let watch = setTimeout(() => end.abort(), SILENCE_MS);
  try {
    const answer = await open('GET', '/v1/stream', undefined, end.signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(() => end.abort(), SILENCE_MS);
      text += value;
      const messages = text.split('\n\n');
      text = messages.pop();
      messages.forEach(take);
    }
  } finally {
    clearTimeout(watch);
  }
}

/** Reads the stream until the page closes. `denied` asks for a token and waits for it. */
export async function follow(denied) {
  for (;;) {
    try {
      // A stream ends after 50 s, and the next one begins at once.
      await read();
      continue;
    } catch (error) {
      live.state = 'lost';
      live.error = error.status ? error.message : 'the agent does not answer';
      tell();
      // Without tokens the agent answers 404 over TCP.
      if ([401, 403, 404].includes(error.status)) await denied(error);
      else await new Promise((later) => setTimeout(later, 1000));
    }
  }
}
