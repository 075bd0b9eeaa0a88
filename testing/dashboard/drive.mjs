// Drives a real Chromium: `node drive.mjs URL RESTART PICTURES`. RESTART is a command that restarts the agent.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

const [base, restart, pictures] = process.argv.slice(2);
const VIEWS = ['overview', 'classes', 'agreements', 'images', 'congestion', 'history'];
const axe = readFileSync(new URL('./node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const pause = (ms) => new Promise((later) => { setTimeout(later, ms); });

const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const page = await browser.newPage();
page.setDefaultTimeout(20_000);
const asked = [], errors = [];
page.on('request', (request) => asked.push(request.url()));
page.on('pageerror', (error) => errors.push(String(error)));
const state = (wanted) => page.waitForFunction((text) => document.getElementById('state').textContent.startsWith(text), {}, wanted);
const said = () => page.$eval('#said', (node) => node.textContent);

// Size and time of the first view. The first page of a new browser pays for its start.
await page.goto(base);
await state('Live');
await page.goto('about:blank');
await page.setCacheEnabled(false);
await page.goto(base);
await state('Live');
const [ms, bytes] = await page.evaluate(() => {
  const parts = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
  return [performance.now(), parts.reduce((sum, part) => sum + part.transferSize, 0)];
});
console.log(`live after ${ms.toFixed(0)} ms with ${bytes} bytes`);
assert(bytes > 50_000 && bytes < 300_000, `the first view has ${bytes} bytes`);
assert(ms < Number(process.env.USABLE_MS ?? 1000), `usable after ${ms} ms`);

for (const scheme of ['light', 'dark']) {
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  for (const width of [1280, 360]) {
    await page.setViewport({ width, height: 800 });
    for (const view of VIEWS) {
      await page.evaluate((hash) => { location.hash = hash; }, view);
      await page.waitForSelector('main .scroll, main .empty, main .said:not(:empty)');
      await pause(300);
      const where = `${view}, ${scheme}, ${width} pixels`;
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert(over <= 0, `${where}: the page is ${over} pixels too wide`);
      await page.evaluate(axe);
      const { violations, passes } = await page.evaluate(() => axe.run());
      const serious = violations.filter((one) => ['serious', 'critical'].includes(one.impact));
      assert.deepEqual(serious.map((one) => `${one.id}: ${one.nodes[0].html}`), [], where);
      assert(passes.length > 5, `${where}: axe looked at nothing`);
      if (pictures && view !== 'images') await page.screenshot({ path: `${pictures}/${view}-${scheme}-${width}.png` });
    }
  }
}

await page.setViewport({ width: 1280, height: 800 });
await page.evaluate(() => { location.hash = 'overview'; });
await page.waitForFunction(() => document.querySelector('.findings .bad')?.textContent.includes('camera is not enforced'));
await page.waitForSelector('.chart canvas');

// Each edit, by keyboard only.
await page.evaluate(() => { location.hash = 'classes'; });
async function edit(field, value, name = 'web') {
  const label = `[aria-label^="${field} of ${name}:"]`;
  await page.waitForSelector(label);
  await page.focus(label);
  await page.keyboard.press('Enter');
  await page.waitForSelector(`input[aria-label^="${field} of ${name}"]`);
  await page.keyboard.type(value);
  await page.keyboard.press('Enter');
}
async function shows(text) {
  await page.waitForFunction((wanted) => [...document.querySelectorAll('button.value')].some((b) => b.ariaLabel.startsWith(wanted)), {}, text);
}
await edit('Weight', '5');
await shows('Weight of web: 5.');
await edit('Minimum', '30mbit');
await shows('Minimum of web: 30.0 Mbit/s.');
await edit('Maximum', '50mbit');
await shows('Maximum of web: 50.0 Mbit/s.');
await edit('Minimum', '90mbit', 'video');
await page.waitForSelector('[aria-invalid]');
assert.match(await said(), /Asked: 90\.0 Mbit\/s\. Free: \d/, 'a refusal has its numbers');
await page.keyboard.press('Escape');
await shows('Minimum of video: none.');
const undo = await page.evaluateHandle(() => [...document.querySelectorAll('button')].find((b) => b.textContent.startsWith('Undo')));
await undo.press('Enter');
await shows('Maximum of web: none.');

// The explanation, and back by Escape.
const name = await page.evaluateHandle(() => [...document.querySelectorAll('th button')].find((b) => b.textContent === 'web'));
await name.press('Enter');
await page.waitForSelector('#panel[open]');
assert.match(await page.$eval('#panel', (node) => node.textContent), /shares the link's 100mbit/);
await page.keyboard.press('Escape');
await page.waitForSelector('#panel:not([open])');

// A foreign name is text. The agent takes no such name, so the page is told one.
const hostile = '<img src=x onerror=window.pwned=1>';
await page.evaluate(async (text) => {
  const { el, table } = await import('/dashboard/dom.js');
  document.querySelector('main').append(table('t', [['a']], [[text]]), el('p', { id: 'hostile' }, text));
}, hostile);
await pause(300);
assert.equal(await page.$eval('#hostile', (node) => node.textContent), hostile);
assert.equal(await page.evaluate(() => window.pwned), undefined);

if (pictures) {
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
  await pause(60_000);
  for (const view of ['overview', 'classes']) {
    await page.evaluate((hash) => { location.hash = hash; }, view);
    await pause(2000);
    await page.screenshot({ path: `${pictures}/dashboard-${view}.png` });
  }
}

// The agent restarts, and the page comes back by itself.
const before = await page.evaluate(async () => (await import('/dashboard/live.js')).live.document.status.pid);
const restarted = new Promise((done, failed) => { execFile(restart, (error) => (error ? failed(error) : done())); });
await state('Not connected');
await state('Live');
await restarted;
const after = await page.evaluate(async () => (await import('/dashboard/live.js')).live.document.status.pid);
assert.notEqual(before, after);

assert.deepEqual(asked.filter((url) => !url.startsWith(base) && !url.startsWith('about:')), [], 'a request leaves the node');
assert.deepEqual(errors, []);
await browser.close();
console.log('the dashboard passes');
