// Opens the console in a real browser, before a real router with many workers, and checks what it promises.
//
//   node look.mjs PROGRAM AXE PICTURES [WORKERS]
//
// PROGRAM is bin/stator, AXE the file axe.min.js, and PICTURES the folder of the screenshots. One simulated engine serves all workers: it
// listens on every loopback address. It prints figures, and ends with status 1 if a check fails. The browser is Chromium, named by
// CHROMIUM or found in PATH; it is spoken to over pipes.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync, rmSync, mkdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';

const [program, axeFile, pictures, count = '1000'] = process.argv.slice(2);
const workers = Number(count);
const perSecond = 100;   // requests
const rounds = 3;        // of the CPU of the router with the page open and closed
const roundSeconds = 10;
const hostile = '"><img src=x onerror=window.pwned=1>';
const dir = mkdtempSync(join(tmpdir(), 'stator-console-'));
const children = [];
const faults = [];

function check(ok, text) {
  console.log(`${ok ? 'ok  ' : 'FAIL'} ${text}`);
  if (!ok) faults.push(text);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

function start(command, args, options = {}) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  child.log = '';
  for (const out of [child.stdout, child.stderr]) out.on('data', (d) => { child.log = (child.log + d).slice(-20000); });
  children.push(child);
  return child;
}

async function until(what, f, seconds = 60) {
  let last;
  for (const end = Date.now() + 1000 * seconds; Date.now() < end; await sleep(100)) {
    try {
      const v = await f();
      if (v) return v;
    } catch (e) { last = e; }
  }
  throw new Error(`not reached: ${what} (${last?.message ?? ''})\n` + children.map((c) => c.log).join('\n---\n'));
}

// startFleet runs an engine and everything in front of it, and returns the addresses of the gateway and of the admin port.
async function startFleet() {
  const [engine, gateway, admin] = [await freePort(), await freePort(), await freePort()];
  start(program, ['sim', '--name', 'engine', '--listen-address', `0.0.0.0:${engine}`, '--engine-speedup', '20']);
  const list = Array.from({ length: workers }, (_, i) =>
    `  - {name: "worker-${i}", address: "127.${1 + Math.floor(i / 60000)}.${Math.floor(i / 250) % 240}.${1 + i % 250}:${engine}", engine: sim}`);
  writeFileSync(join(dir, 'stator.yaml'), ['apiVersion: stator.dev/v1alpha1', 'kind: Stator', `gateway: {listen: "127.0.0.1:${gateway}"}`,
    'models:', '- name: sim', '  path: "builtin:sim"', '  workers:', ...list, ''].join('\n'));
  const up = start(program, ['up', '--config', join(dir, 'stator.yaml'), '--admin-address', `127.0.0.1:${admin}`]);
  const base = `http://127.0.0.1:${admin}`;
  await until('the fleet is ready', async () => (await (await fetch(base + '/readyz')).text()).startsWith('ok'), 120);
  return { gateway: `http://127.0.0.1:${gateway}`, admin: base, pid: up.pid };
}

// load sends requests until stopped.
function load(gateway) {
  const counts = { ok: 0, failed: 0 };
  let n = 0;
  const send = async () => {
    const i = n++;
    const body = { model: i % 97 ? 'sim' : hostile, max_tokens: 4, stream: i % 2 === 0, messages: [{ role: 'user', content: `client ${i % 40} asks again and again. `.repeat(8) + i }] };
    const headers = { 'content-type': 'application/json', 'x-session-id': hostile + (i % 40) };
    try {
      const r = await fetch(gateway + '/v1/chat/completions', { method: 'POST', headers, body: JSON.stringify(body) });
      await r.arrayBuffer();
      counts[r.ok ? 'ok' : 'failed']++;
    } catch { counts.failed++; }
  };
  const timer = setInterval(send, 1000 / perSecond);
  return { counts, stop: () => clearInterval(timer) };
}

// Browser speaks the DevTools protocol over pipes: JSON messages, each with a zero byte behind it.
class Browser {
  constructor() {
    const path = process.env.CHROMIUM || 'chromium';
    this.child = start(path, ['--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe', '--no-first-run',
      `--user-data-dir=${join(dir, 'profile')}`, '--enable-precise-memory-info', 'about:blank'], { stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'] });
    this.id = 0;
    this.waiting = new Map();
    this.events = [];
    let rest = '';
    this.child.stdio[4].setEncoding('utf8');
    this.child.stdio[4].on('data', (d) => {
      const parts = (rest + d).split('\0');
      rest = parts.pop();
      for (const text of parts) this.take(JSON.parse(text));
    });
  }

  take(m) {
    const waiting = this.waiting.get(m.id);
    if (!waiting) { this.events.push(m); return; }
    this.waiting.delete(m.id);
    if (m.error) waiting.reject(new Error(m.error.message)); else waiting.resolve(m.result);
  }

  send(method, params = {}, sessionId = this.session) {
    const id = ++this.id;
    this.child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + '\0');
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  async open(url) {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank' }, undefined);
    this.target = targetId;
    this.session = (await this.send('Target.attachToTarget', { targetId, flatten: true }, undefined)).sessionId;
    for (const domain of ['Page', 'Runtime', 'Log', 'Network', 'Performance']) await this.send(domain + '.enable');
    await this.send('Page.navigate', { url });
  }

  async close() {
    await this.send('Target.closeTarget', { targetId: this.target }, undefined);
    this.session = undefined;
  }

  async run(expression) {
    const r = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (r.exceptionDetails) throw new Error(r.exceptionDetails.exception?.description || r.exceptionDetails.text);
    return r.result.value;
  }

  async press(key, code, modifiers = 0) {
    const text = { Enter: '\r', ' ': ' ' }[key];
    for (const type of ['keyDown', 'keyUp']) {
      await this.send('Input.dispatchKeyEvent', { type, key, code: key === ' ' ? 'Space' : key, windowsVirtualKeyCode: code, modifiers, text: type === 'keyDown' ? text : undefined });
    }
  }

  // tabTo presses Tab until an element that matches has the focus.
  async tabTo(test, most = 200) {
    for (let i = 0; i < most; i++) {
      await this.press('Tab', 9);
      if (await this.run(`(${test})(document.activeElement)`)) return true;
    }
    return false;
  }

  async picture(name, width, theme) {
    await this.send('Emulation.setDeviceMetricsOverride', { width, height: 1000, deviceScaleFactor: 1, mobile: width < 600 });
    await this.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: theme }] });
    await this.run('window.scrollTo(0, 0)');
    await sleep(400);
    const { data } = await this.send('Page.captureScreenshot', { format: 'jpeg', quality: 80 });
    writeFileSync(join(pictures, name + '.jpg'), Buffer.from(data, 'base64'));
  }
}

// cpu returns the CPU seconds that a process has used.
function cpu(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

async function measure(pid) {
  const before = cpu(pid);
  await sleep(1000 * roundSeconds);
  return 100 * (cpu(pid) - before) / roundSeconds;
}

const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];

async function main() {
  mkdirSync(pictures, { recursive: true });
  const fleet = await startFleet();
  const requests = load(fleet.gateway);
  const page = fleet.admin + '/console/';
  await sleep(35000); // two points of the last hour

  const browser = new Browser();
  const paints = [];
  for (let i = 0; i < 20; i++) {
    await browser.open(page);
    paints.push(await until('the first paint', () => browser.run(`performance.getEntriesByName('first-contentful-paint')[0]?.startTime`), 20));
    if (i < 19) await browser.close();
  }
  paints.sort((a, b) => a - b);
  console.log(`first contentful paint, 20 loads: p50 ${paints[10].toFixed(0)} ms, p95 ${paints[18].toFixed(0)} ms, at most ${paints[19].toFixed(0)} ms`);

  await until('the workers are shown', () => browser.run(`document.querySelectorAll('#workers-table tbody tr').length === ${Math.min(50, workers)}`));
  check(await browser.run(`document.getElementById('page').textContent.startsWith('${workers} ranks')`), `all ${workers} ranks are counted`);
  await until('decisions are shown', () => browser.run(`document.querySelectorAll('#decisions-table tbody tr').length === 50`));
  await until('a chart is drawn', () => browser.run(`document.querySelectorAll('#charts polyline').length > 0`));

  await checkHostile(browser);
  await checkAxe(browser);
  await checkKeyboard(browser);
  for (const [size, width] of [['wide', 1400], ['tablet', 820], ['phone', 390]]) {
    for (const theme of ['light', 'dark']) {
      await browser.picture(`console-${size}-${theme}`, width, theme);
      check(await browser.run('document.documentElement.scrollWidth <= innerWidth'), `${size}: the page is not wider than the window`);
    }
  }
  await browser.send('Emulation.clearDeviceMetricsOverride');

  const open = [], closed = [];
  for (let i = 0; i < rounds; i++) {
    open.push(await measure(fleet.pid));
    await browser.close();
    await sleep(1000);
    closed.push(await measure(fleet.pid));
    await browser.open(page);
    await sleep(3000);
  }
  await browser.send('HeapProfiler.collectGarbage');
  const { metrics } = await browser.send('Performance.getMetrics');
  const heap = metrics.find((m) => m.name === 'JSHeapTotalSize').value / (1 << 20);
  console.log(`memory of the page: ${heap.toFixed(1)} MiB of JavaScript heap after ${rounds * roundSeconds} s`);
  const list = (values) => values.map((v) => v.toFixed(1)).join(', ');
  console.log(`CPU of the process, in % of a core, ${rounds} rounds of ${roundSeconds} s: open ${list(open)}; closed ${list(closed)}; ` +
    `difference of the medians ${(median(open) - median(closed)).toFixed(1)}`);
  requests.stop();
  console.log(`requests: ${requests.counts.ok} answered, ${requests.counts.failed} refused (a hundredth asks for an unknown model); ` +
    `load average ${loadavg().map((v) => v.toFixed(1)).join(' ')}`);
  check(requests.counts.ok > 0, 'requests were answered');

  const wrong = browser.events.filter((e) => e.method === 'Runtime.exceptionThrown' ||
    (e.method === 'Log.entryAdded' && e.params.entry.level === 'error'));
  check(wrong.length === 0, `no error in the browser ${wrong.slice(0, 3).map((e) => JSON.stringify(e.params).slice(0, 300)).join(' ')}`);
  const foreign = browser.events.filter((e) => e.method === 'Network.requestWillBeSent').map((e) => e.params.request.url)
    .filter((url) => !url.startsWith(fleet.admin) && !url.startsWith('about:'));
  check(foreign.length === 0, `no request leaves the admin port ${foreign.slice(0, 3).join(' ')}`);
}

// checkHostile looks for names with markup, which clients have sent: they are text.
async function checkHostile(browser) {
  await until('a refused decision is shown', () => browser.run(`document.getElementById('errors-table').textContent.includes('onerror')`), 40);
  check(await browser.run('window.pwned === undefined'), 'markup in names runs nothing');
  check(await browser.run(`document.querySelectorAll('main img, main script').length === 0`), 'markup in names makes no elements');
}

async function checkAxe(browser) {
  for (const theme of ['light', 'dark']) {
    await browser.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: theme }] });
    await browser.run(readFileSync(axeFile, 'utf8') + '; undefined');
    const found = await browser.run(`axe.run().then((r) => ({ passed: r.passes.length,
      violations: r.violations.map((v) => v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map((n) => n.html).join(' ')) }))`);
    check(found.violations.length === 0, `axe, ${theme}: ${found.passed} rules hold, ${found.violations.length} do not ${found.violations.join('; ')}`);
  }
}

// checkKeyboard uses everything without a mouse.
async function checkKeyboard(browser) {
  const at = (test) => browser.tabTo(`(e) => ${test}`);
  await browser.run('document.activeElement.blur(); window.scrollTo(0, 0)');
  check(await at(`e.className === 'skip'`), 'keyboard: the first stop skips to the content');
  check(await at(`e.id === 'theme'`), 'keyboard: the theme');
  await browser.press('Enter', 13);
  check(await browser.run(`['light', 'dark'].includes(document.documentElement.dataset.theme)`), 'keyboard: Enter changes the theme');
  await browser.run(`delete document.documentElement.dataset.theme; localStorage.removeItem('stator-theme')`);

  check(await at(`e.id === 'filter'`), 'keyboard: the filter');
  await browser.send('Input.insertText', { text: 'worker-7' });
  check(await browser.run(`/^\\d+ ranks/.test($('page').textContent) && !$('page').textContent.startsWith('${workers} ranks')`), 'keyboard: the filter filters');
  await browser.run(`$('filter').value = ''; $('filter').dispatchEvent(new Event('input'))`);
  check(await at(`e.id === 'after'`), 'keyboard: the next page');
  await browser.press('Enter', 13);
  check(await browser.run(`$('page').textContent.includes('page 2 of')`), 'keyboard: Enter turns the page');
  check(await at(`e.dataset.key === 'sort booked_requests'`), 'keyboard: a title of a column');
  await browser.press('Enter', 13);
  check(await browser.run(`document.activeElement.dataset.key === 'sort booked_requests' && state.sort === 'booked_requests'`), 'keyboard: Enter sorts, and the focus stays');
  check(await at(`e.dataset.key?.startsWith('worker ')`), 'keyboard: a worker');
  await browser.press('Enter', 13);
  check(await browser.run(`$('detail').open && $('detail-text').textContent.includes('Its newest decisions')`), 'keyboard: Enter opens a worker');
  await browser.press('Escape', 27);
  check(await browser.run(`!$('detail').open`), 'keyboard: Escape closes it');

  check(await at(`e.id === 'pause'`), 'keyboard: pause');
  await browser.press(' ', 32);
  check(await browser.run(`$('pause').getAttribute('aria-pressed') === 'true'`), 'keyboard: the space bar pauses the decisions');
  check(await at(`e.dataset.key?.startsWith('decision ')`), 'keyboard: a decision');
  await browser.press('Enter', 13);
  await until('the decision is explained', () => browser.run(`$('detail').open && $('detail-text').textContent.includes('decision ')`), 10);
  check(true, 'keyboard: Enter explains a decision');
  await browser.press('Escape', 27);
  await browser.run(`if (state.paused) $('pause').click()`);
}

try {
  await main();
} catch (e) {
  console.log(e.stack);
  faults.push(e.message);
} finally {
  for (const c of children.reverse()) c.kill('SIGTERM');
  await sleep(3000);
  for (const c of children) c.kill('SIGKILL');
  rmSync(dir, { recursive: true, force: true });
}
console.log(faults.length ? `${faults.length} checks failed` : 'all checks passed');
process.exit(faults.length ? 1 : 0);
