// The page and the agent with many classes that send: `node many.mjs URL PID CLASSES`.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

const [base, pid, classes] = process.argv.slice(2);
const SECONDS = 20;
/** What one page may cost the agent, as a part of a core. */
const MOST_OF_AGENT = 0.1;
/** What the page may take of the browser's main thread. */
const MOST_OF_PAGE = 0.3;
const pause = (ms) => new Promise((later) => { setTimeout(later, ms); });

/** The processor time of the agent so far, in seconds: fields 14 and 15 of proc_pid_stat(5), in hundredths. */
function spent() {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** The part of a core that the agent takes now. */
async function share(during = () => {}) {
  const [before, begun] = [spent(), performance.now()];
  const first = await during();
  await pause(SECONDS * 1000);
  const last = await during();
  return [(spent() - before) / ((performance.now() - begun) / 1000), first, last];
}

const percent = (part) => `${(part * 100).toFixed(1)} %`;
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const [alone] = await share();
console.log(`without a page the agent takes ${percent(alone)} of a core`);
const page = await browser.newPage();
page.setDefaultTimeout(20_000);
const errors = [];
page.on('pageerror', (error) => errors.push(String(error)));
for (const view of ['overview', 'classes']) {
  await page.goto(`${base}/#${view}`);
  await page.waitForFunction(() => document.getElementById('state').textContent.startsWith('Live'));
  const messages = () => page.evaluate(async () => (await import('/dashboard/live.js')).live.samples.length);
  const sends = () => page.evaluate(async () => {
    const { live } = await import('/dashboard/live.js');
    return Object.values(live.document.classes).filter((c) => c.rate > 0).length;
  });
  await pause(5000);
  const count = await messages();
  const [agent, first, last] = await share(() => page.metrics());
  const told = (await messages()) - count;
  const busy = (last.TaskDuration - first.TaskDuration) / (last.Timestamp - first.Timestamp);
  console.log(`${view}: ${await sends()} classes send, ${told} states in ${SECONDS} s; the agent takes ${percent(agent)} of a core, `
    + `the page ${percent(busy)} of its thread and ${(last.JSHeapUsedSize / 1e6).toFixed(1)} MB`);
  assert(await sends() >= Number(classes), 'the classes do not send');
  assert(told >= SECONDS * 0.8 && told <= SECONDS * 1.3, `${told} states in ${SECONDS} s`);
  assert(agent - alone < MOST_OF_AGENT, `the page costs the agent ${percent(agent - alone)} of a core`);
  assert(busy < MOST_OF_PAGE, `the page takes ${percent(busy)} of its thread`);
  if (view === 'overview') {
    const findings = await page.$eval('.findings', (list) => list.textContent);
    assert.equal(findings, 'Each class is enforced, and the configuration is in force.');
  }
  if (view === 'classes') {
    const rows = await page.$$eval('tbody tr', (all) => all.length);
    assert(rows >= Number(classes), `${rows} rows`);
  }
}
assert.deepEqual(errors, []);
await browser.close();
console.log('the dashboard holds many classes');
