// Calls to the agent. The token is sent as a header only, and the tab forgets it when it is closed.

const KEY = 'weir-token';

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (secret) => sessionStorage.setItem(KEY, secret),
  forget: () => sessionStorage.removeItem(KEY),
};

/** A refusal with the agent's own words. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.message ?? body.reason ?? `the agent answered with status ${status}`);
    this.status = status;
    this.code = body.code;
    this.asked = body.asked;
    this.free = body.free;
  }
}

export async function open(method, path, body, signal) {
  const headers = {};
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const options = { method, headers, signal, cache: 'no-store', credentials: 'omit', redirect: 'error' };
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const text = await answer.text();
    let error = { message: text };
    try { error = JSON.parse(text); } catch { /* The text is the message. */ }
    throw new Refused(answer.status, error);
  }
  return answer;
}

export const call = async (method, path, body) => (await open(method, path, body)).json();
export const get = (path) => call('GET', path);
