"use strict";
// The console's page: polls the coordinator for changes and draws them, or shows a recorded
// run up to the time of the slider. tsc compiles this file to `console.js` (`make console`).
//
// Times are milliseconds since the coordinator's start. Everything is drawn from one model, so that
// a recorded run looks as it did live.
/** Milliseconds between two requests. */
const POLL_MS = 100;
/** The same while the page is hidden, and after a failure. */
const SLOW_POLL_MS = 1000;
/** Decisions, phases and seconds that a live page keeps: as many as the coordinator. */
const KEPT = 1024;
const SAMPLES_KEPT = 3600;
/** Most rows of the tables of phases, jobs and decisions. */
const DECISIONS_SHOWN = 60;
/** Most jobs with rows of their own in the timeline. */
const LANES_MAX = 24;
const ACTIONS = {
    'no action': '#4c78a8',
    'full delay': '#b279a2',
    'partial delay': '#f58518',
    'scale up': '#54a24b',
    'scale down': '#d8a100',
    direct: '#9d755d',
    search: '#2a9d9a',
    wait: '#8d8d8d',
};
const PHASES = { running: '#3b7dd8', kept: '#3f9b45', late: '#d03a34' };
const TASKS = ['#7a8ba3', '#a4b1c4'];
function element(id) {
    const found = document.getElementById(id);
    if (found === null) {
        throw new Error(`the page has no element ${id}`);
    }
    return found;
}
const canvas = element('timeline');
const slider = element('slider');
const source = element('source');
const windowSelect = element('window');
const hash = new URLSearchParams(location.hash.slice(1));
const token = hash.get('token') ?? sessionStorage.getItem('token') ?? '';
if (token !== '') {
    // Kept for this tab, and no longer in the address bar, where others could read it.
    sessionStorage.setItem('token', token);
    hash.delete('token');
    history.replaceState(null, '', `${location.pathname}#${hash.toString()}`);
}
function empty() {
    return {
        now: 0, term: 0, revision: 0, nodes: [], jobs: [], plans: new Map(), phases: new Map(), samples: [], requests: 0,
        traffic: [],
    };
}
let live = empty();
let recorded = null;
/** The time up to which a recorded run is shown. */
let replayAt = 0;
let playing = false;
function merge(model, report) {
    const { overview } = report;
    if (overview.epoch.term !== model.term) {
        // Another coordinator: its clock and its numbers differ.
        model = { ...empty(), term: overview.epoch.term };
    }
    model.now = overview.now_ms;
    model.revision = report.revision;
    model.nodes = overview.nodes;
    model.requests = overview.requests;
    model.traffic = overview.traffic;
    model.jobs = report.jobs;
    report.plans.forEach(([number, plan]) => model.plans.set(number, plan));
    report.phases.forEach(([number, phase]) => model.phases.set(number, phase));
    model.samples.push(...report.samples);
    return model;
}
function forget(model) {
    for (const entries of [model.plans, model.phases]) {
        const over = entries.size - KEPT;
        [...entries.keys()].sort((a, b) => a - b).slice(0, Math.max(0, over)).forEach((key) => entries.delete(key));
    }
    model.samples.splice(0, Math.max(0, model.samples.length - SAMPLES_KEPT));
}
async function ask(path) {
    const headers = token === '' ? {} : { Authorization: `Bearer ${token}` };
    const answer = await fetch(path, { headers, cache: 'no-store' });
    if (!answer.ok) {
        throw new Error(answer.status === 401 ? 'open this page with #token=TOKEN' : (await answer.text()).trim());
    }
    return answer.json();
}
function say(kind, text) {
    const state = element('state');
    if (state.textContent !== text) {
        state.textContent = text;
        state.dataset.kind = kind;
    }
}
let updates = 0;
async function poll() {
    let next = document.hidden ? SLOW_POLL_MS : POLL_MS;
    const began = performance.now();
    try {
        if (recorded === null) {
            const last = live.samples.at(-1);
            const query = last === undefined ? '' : `&sample=${last.at_ms}`;
            const report = (await ask(`api/live?revision=${live.revision}${query}`));
            if (recorded !== null) {
                // A recorded run was chosen meanwhile.
                setTimeout(() => void poll(), next);
                return;
            }
            const term = live.term;
            live = merge(live, report);
            if (term !== 0 && term !== live.term) {
                // The answer continues another coordinator's past: request everything.
                live = { ...empty(), term: live.term };
            }
            forget(live);
            say('live', 'live');
            updates += 1;
            document.documentElement.dataset.updates = String(updates);
            show();
        }
    }
    catch (e) {
        say('lost', e instanceof Error ? e.message : String(e));
        next = SLOW_POLL_MS;
    }
    setTimeout(() => void poll(), Math.max(0, next - (performance.now() - began)));
}
function bytes(value) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) {
        value /= 1024;
        at += 1;
    }
    return `${at === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
}
function seconds(ms) {
    return `${(ms / 1000).toFixed(Math.abs(ms) < 100000 ? 1 : 0)} s`;
}
function view() {
    const model = recorded ?? live;
    const now = recorded === null ? model.now : replayAt;
    const span = Number(windowSelect.value);
    const first = recorded === null ? 0 : start(model);
    return { model, now, from: span === 0 ? first : Math.max(first, now - span) };
}
/** The time of a run's first event. */
function start(model) {
    const times = [model.samples[0]?.at_ms, ...model.jobs.map((job) => job.began_ms)];
    for (const entries of [model.plans, model.phases]) {
        for (const entry of entries.values()) {
            times.push(entry.at_ms);
            break;
        }
    }
    const known = times.filter((time) => time !== undefined);
    return known.length === 0 ? 0 : Math.min(...known);
}
function phaseState(phase, now) {
    const ended = phase.observed_ms !== null && phase.at_ms + phase.observed_ms <= now;
    const lasted = ended ? (phase.observed_ms ?? 0) : now - phase.at_ms;
    if (phase.deadline_ms !== null && lasted > phase.deadline_ms) {
        return 'late';
    }
    return ended ? 'kept' : 'running';
}
/** Draws one row after the other. */
class Timeline {
    of;
    context;
    left = 150;
    y = 0;
    width = 0;
    text = '#000';
    constructor(of) {
        this.of = of;
        const context = of.getContext('2d');
        if (context === null) {
            throw new Error('this browser draws nothing');
        }
        this.context = context;
    }
    begin(height) {
        const scale = window.devicePixelRatio || 1;
        this.width = Math.max(300, this.of.clientWidth);
        const wanted = [Math.round(this.width * scale), Math.round(height * scale)];
        if (this.of.width !== wanted[0] || this.of.height !== wanted[1]) {
            [this.of.width, this.of.height] = wanted;
            this.of.style.height = `${height}px`;
        }
        this.context.setTransform(scale, 0, 0, scale, 0, 0);
        this.context.clearRect(0, 0, this.width, height);
        this.context.font = '12px system-ui, sans-serif';
        this.text = getComputedStyle(this.of).color;
        this.y = 0;
    }
    x(v, time) {
        const share = (time - v.from) / Math.max(1, v.now - v.from);
        return this.left + Math.min(1, Math.max(0, share)) * (this.width - this.left - 8);
    }
    label(text, dy) {
        this.context.fillStyle = this.text;
        let shown = text;
        while (shown.length > 1 && this.context.measureText(shown).width > this.left - 12) {
            shown = `${shown.slice(0, -2)}…`;
        }
        this.context.fillText(shown, 4, this.y + dy);
    }
    bar(v, from, to, dy, height, colour, text = '') {
        if (to < v.from || from > v.now) {
            return;
        }
        const left = this.x(v, from);
        const width = Math.max(1.5, this.x(v, Math.min(to, v.now)) - left);
        this.context.fillStyle = colour;
        this.context.fillRect(left, this.y + dy, width, height);
        this.context.font = `${Math.min(12, height - 1)}px system-ui, sans-serif`;
        if (text !== '' && this.context.measureText(text).width < width - 6) {
            this.context.fillStyle = '#fff';
            this.context.fillText(text, left + 3, this.y + dy + height - Math.max(2, height / 5));
        }
        this.context.font = '12px system-ui, sans-serif';
    }
    mark(v, time, dy, height, colour) {
        if (time < v.from || time > v.now) {
            return;
        }
        this.context.fillStyle = colour;
        this.context.fillRect(this.x(v, time) - 1, this.y + dy, 2, height);
    }
    /** Curves as steps, filled from below, over the same scale. */
    curves(v, height, curves) {
        const shown = v.model.samples.filter((s) => s.at_ms >= v.from - 1000 && s.at_ms <= v.now);
        const most = Math.max(1, ...shown.map((s) => Math.max(...curves.map((curve) => curve.value(s)))));
        for (const { colour, value } of curves) {
            this.context.fillStyle = colour;
            this.context.beginPath();
            const bottom = this.y + height;
            shown.forEach((sample, i) => {
                const from = this.x(v, Math.max(v.from, sample.at_ms - 1000));
                const to = this.x(v, i + 1 < shown.length ? shown[i + 1].at_ms - 1000 : v.now);
                const top = (value(sample) / most) * (height - 4);
                this.context.rect(from, bottom - top, Math.max(1, to - from), top);
            });
            this.context.fill();
        }
        return most;
    }
    axis(v) {
        const span = Math.max(1, v.now - v.from);
        const steps = [100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000, 300000, 600000, 3600000];
        const step = steps.find((s) => span / s <= 12) ?? Math.ceil(span / 12);
        this.context.fillStyle = this.text;
        for (let time = Math.ceil(v.from / step) * step; time <= v.now; time += step) {
            const x = this.x(v, time);
            this.context.globalAlpha = 0.15;
            this.context.fillRect(x, 0, 1, this.y);
            this.context.globalAlpha = 1;
            this.context.fillText(seconds(time), Math.min(x - 10, this.width - 50), this.y + 13);
        }
    }
    next(height) {
        this.y += height;
        this.context.globalAlpha = 0.12;
        this.context.fillStyle = this.text;
        this.context.fillRect(0, this.y - 1, this.width, 1);
        this.context.globalAlpha = 1;
    }
}
const timeline = new Timeline(canvas);
const PHASE_ROW = 26;
const JOB_ROW = 48;
const CURVE_ROW = 70;
function draw(v) {
    const inWindow = (from, to) => to >= v.from && from <= v.now;
    const phases = [...v.model.phases.values()].filter((p) => inWindow(p.at_ms, p.at_ms + (p.observed_ms ?? Infinity)));
    const hpc = [...new Set(phases.map((p) => p.name))].sort().slice(0, LANES_MAX);
    const isShown = (job) => job.began_ms <= v.now && (!job.ended || inWindow(job.began_ms, jobEnd(job)));
    const jobs = v.model.jobs.filter(isShown).slice(-LANES_MAX);
    timeline.begin(hpc.length * PHASE_ROW + jobs.length * JOB_ROW + 2 * CURVE_ROW + 20);
    for (const name of hpc) {
        timeline.label(name, 17);
        for (const phase of phases.filter((p) => p.name === name)) {
            drawPhase(v, phase);
        }
        timeline.next(PHASE_ROW);
    }
    const plans = [...v.model.plans.values()];
    for (const job of jobs) {
        drawJob(v, job, plans);
    }
    timeline.label('PFS reads', 14);
    const most = timeline.curves(v, CURVE_ROW, [
        { colour: '#8fb3d9', value: (s) => s.fetched_bytes_per_s },
        { colour: '#2f6db5', value: (s) => s.prefetched_bytes_per_s },
    ]);
    timeline.label(`up to ${bytes(most)}/s`, 30);
    timeline.next(CURVE_ROW);
    timeline.label('Tier', 14);
    const tier = timeline.curves(v, CURVE_ROW, [
        { colour: '#8884', value: (s) => s.capacity_bytes },
        { colour: '#5a9e6f', value: (s) => s.resident_bytes },
    ]);
    timeline.label(`of ${bytes(tier)}`, 30);
    timeline.next(CURVE_ROW);
    timeline.axis(v);
}
function drawPhase(v, phase) {
    const state = phaseState(phase, v.now);
    const end = Math.min(v.now, phase.at_ms + (phase.observed_ms ?? Infinity));
    timeline.bar(v, phase.at_ms, end, 4, 17, PHASES[state], phase.bytes > 0 ? bytes(phase.bytes) : '');
    if (phase.alone_ms !== null) {
        timeline.mark(v, phase.at_ms + phase.alone_ms, 10, 11, '#fff');
    }
    if (phase.deadline_ms !== null) {
        timeline.mark(v, phase.at_ms + phase.deadline_ms, 1, 23, '#d03a34');
    }
}
function jobEnd(job) {
    let end = 0;
    for (const wave of job.stages.flatMap((stage) => stage.waves)) {
        end = Math.max(end, wave.compute_ended_ms ?? 0, wave.prefetch_ended_ms ?? 0);
    }
    return job.began_ms + end;
}
/** Prefetches above, coloured by action, and the tasks of waves below, side by side by turns. */
function drawJob(v, job, plans) {
    timeline.label(job.name, 15);
    timeline.label('tasks by wave', 37);
    const isOf = (plan) => plan.job === job.name && plan.at_ms >= job.began_ms;
    for (const plan of plans.filter(isOf)) {
        const colour = ACTIONS[plan.action] ?? '#8d8d8d';
        if (plan.began_in_ms === null) {
            timeline.mark(v, plan.at_ms, 3, 16, colour);
        }
        else {
            const text = `${plan.stage}.${plan.task} ${plan.action}`;
            timeline.bar(v, plan.at_ms + plan.began_in_ms, plan.at_ms + (plan.came_in_ms ?? 0), 3, 16, colour, text);
        }
    }
    for (const stage of job.stages) {
        stage.waves.forEach((wave, number) => {
            if (wave.compute_began_ms === null) {
                return;
            }
            const end = wave.compute_ended_ms === null ? v.now : job.began_ms + wave.compute_ended_ms;
            const text = `wave ${stage.stage}.${number}: ${wave.tasks_done}/${wave.tasks}`;
            const colour = TASKS[number % TASKS.length];
            timeline.bar(v, job.began_ms + wave.compute_began_ms, end, number % 2 === 0 ? 21 : 33, 12, colour, text);
        });
    }
    timeline.next(JOB_ROW);
}
/** Replaces rows whose text has changed. A heading that begins with `#` is right-aligned. */
function fill(id, head, rows) {
    const table = element(id);
    const isNumber = head.map((title) => title.startsWith('#'));
    if (table.tHead === null) {
        const row = table.createTHead().insertRow();
        head.forEach((title, i) => {
            const cell = document.createElement('th');
            cell.textContent = title.replace('#', '');
            cell.classList.toggle('number', isNumber[i] === true);
            row.append(cell);
        });
    }
    const body = table.tBodies[0] ?? table.createTBody();
    // An empty table says in the paragraph before it what will appear, and how.
    table.hidden = rows.length === 0;
    table.previousElementSibling.hidden = rows.length > 0;
    while (body.rows.length > rows.length) {
        body.deleteRow(-1);
    }
    rows.forEach((cells, number) => {
        const row = body.rows[number] ?? body.insertRow();
        cells.forEach((of, i) => {
            const { text, late = false } = typeof of === 'string' ? { text: of } : of;
            const cell = row.cells[i] ?? row.insertCell();
            if (cell.textContent !== text) {
                cell.textContent = text;
            }
            if (cell.classList.contains('late') !== late) {
                cell.classList.toggle('late', late);
            }
            if (isNumber[i] === true && !cell.classList.contains('number')) {
                cell.classList.add('number');
            }
        });
    });
}
function tables(v) {
    const { model, now } = v;
    const phases = [...model.phases.values()].filter((p) => p.at_ms <= now).reverse().slice(0, DECISIONS_SHOWN);
    fill('phases', ['Job', 'State', '#Began', '#Deadline', '#Took', '#Progress', '#Prefetched meanwhile'], phases.map((p) => phaseRow(p, now)));
    const jobs = model.jobs.filter((job) => job.began_ms <= now).reverse().slice(0, DECISIONS_SHOWN);
    fill('jobs', ['Job', 'Planner', 'State', '#Tasks', '#Running', '#Input', '#Prefetched', '#Waves'], jobs.map((job) => jobRow(job, now)));
    fill('servers', ['Server', 'Job', 'User', '#Reads', '#Writes', '#Share', '#Waits a second', '#Limit'], trafficRows(recorded === null ? model.traffic : []));
    const plans = [...model.plans.values()].filter((plan) => plan.at_ms <= now).reverse().slice(0, DECISIONS_SHOWN);
    fill('decisions', ['#At', 'Wave', 'Planner', 'Action', 'Reason', '#Came'], plans.map((plan) => [
        seconds(plan.at_ms), `${plan.job} ${plan.stage}.${plan.task}`, plan.planner, plan.action, plan.reason,
        plan.came_in_ms !== null && plan.at_ms + (recorded === null ? 0 : plan.came_in_ms) <= now ? bytes(plan.came_bytes) : '-',
    ]));
}
/** Who moves how much on which server, the busiest server first. */
function trafficRows(traffic) {
    const rate = (s) => s.read_bytes_per_s + s.written_bytes_per_s;
    const sums = new Map();
    const rows = traffic.flatMap((job) => job.servers.map((s) => ({ job, s, place: `${s.mount} ${s.server}`.trim() })));
    rows.forEach(({ s, place }) => sums.set(place, (sums.get(place) ?? 0) + rate(s)));
    const sum = (place) => sums.get(place) ?? 0;
    rows.sort((a, b) => sum(b.place) - sum(a.place) || a.place.localeCompare(b.place) || rate(b.s) - rate(a.s));
    return rows.slice(0, DECISIONS_SHOWN).map(({ job, s, place }) => [
        place,
        job.job.job === '' ? '-' : job.job.job,
        `${job.job.user}`,
        `${bytes(s.read_bytes_per_s)}/s`,
        `${bytes(s.written_bytes_per_s)}/s`,
        sum(place) === 0 ? '-' : `${Math.round((rate(s) * 100) / sum(place))} %`,
        `${s.waited_ms_per_s} ms`,
        { text: job.limit_bytes_per_s === null ? '-' : `${bytes(job.limit_bytes_per_s)}/s`, late: job.held > 0 },
    ]);
}
function phaseRow(phase, now) {
    const state = phaseState(phase, now);
    const ended = phase.observed_ms !== null && phase.at_ms + phase.observed_ms <= now;
    const words = { running: 'under way', kept: 'ended', late: ended ? 'ended late' : 'late' };
    const isKnown = !ended && recorded === null && phase.left_ms !== null && phase.alone_ms !== null && phase.alone_ms > 0;
    const share = isKnown ? 1 - (phase.left_ms ?? 0) / (phase.alone_ms ?? 1) : 0;
    return [
        phase.name,
        { text: words[state], late: state === 'late' },
        seconds(phase.at_ms),
        phase.deadline_ms === null ? '-' : `+${seconds(phase.deadline_ms)}`,
        seconds(ended ? (phase.observed_ms ?? 0) : now - phase.at_ms),
        ended ? '100 %' : isKnown ? `${Math.round(Math.max(0, share) * 100)} %` : '-',
        ended || recorded === null ? bytes(phase.beside_bytes) : '-',
    ];
}
function jobRow(job, now) {
    const sum = (of) => job.stages.reduce((all, stage) => all + of(stage), 0);
    const waves = job.stages.flatMap((stage) => stage.waves);
    const total = (of) => waves.reduce((all, wave) => all + of(wave), 0);
    const ended = job.ended && jobEnd(job) <= now;
    // A recorded run has only the ends of waves.
    const over = (wave) => wave.compute_ended_ms !== null && job.began_ms + wave.compute_ended_ms <= now;
    const done = recorded === null ? sum((stage) => stage.tasks_done) : total((wave) => (over(wave) ? wave.tasks : 0));
    return [
        job.name, job.planner, ended ? 'ended' : 'running', `${done}/${sum((stage) => stage.tasks)}`,
        recorded === null ? String(sum((stage) => stage.tasks_running)) : '-',
        bytes(total((wave) => wave.bytes)), bytes(total((wave) => wave.fetched_bytes)), String(waves.length),
    ];
}
function nodes(model) {
    const isLive = recorded === null;
    fill('nodes', ['Node', 'Role', '#Tier', '#Cached', '#From PFS', '#Requests', 'State'], model.nodes.map((node) => !isLive ? [
        // A recorded run has no more about single nodes.
        node.name, '-', bytes(node.capacity_bytes), '-', '-', '-', '-',
    ] : [
        node.name, node.role, bytes(node.capacity_bytes), bytes(node.resident_bytes), bytes(node.fetched_bytes), String(node.requests),
        node.silent_ms > 2000 ? { text: `silent for ${seconds(node.silent_ms)}`, late: true } : 'up',
    ]));
}
function sums(v) {
    const sample = v.model.samples.filter((s) => s.at_ms <= v.now).at(-1);
    const rate = sample === undefined ? '' : `, PFS reads ${bytes(sample.fetched_bytes_per_s)}/s, of that prefetch ${bytes(sample.prefetched_bytes_per_s)}/s, tier ${bytes(sample.resident_bytes)} of ${bytes(sample.capacity_bytes)}`;
    const now = recorded === null ? `${v.model.nodes.length} nodes, ${v.model.requests} prefetch requests pending` : `at ${seconds(v.now)}`;
    element('sums').textContent = now + rate;
}
let tablesDue = 0;
function show() {
    const v = view();
    draw(v);
    sums(v);
    // People read rows: five updates a second are enough, and cost less than the drawing.
    const now = performance.now();
    if (now >= tablesDue || recorded !== null) {
        tablesDue = now + 200;
        tables(v);
        nodes(v.model);
    }
    if (document.documentElement.dataset.paintMs === undefined) {
        document.documentElement.dataset.paintMs = performance.now().toFixed(0);
    }
}
function legend() {
    const entries = [
        ...Object.entries(ACTIONS).map(([action, colour]) => [`prefetch: ${action}`, colour]),
        ['phase under way', PHASES.running], ['phase in time', PHASES.kept], ['phase late, deadline', PHASES.late],
    ];
    for (const [text, colour] of entries) {
        const box = document.createElement('canvas');
        [box.width, box.height] = [12, 12];
        const context = box.getContext('2d');
        if (context !== null) {
            context.fillStyle = colour;
            context.fillRect(0, 0, 12, 12);
        }
        const item = document.createElement('li');
        item.append(box, text);
        element('legend').append(item);
    }
}
async function files() {
    const found = (await ask('api/recorded'));
    for (const { name, bytes: length } of found) {
        const option = document.createElement('option');
        option.value = name;
        option.textContent = `${name} (${bytes(length)})`;
        source.append(option);
    }
}
async function choose(name, share) {
    element('replay').hidden = name === '';
    playing = false;
    if (name === '') {
        recorded = null;
        return;
    }
    try {
        const report = (await ask(`api/recorded/${encodeURIComponent(name)}`));
        recorded = merge(empty(), report);
        windowSelect.value = '0';
        slider.value = String(Math.round(share * 1000));
        seek();
        say('replay', 'recorded run');
    }
    catch (e) {
        say('lost', e instanceof Error ? e.message : String(e));
    }
}
/** Shows the recorded run up to the slider. */
function seek() {
    if (recorded !== null) {
        const first = start(recorded);
        replayAt = first + (Number(slider.value) / 1000) * (recorded.now - first);
        element('time').textContent = seconds(replayAt);
        show();
    }
}
function step() {
    if (!playing || recorded === null) {
        return;
    }
    // The whole run takes half a minute.
    slider.value = String(Number(slider.value) + 1000 / 300);
    if (Number(slider.value) >= 1000) {
        playing = false;
    }
    element('play').textContent = playing ? 'Stop' : 'Play';
    seek();
    setTimeout(step, 100);
}
source.addEventListener('change', () => void choose(source.value, 1));
slider.addEventListener('input', seek);
windowSelect.addEventListener('change', show);
window.addEventListener('resize', show);
element('play').addEventListener('click', () => {
    playing = !playing;
    if (playing && Number(slider.value) >= 1000) {
        slider.value = '0';
    }
    element('play').textContent = playing ? 'Stop' : 'Play';
    step();
});
async function begin() {
    legend();
    void poll();
    try {
        await files();
    }
    catch {
        // The next poll reports why.
    }
    const name = hash.get('run');
    if (name !== null) {
        source.value = name;
        await choose(name, Number(hash.get('at') ?? '1'));
    }
}
void begin();
