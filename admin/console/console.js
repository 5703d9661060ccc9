// The console reads the JSON of the admin pages while it is visible. All texts from there go through textContent.
'use strict';

const $ = (id) => document.getElementById(id);
const often = 2000;      // ms between two reads of decisions and workers
const seldom = 10000;    // and of everything else
const perPage = 50;      // rows of the table of workers
const newest = 60;       // decisions that are read
const large = 200;       // ranks of a fleet that is read every third time only
const mostRows = 50;     // rows of every other table

const state = {
  token: sessionStorage.getItem('stator-token') || '',
  ranks: [], served: new Map(), caches: new Map(), decisions: [], history: [],
  sort: 'worker', descending: false, page: 0, paused: false, reads: 0, ready: '',
};

// el returns an element with attributes and children: texts and elements.
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'onclick') made.addEventListener('click', value);
    else if (value !== undefined && value !== '') made.setAttribute(name, value);
  }
  made.append(...children.map((c) => (c instanceof Node ? c : document.createTextNode(show(c)))));
  return made;
}

// show returns a value as text. Characters that change the direction or the layout of a text are made visible.
function show(value) {
  if (value === null || value === undefined || value === '') return '–';
  return String(value).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '·');
}

// ask returns the answer to a GET, or null for a page that this process does not serve.
async function ask(path) {
  const headers = state.token ? { Authorization: 'Bearer ' + state.token } : {};
  const response = await fetch('..' + path, { headers, cache: 'no-store' });
  if (response.status === 401) {
    $('login').hidden = false;
    throw new Error('the admin port asks for its token');
  }
  if (response.status === 404) return null;
  if (!response.ok && path !== '/readyz') throw new Error(path + ' answers with status ' + response.status);
  $('login').hidden = true;
  return response;
}

async function read(path) {
  const response = await ask(path + (path.includes('?') ? '&' : '?') + 'format=json');
  state.served.set(path.split('?')[0], response !== null);
  return response && response.json();
}

// sources are the pages of which sections are made.
const sources = {
  hour: ['/debug/history'], workers: ['/debug/fleet'], decisions: ['/debug/decisions'], queue: ['/debug/queue', '/debug/decisions'],
  plan: ['/debug/plan'], tiers: ['/debug/kv'], pairs: ['/debug/decisions'], envoys: ['/debug/xds', '/debug/envoys'],
  errors: ['/debug/agent', '/debug/decisions'],
};

// hideUnknown hides the sections of which this process serves no page: a control plane has no queue, and a planner no Envoys.
function hideUnknown() {
  for (const [id, pages] of Object.entries(sources)) {
    const unknown = pages.every((page) => state.served.get(page) === false);
    $(id).hidden = unknown;
    document.querySelector(`nav a[href="#${id}"]`).hidden = unknown;
  }
}

// table fills a table. Each column is [title, key for sorting or '', value of a row, class]; a value is a text, a number or an element.
function table(id, columns, rows, sorted) {
  const made = $(id);
  const focused = made.contains(document.activeElement) ? document.activeElement.dataset.key : '';
  const head = el('tr', {}, ...columns.map(([title, key]) => {
    if (!sorted || !key) return el('th', { scope: 'col' }, title);
    const order = state.sort === key ? (state.descending ? 'descending' : 'ascending') : 'none';
    const mark = { descending: ' ▼', ascending: ' ▲', none: '' }[order];
    return el('th', { scope: 'col', 'aria-sort': order },
      el('button', { type: 'button', 'data-key': 'sort ' + key, onclick: () => sortBy(key) }, title + mark));
  }));
  const body = rows.map((row) => el('tr', {}, ...columns.map(([, , value, kind]) => {
    const shown = value(row);
    const name = typeof kind === 'function' ? kind(row) : kind;
    return el('td', { class: name || (typeof shown === 'number' ? 'number' : '') }, shown);
  })));
  if (!body.length) body.push(el('tr', {}, el('td', { colspan: columns.length }, 'none')));
  made.replaceChildren(made.caption, el('thead', {}, head), el('tbody', {}, ...body));
  // The focus stays on the button that was drawn again.
  if (focused) [...made.querySelectorAll('[data-key]')].find((b) => b.dataset.key === focused)?.focus();
}

function sortBy(key) {
  state.descending = state.sort === key && !state.descending;
  state.sort = key;
  drawWorkers();
}

// button opens the detail of a thing.
const button = (text, key, open) => el('button', { type: 'button', 'data-key': key, onclick: open }, text);

const number = (n, digits = 0) => (n === null || n === undefined ? '–' : n.toLocaleString('en', { maximumFractionDigits: digits }));
const percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '–');
const clock = (at) => new Date(at).toLocaleTimeString('en-GB');
const duration = (s) => (s === null || s === undefined ? '–' : s < 1 ? Math.round(1000 * s) + ' ms' : s.toFixed(1) + ' s');

function nameOf(r) { return r.rank > 0 ? r.worker + '/' + r.rank : r.worker; }
function isGood(r) { return r.state === 'ready' && (r.health === 'ready' || !r.health); }
function gradeOf(r) {
  if (!isGood(r)) return 'bad';
  return !r.cache_state || r.cache_state === 'exact' ? 'good' : 'warn';
}

function drawNow() {
  const last = state.history.at(-1);
  const ready = state.ranks.filter(isGood).length;
  const exact = state.ranks.filter((r) => r.cache_state === 'exact').length;
  const tiles = [
    ['Ranks ready', ready + ' of ' + state.ranks.length], ['Caches exact', exact + ' of ' + state.ranks.length],
    ['Requests booked', number(state.ranks.reduce((n, r) => n + r.booked_requests, 0))],
  ];
  if (last) {
    tiles.push(
      ['Decisions a second', number(last.picked_per_second + last.refused_per_second, 1)],
      ['Prompt tokens cached', percent(last.cached_tokens_per_second, last.prompt_tokens_per_second)],
      ['First token, p50 / p95', duration(last.first_token_p50_seconds) + ' / ' + duration(last.first_token_p95_seconds)],
      ['Answer tokens a second', number(last.answer_tokens_per_second)], ['In the queue', number(last.queued_requests)]);
  }
  $('now').replaceChildren(...tiles.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));

  const counts = { good: 0, warn: 0, bad: 0 };
  for (const r of state.ranks) counts[gradeOf(r)]++;
  $('caches').setAttribute('aria-label',
    `${counts.good} ranks are ready with an exact cache, ${counts.warn} are ready without, ${counts.bad} are not ready`);
  $('caches').replaceChildren(...Object.entries(counts).filter(([, n]) => n).map(([grade, n]) => {
    const part = el('i', { class: grade });
    part.style.width = 100 * n / state.ranks.length + '%';
    return part;
  }));
}

// charts are the figures of the last hour: a title, a format, and lines with their names.
const charts = [
  ['Requests a second', (v) => number(v, 1), [['picked', (p) => p.picked_per_second], ['refused', (p) => p.refused_per_second],
    ['failed', (p) => p.failed_per_second]]],
  ['Share of prompt tokens cached', (v) => number(100 * v, 0) + ' %', [['cached',
    (p) => (p.prompt_tokens_per_second > 0 ? p.cached_tokens_per_second / p.prompt_tokens_per_second : null)]]],
  ['Time to the first token', duration, [['p50', (p) => p.first_token_p50_seconds], ['', () => null],
    ['p95', (p) => p.first_token_p95_seconds]]],
  ['Requests in the fleet', number, [['booked', (p) => p.booked_requests], ['queued', (p) => p.queued_requests]]],
];

function drawHour() {
  if (!state.history.length) {
    $('charts').replaceChildren(el('p', {}, 'The first point comes after 30 s.'));
    return;
  }
  $('charts').replaceChildren(...charts.map(([title, format, lines]) => {
    const all = lines.map(([, value]) => state.history.map(value));
    const top = Math.max(...all.flat().filter((v) => v !== null), 0) || 1;
    const picture = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    picture.setAttribute('viewBox', '0 0 240 100');
    picture.setAttribute('preserveAspectRatio', 'none');
    picture.setAttribute('role', 'img');

    const keys = [];
    all.forEach((values, i) => {
      const known = values.filter((v) => v !== null);
      if (!lines[i][0]) return;
      const now = values.at(-1);
      keys.push(el('span', { class: 'key line' + i }, lines[i][0]), ` ${format(now)} (most ${known.length ? format(Math.max(...known)) : '–'}) `);
      for (const points of runs(values, top)) {
        const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
        line.setAttribute('points', points);
        line.setAttribute('class', 'line' + i);
        picture.append(line);
      }
    });
    const caption = el('figcaption', {}, el('strong', {}, title), ' ', ...keys);
    picture.setAttribute('aria-label', caption.textContent);
    return el('figure', {}, caption, picture);
  }));
}

// runs returns the points of the lines between unknown values.
function runs(values, top) {
  const all = [];
  let run = [];
  const apart = 240 / Math.max(values.length - 1, 39); // ten minutes fill the width
  const start = 240 - apart * (values.length - 1);
  values.forEach((v, i) => {
    if (v === null) {
      if (run.length) all.push(run);
      run = [];
    } else {
      run.push(`${(start + apart * i).toFixed(1)},${(98 - 96 * v / top).toFixed(1)}`);
    }
  });
  if (run.length) all.push(run);
  return all.map((r) => (r.length === 1 ? r[0] + ' ' + r[0] : r.join(' ')));
}

const workerColumns = [
  ['Worker', 'worker', (r) => button(nameOf(r), 'worker ' + nameOf(r), () => openWorker(r))], ['Model', 'model', (r) => r.model],
  ['Role', 'role', (r) => r.role], ['State', 'state', (r) => r.state, (r) => (r.state === 'ready' ? 'good' : 'bad')],
  ['Health', 'health', (r) => r.health, (r) => (r.health === 'ready' ? 'good' : 'bad')],
  ['Cache', 'cache_state', (r) => (r.cache_reason ? `${r.cache_state} (${r.cache_reason})` : r.cache_state),
    (r) => (r.cache_state === 'exact' ? 'good' : 'warn')],
  ['Booked', 'booked_requests', (r) => r.booked_requests], ['Running', 'reported_running', (r) => r.reported_running ?? '–'],
  ['Waiting', 'reported_waiting', (r) => r.reported_waiting ?? '–'],
  ['KV used', 'reported_kv_usage', (r) => (r.reported_kv_usage === null ? '–' : percent(r.reported_kv_usage, 1)), 'number'],
  ['Prefill tokens', 'booked_prefill_tokens', (r) => r.booked_prefill_tokens], ['Node', 'node', (r) => r.node],
  ['Address', 'address', (r) => r.address], ['Engine', 'engine', (r) => r.engine],
];

function drawWorkers() {
  const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const textOf = (r) => [nameOf(r), r.model, r.role, r.state, r.health, r.cache_state, r.node, r.address, r.engine].join(' ').toLowerCase();
  const rows = state.ranks.filter((r) => words.length === 0 || words.every((w) => textOf(r).includes(w)));
  const sign = state.descending ? -1 : 1;
  rows.sort((a, b) => {
    const [x, y] = [a[state.sort] ?? '', b[state.sort] ?? ''];
    return sign * (typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true }));
  });
  const pages = Math.max(1, Math.ceil(rows.length / perPage));
  state.page = Math.min(state.page, pages - 1);
  $('page').textContent = `${rows.length} ranks, page ${state.page + 1} of ${pages}`;
  $('before').disabled = state.page === 0;
  $('after').disabled = state.page === pages - 1;
  table('workers-table', workerColumns, rows.slice(state.page * perPage, (state.page + 1) * perPage), true);
}

// counted groups decisions by a key, the largest group first.
function counted(list, key) {
  const groups = new Map();
  for (const d of list) {
    const k = key(d);
    const g = groups.get(k) || { n: 0, newest: d };
    g.n++;
    groups.set(k, g);
  }
  return [...groups.values()].sort((a, b) => b.n - a.n).slice(0, mostRows);
}

function drawDecisions() {
  if (state.paused) return;
  table('decisions-table', [
    ['Time', '', (d) => clock(d.at)], ['Decision', '', (d) => button('…' + d.id.slice(-8), 'decision ' + d.id, () => openDecision(d.id))],
    ['Outcome', '', (d) => d.outcome, (d) => (d.outcome === 'picked' ? 'good' : d.outcome === 'queued' ? 'warn' : 'bad')],
    ['Worker', '', (d) => (d.worker ? nameOf(d) : '')], ['Model', '', (d) => d.model], ['Role', '', (d) => d.role],
    ['Prompt', '', (d) => d.prompt_tokens], ['Cached', '', (d) => percent(d.cached_tokens, d.prompt_tokens), 'number'],
    ['Waited', '', (d) => (d.queue ? duration(d.queue.waited_seconds) : ''), 'number'],
    ['Reason', '', (d) => d.reason || d.error?.message || ''],
  ], state.decisions.slice(0, mostRows));

  table('waiting-table', [['Class', '', (g) => g.newest.queue.class], ['Tenant', '', (g) => g.newest.queue.tenant], ['Requests', '', (g) => g.n],
    ['Newest waited', '', (g) => duration(g.newest.queue.waited_seconds), 'number'], ['Outcome', '', (g) => g.newest.outcome]],
  counted(state.decisions.filter((d) => d.queue), (d) => JSON.stringify([d.queue.class, d.queue.tenant, d.outcome])));

  const prefills = new Map(state.decisions.filter((d) => d.role === 'prefill').map((d) => [d.id.replace(/-prefill\d+$/, ''), d]));
  const pairs = state.decisions.filter((d) => d.split).map((d) => ({ ...d, from: prefills.get(d.id) }));
  table('pairs-table', [['Prefill', '', (g) => (g.newest.from ? nameOf(g.newest.from) : '')], ['Decode', '', (g) => nameOf(g.newest)],
    ['Model', '', (g) => g.newest.model], ['Requests', '', (g) => g.n], ['Newest', '', (g) => clock(g.newest.at)]],
  counted(pairs, (d) => JSON.stringify([d.from?.worker, d.worker])));
}

async function drawSeldom() {
  const [history, plan, tiers, xds, seen, agent, queue, refused] = await Promise.all(
    ['/debug/history', '/debug/plan', '/debug/kv', '/debug/xds', '/debug/envoys', '/debug/agent', '/debug/queue',
      '/debug/decisions?outcome=refused&n=' + newest].map(read));
  state.history = history || [];
  drawHour();
  table('queue-table', [['Model', '', (q) => q.model], ['Class', '', (q) => q.class], ['Requests', '', (q) => q.requests],
    ['Prompt tokens', '', (q) => q.tokens], ['Cached', '', (q) => percent(q.cached_tokens, q.tokens), 'number']], queue || []);
  table('plan-table', [['Model', '', (p) => p.model], ['Role', '', (p) => p.role],
    ['Ready', '', (p) => `${p.ready} of ${p.replicas}`, (p) => (p.ready < p.replicas ? 'warn' : 'good')],
    ['Requests a second', '', (p) => number(p.requests_per_second, 2), 'number'],
    ['Expected', '', (p) => number(p.expected_requests_per_second, 2), 'number'], ['Reason', '', (p) => p.reason],
    ['Not known', '', (p) => p.unknown.join(', ')]], plan?.pools || []);
  table('tiers-table', [['Model', '', (t) => t.model], ['Tier', '', (t) => t.tier],
    ['Health', '', (t) => t.health, (t) => (t.health === 'failing' ? 'bad' : 'good')], ['Blocks', '', (t) => t.blocks],
    ['Full', '', (t) => percent(t.blocks, t.room), 'number'], ['Loaded', '', (t) => t.loaded_blocks ?? '–'], ['Why', '', (t) => t.reason]],
  (tiers || []).flatMap((s) => {
    const h = s.host_slots, used = h.complete + h.active + h.inactive;
    return [{ tier: 'host', health: s.state, reason: s.reason, blocks: used, room: used + h.reset }, ...s.tiers].map((t) => ({ ...t, model: s.model }));
  }));

  const envoys = new Map((xds?.envoys || []).map((e) => [e.envoy, { ...e }]));
  for (const e of seen || []) envoys.set(e.envoy, { types: [], ...envoys.get(e.envoy), ...e });
  const accepted = (type) => (e) => {
    const t = e.types.find((x) => x.type === type);
    if (!t) return e.version ? 'NOT SENT' : '';
    return t.sent === t.accepted ? 'SYNCED' : 'STALE';
  };
  const grade = (type) => (e) => ({ SYNCED: 'good', STALE: 'bad', 'NOT SENT': 'warn' })[accepted(type)(e)] || '';
  table('envoys-table', [['Envoy', '', (e) => e.envoy], ['Version', '', (e) => e.version],
    ...['listener', 'route', 'cluster', 'endpoint'].map((t) => [t[0].toUpperCase() + t.slice(1) + 's', '', accepted(t), grade(t)]),
    ['Ends by', '', (e) => e.source]], [...envoys.values()].slice(0, mostRows));

  const failures = (agent || []).filter((e) => e.failures > 0)
    .map((e) => ({ where: e.worker, text: e.remedy || e.last_error || e.last_line, n: e.failures, at: duration(e.seconds_since_failure) + ' ago' }));
  const refusals = counted(refused || [], (d) => JSON.stringify([d.model, d.error?.message || d.reason]))
    .map((g) => ({ where: g.newest.model, text: g.newest.error?.message || g.newest.reason, n: g.n, at: clock(g.newest.at) }));
  table('errors-table', [['Where', '', (e) => e.where], ['Times', '', (e) => e.n], ['Newest', '', (e) => e.at], ['Error', '', (e) => e.text]],
    [...failures, ...refusals].slice(0, mostRows));
  hideUnknown();
}

async function drawOften() {
  const isDue = state.ranks.length <= large || state.reads++ % 3 === 0;
  const [fleet, decisions] = await Promise.all([isDue ? read('/debug/fleet') : null, read('/debug/decisions?n=' + newest)]);
  if (isDue) state.ranks = fleet?.ranks || [];
  state.decisions = decisions || [];
  drawNow();
  drawWorkers();
  drawDecisions();
}

function openDetail(title, text) {
  $('detail-title').textContent = show(title);
  // Lines stay; other control characters are shown.
  $('detail-text').textContent = text.split('\n').map((line) => (line === '' ? '' : show(line))).join('\n');
  if (!$('detail').open) $('detail').showModal();
}

async function openDecision(id) {
  const response = await ask('/debug/decisions/' + encodeURIComponent(id)).catch((e) => new Response(e.message));
  openDetail('Decision ' + id, response ? await response.text() : 'The router does not have it any more.');
}

function openWorker(r) {
  const width = Math.max(...Object.keys(r).map((k) => k.length));
  const lines = Object.entries(r).map(([k, v]) => k.padEnd(width + 2) + show(v !== null && typeof v === 'object' ? JSON.stringify(v) : v));
  const own = state.decisions.filter((d) => d.worker === r.worker && d.rank === r.rank).slice(0, 20)
    .map((d) => `${clock(d.at)}  ${d.id}  ${d.prompt_tokens} tokens, ${percent(d.cached_tokens, d.prompt_tokens)} cached`);
  openDetail('Worker ' + nameOf(r), [...lines, '', 'Its newest decisions:', ...(own.length ? own : ['none'])].join('\n'));
}

// loop draws while the page is visible, and shows in the header whether that works.
async function loop(draw, wait) {
  for (;;) {
    if (!document.hidden) {
      try {
        await draw();
        if (draw === drawOften) await drawReady();
      } catch (e) {
        setState('no data: ' + e.message, true);
      }
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function drawReady() {
  const text = (await (await ask('/readyz')).text()).trim();
  const isReady = text === 'ok';
  setState(isReady ? 'ready' : text.replace(/^ok\s+/, ''), !isReady);
}

// setState changes the header only when its text does, because screen readers announce it.
function setState(text, isBad) {
  if (state.ready === text) return;
  state.ready = text;
  $('state').textContent = show(text);
  $('state').className = isBad ? 'bad' : '';
}

$('login').addEventListener('submit', (e) => {
  e.preventDefault();
  state.token = $('token').value.trim();
  sessionStorage.setItem('stator-token', state.token);
  location.reload();
});
$('filter').addEventListener('input', () => { state.page = 0; drawWorkers(); });
$('before').addEventListener('click', () => { state.page--; drawWorkers(); });
$('after').addEventListener('click', () => { state.page++; drawWorkers(); });
$('pause').addEventListener('click', () => {
  state.paused = !state.paused;
  $('pause').setAttribute('aria-pressed', state.paused);
});
$('theme').addEventListener('click', () => {
  const isDark = (document.documentElement.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = isDark ? 'light' : 'dark';
  localStorage.setItem('stator-theme', document.documentElement.dataset.theme);
});
const theme = localStorage.getItem('stator-theme');
if (theme) document.documentElement.dataset.theme = theme;

loop(drawOften, often);
loop(drawSeldom, seldom);
