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
const PHASE_HEAD = ['Job', 'State', '#Began', '#Deadline', '#Took', '#Progress', '#Prefetched meanwhile'];
const SERVER_HEAD = ['Server', 'Job', 'User', '#Reads', '#Writes', '#Share', '#Waits a second', '#Moved', '#Limit'];
const DECISION_HEAD = ['#At', 'Wave', 'Planner', 'Action', 'Reason', '#Came'];
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
let token = sessionStorage.getItem('token') ?? '';
let hash = readHash();
let route = readRoute();
function readHash() {
    const found = new URLSearchParams(location.hash.slice(1));
    const given = found.get('token');
    if (given !== null) {
        // Kept for this tab, and no longer in the address bar, where others could read it.
        token = given;
        sessionStorage.setItem('token', given);
        found.delete('token');
        history.replaceState(null, '', `${location.pathname}#${found.toString()}`);
    }
    return found;
}
function readRoute() {
    const kind = ['node', 'job'].find((known) => hash.get(known)) ?? null;
    return { kind, name: kind === null ? '' : (hash.get(kind) ?? '') };
}
/** The address of a page of the run that is shown. */
function link(kind, name = '') {
    const next = new URLSearchParams();
    if (source.value !== '') {
        next.set('run', source.value);
    }
    if (kind !== null) {
        next.set(kind, name);
    }
    return `#${next.toString()}`;
}
/** The text of a cell that leads to the page of a node or of a job; a job may have no name. */
function linked(kind, name, text = name) {
    return name === '' ? { text: '-' } : { text, href: link(kind, name) };
}
function empty() {
    return {
        now: 0, term: 0, revision: 0, nodes: [], jobs: [], plans: new Map(), phases: new Map(), samples: [], requests: 0,
        steps: [], traffic: [], node: { name: '', report: null, findings: [] },
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
    model.steps = overview.steps;
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
        const isRefused = answer.status === 401;
        element('login').hidden = !isRefused;
        const refusal = token === '' ? 'a token is needed' : 'the token is wrong';
        throw new Error(isRefused ? refusal : (await answer.text()).trim());
    }
    element('login').hidden = true;
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
            const name = route.kind === 'node' ? route.name : '';
            const node = name === '' ? '' : `&node=${encodeURIComponent(name)}`;
            const report = (await ask(`api/live?revision=${live.revision}${query}${node}`));
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
            live.node = { name, report: report.node, findings: report.findings };
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
    canvas.hidden = route.kind === 'node';
    element('legend').hidden = canvas.hidden;
    if (canvas.hidden) {
        return;
    }
    const isMeant = (name) => route.kind !== 'job' || name === route.name;
    const inWindow = (from, to) => to >= v.from && from <= v.now;
    const phases = [...v.model.phases.values()].filter((p) => isMeant(p.name) && inWindow(p.at_ms, p.at_ms + (p.observed_ms ?? Infinity)));
    const hpc = [...new Set(phases.map((p) => p.name))].sort().slice(0, LANES_MAX);
    const isShown = (job) => job.began_ms <= v.now && (!job.ended || inWindow(job.began_ms, jobEnd(job)));
    const jobs = v.model.jobs.filter((job) => isMeant(job.name) && isShown(job)).slice(-LANES_MAX);
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
/** Shows a text or a link. Names come from users: they are only ever texts. */
function put(cell, text, href) {
    const old = cell.firstElementChild;
    if (cell.textContent === text && (old?.getAttribute('href') ?? undefined) === href) {
        return;
    }
    cell.textContent = href === undefined ? text : '';
    if (href !== undefined) {
        const anchor = document.createElement('a');
        anchor.href = href;
        anchor.textContent = text;
        cell.append(anchor);
    }
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
            const { text, late = false, href } = typeof of === 'string' ? { text: of } : of;
            const cell = row.cells[i] ?? row.insertCell();
            put(cell, text, href);
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
    fill('phases', PHASE_HEAD, phases.map((p) => phaseRow(p, now)));
    const jobs = model.jobs.filter((job) => job.began_ms <= now).reverse().slice(0, DECISIONS_SHOWN);
    fill('jobs', ['Job', 'Planner', 'State', '#Tasks', '#Running', '#Input', '#Prefetched', '#Waves'], jobs.map((job) => jobRow(job, now)));
    fill('servers', SERVER_HEAD, trafficRows(recorded === null ? model.traffic : []));
    const plans = [...model.plans.values()].filter((plan) => plan.at_ms <= now).reverse().slice(0, DECISIONS_SHOWN);
    fill('decisions', DECISION_HEAD, plans.map((plan) => decisionRow(plan, now)));
}
function decisionRow(plan, now) {
    const hasCome = plan.came_in_ms !== null && plan.at_ms + (recorded === null ? 0 : plan.came_in_ms) <= now;
    return [
        seconds(plan.at_ms), linked('job', plan.job, `${plan.job} ${plan.stage}.${plan.task}`), plan.planner, plan.action,
        plan.reason, hasCome ? bytes(plan.came_bytes) : '-',
    ];
}
function rate(s) {
    return s.read_bytes_per_s + s.written_bytes_per_s;
}
function rates(servers) {
    const sum = (of) => bytes(servers.reduce((all, s) => all + of(s), 0));
    return `${sum((s) => s.read_bytes_per_s)}/s read, ${sum((s) => s.written_bytes_per_s)}/s written`;
}
/** Who moves how much on which server, the busiest first; with a job, only on its servers. */
function trafficRows(traffic, of = null) {
    const sums = new Map();
    const rows = traffic.flatMap((job) => job.servers.map((s) => ({ job, s, place: `${s.mount} ${s.server}`.trim() })));
    rows.forEach(({ s, place }) => sums.set(place, (sums.get(place) ?? 0) + rate(s)));
    const sum = (place) => sums.get(place) ?? 0;
    const own = new Set(rows.filter(({ job }) => job.job.job === of).map(({ place }) => place));
    const shown = of === null ? rows : rows.filter(({ place }) => own.has(place));
    shown.sort((a, b) => sum(b.place) - sum(a.place) || a.place.localeCompare(b.place) || rate(b.s) - rate(a.s));
    return shown.slice(0, DECISIONS_SHOWN).map(({ job, s, place }) => [
        place,
        job.job.job === of ? 'this job' : linked('job', job.job.job),
        `${job.job.user}`,
        `${bytes(s.read_bytes_per_s)}/s`,
        `${bytes(s.written_bytes_per_s)}/s`,
        sum(place) === 0 ? '-' : `${Math.round((rate(s) * 100) / sum(place))} %`,
        `${s.waited_ms_per_s} ms`,
        bytes(s.read_bytes + s.written_bytes),
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
        linked('job', phase.name),
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
        linked('job', job.name), job.planner, ended ? 'ended' : 'running', `${done}/${sum((stage) => stage.tasks)}`,
        recorded === null ? String(sum((stage) => stage.tasks_running)) : '-',
        bytes(total((wave) => wave.bytes)), bytes(total((wave) => wave.fetched_bytes)), String(waves.length),
    ];
}
function free(node) {
    return Math.max(0, node.capacity_bytes - node.resident_bytes);
}
function nodeState(node) {
    return node.silent_ms > 2000 ? { text: `silent for ${seconds(node.silent_ms)}`, late: true } : { text: 'up' };
}
function nodes(model) {
    const isLive = recorded === null;
    const isByFree = element('order').value === 'free';
    const sorted = isByFree ? [...model.nodes].sort((a, b) => free(a) - free(b)) : model.nodes;
    fill('nodes', ['Node', 'Role', '#Tier', '#Cached', '#Free', '#From PFS', '#Requests', 'State'], sorted.map((node) => !isLive ? [
        // A recorded run has no more about single nodes.
        linked('node', node.name), '-', bytes(node.capacity_bytes), '-', '-', '-', '-', '-',
    ] : [
        linked('node', node.name), node.role, bytes(node.capacity_bytes), bytes(node.resident_bytes), bytes(free(node)),
        bytes(node.fetched_bytes), String(node.requests), nodeState(node),
    ]));
}
/** The page of the node; false if it is not a member. */
function nodePage(model) {
    const node = model.nodes.find((known) => known.name === route.name);
    if (node === undefined) {
        return false;
    }
    const { report, findings } = model.node;
    const health = report?.health.health?.[1];
    const traffic = report?.traffic ?? [];
    const facts = recorded !== null ? [['Tier', bytes(node.capacity_bytes)], ['More', 'a recorded run has no more about single nodes']] : [
        ['State', nodeState(node)],
        ['Role', node.role],
        ['Version', health?.version ?? 'not reported yet'],
        ['Tier', `${bytes(node.resident_bytes)} cached of ${bytes(node.capacity_bytes)}, ${bytes(free(node))} free`],
        ...health === undefined ? [] : [
            ['Tier at most', `${bytes(health.capacity_max_bytes)}; huge pages: ${health.huge_pages}`],
            ['Sent to other nodes', bytes(health.to_peers_bytes)],
            ['Files to write', `the oldest waits for ${seconds(health.oldest_dirty_ms)}, parked: ${health.parked_files}`],
        ],
        ['Read from the PFS', bytes(node.fetched_bytes)],
        ['Jobs move now', rates(traffic.flatMap((job) => job.servers))],
        ['Prefetch requests', String(node.requests)],
        ['Hits, unwritten bytes', 'run forebay status --counters and forebay dirty on the node'],
    ];
    fill('node-facts', ['What', 'Value'], facts);
    fill('node-problems', ['What', 'Found', 'Remedy'], findings.map((f) => [{ text: f.what, late: f.level === 'bad' }, f.found, f.remedy]));
    const extents = new Map(report?.health.extents ?? []);
    fill('node-mounts', ['Mount', 'State', '#Extent', '#Failed reads', '#Oldest fetch'], (health?.mounts ?? []).map(([label, isMounted, isCached, failed, wait]) => [
        label,
        { text: !isMounted ? 'not mounted' : isCached ? 'cached' : 'not cached', late: !isMounted || !isCached },
        bytes(extents.get(label) ?? 0), { text: String(failed), late: failed > 0 }, seconds(wait),
    ]));
    fill('node-jobs', SERVER_HEAD, trafficRows(traffic));
    return true;
}
/** The page of all jobs of this name; false if the coordinator knows none. */
function jobPage(v) {
    const { model, now } = v;
    const { name } = route;
    const phases = [...model.phases.values()].filter((p) => p.name === name && p.at_ms <= now).reverse();
    const jobs = model.jobs.filter((job) => job.name === name && job.began_ms <= now).reverse();
    const traffic = recorded === null ? model.traffic : [];
    const own = traffic.filter((job) => job.job.job === name);
    const steps = recorded === null ? model.steps.filter((step) => step.name === name) : [];
    const isAbout = (plan) => plan.at_ms <= now && (plan.job === name || plan.phases.some((phase) => phase.name === name));
    const plans = [...model.plans.values()].filter(isAbout).reverse();
    if (phases.length + jobs.length + own.length + steps.length + plans.length === 0) {
        return false;
    }
    fill('job-facts', ['What', 'Value'], [
        ...jobs.slice(0, 1).map((job) => {
            const [, planner, state, tasks] = jobRow(job, now);
            return ['Spark application', `${state}, ${tasks} tasks done, planner ${planner}`];
        }),
        ...phases.slice(0, 1).map((phase) => ['Latest I/O phase', phaseRow(phase, now)[1]]),
        ...steps.flatMap((step) => stepRows(step, model.steps)),
        ...own.flatMap(ownRows),
    ]);
    // The traffic of a Spark application counts under its ID: a limit of its name has no effect.
    const isOther = jobs.length > 0 && own.length === 0;
    const text = isPlain(name) && !isOther ? `forebay limit ${quoted(name)} 200MB/s` : '';
    element('limit').hidden = text === '' || recorded !== null;
    if (element('command').textContent !== text) {
        element('command').textContent = text;
        element('copy').textContent = 'Copy';
    }
    fill('job-servers', SERVER_HEAD, trafficRows(traffic, name));
    fill('job-waves', ['Wave', '#Tasks', '#Input', '#Cached before', '#Prefetched', '#Given up', '#Prefetch', '#Tasks ran'], jobs.flatMap(waveRows).slice(0, DECISIONS_SHOWN));
    fill('job-phases', PHASE_HEAD, phases.slice(0, DECISIONS_SHOWN).map((phase) => phaseRow(phase, now)));
    fill('job-decisions', DECISION_HEAD, plans.slice(0, DECISIONS_SHOWN).map((plan) => decisionRow(plan, now)));
    return true;
}
function stepRows(step, all) {
    const waiting = all.filter((other) => other.waits_for.includes(`${step.name} of user ${step.user}`));
    const waits = step.waits_for.length === 0 ? '' : ` for ${step.waits_for.join(', ')}`;
    return [
        ['Step', `${step.writes ? 'writes' : 'waits'} since ${seconds(step.since_ms)}${waits}`],
        ...waiting.map((other) => ['Waits for this job', linked('job', other.name)]),
    ];
}
/** Traffic and limit of a job of one user. */
function ownRows(job) {
    const limit = job.limit_bytes_per_s === null ? 'no limit' : `limit ${bytes(job.limit_bytes_per_s)}/s, requests waiting for it: ${job.held}, for ${seconds(job.held_ms)} so far`;
    return [
        [`User ${job.job.user} moves now`, rates(job.servers)],
        [`User ${job.job.user} may move`, { text: limit, late: job.held > 0 }],
    ];
}
/** The latest first. */
function waveRows(job) {
    const span = (from, to) => from === null ? '-' : `${seconds(from)} to ${to === null ? '...' : seconds(to)}`;
    return job.stages.flatMap((stage) => stage.waves.map((wave, number) => [
        `${stage.stage}.${number}`, `${wave.tasks_done}/${wave.tasks}`, bytes(wave.bytes), bytes(wave.resident_bytes),
        bytes(wave.fetched_bytes), { text: bytes(wave.failed_bytes), late: wave.failed_bytes > 0 },
        span(wave.prefetch_began_ms, wave.prefetch_ended_ms), span(wave.compute_began_ms, wave.compute_ended_ms),
    ])).reverse();
}
/** No control characters, which a limit may not have, and no invisible ones, which mislead. */
function isPlain(name) {
    return !/[\p{Cc}\p{Cf}]/u.test(name);
}
/** One word of a POSIX shell. */
function quoted(name) {
    const word = /^[\w.,:@%+=/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
    return name.startsWith('-') ? `-- ${word}` : word;
}
/** Shows the part of the page that the route names, and its title. */
function pages(v) {
    if (route.kind === 'node' && recorded === null && v.model.node.name !== route.name) {
        // The previous page stays until the next answer, which is about this node.
        return;
    }
    const isKnown = route.kind === null || (route.kind === 'node' ? nodePage(v.model) : jobPage(v));
    element('overview').hidden = route.kind !== null;
    element('node-page').hidden = route.kind !== 'node' || !isKnown;
    element('job-page').hidden = route.kind !== 'job' || !isKnown;
    element('trail').hidden = route.kind === null;
    element('unknown').hidden = isKnown;
    element('back').href = link(null);
    const subject = route.kind === null ? '' : `${route.kind === 'node' ? 'Node' : 'Job'} ${route.name}`;
    element('subject').textContent = subject;
    element('unknown').textContent = route.kind === 'node'
        ? `No node of this name is a member now. Its agent has stopped, or has been silent for more than three seconds: run forebay status there, or see its log.`
        : `The coordinator knows no job of this name. It has not begun, or it ended some time ago, or the coordinator has restarted since.`;
    document.title = subject === '' ? 'Forebay' : `${subject} - Forebay`;
    if (route.kind === null) {
        tables(v);
        nodes(v.model);
    }
}
function sums(v) {
    const sample = v.model.samples.filter((s) => s.at_ms <= v.now).at(-1);
    const rate = sample === undefined ? '' : `, PFS reads ${bytes(sample.fetched_bytes_per_s)}/s, of that prefetch ${bytes(sample.prefetched_bytes_per_s)}/s, tier ${bytes(sample.resident_bytes)} of ${bytes(sample.capacity_bytes)}`;
    const now = recorded === null ? `${v.model.nodes.length} nodes, ${v.model.requests} prefetch requests pending` : `at ${seconds(v.now)}`;
    element('sums').textContent = now + rate;
}
let tablesDue = 0;
function show() {
    if (recorded === null && updates === 0) {
        // Nothing is known yet, so nothing is unknown either.
        return;
    }
    const v = view();
    draw(v);
    sums(v);
    // People read rows: five updates a second are enough, and cost less than the drawing.
    const now = performance.now();
    if (now >= tablesDue || recorded !== null) {
        tablesDue = now + 200;
        pages(v);
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
    source.length = 1;
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
/** The address has changed: by a link, the browser's buttons or by hand. */
async function follow() {
    const before = token;
    hash = readHash();
    route = readRoute();
    if (token !== before) {
        await openRun();
    }
    const run = hash.get('run') ?? '';
    if (run !== source.value) {
        source.value = run;
        await choose(run, Number(hash.get('at') ?? '1'));
    }
    showNow();
}
function showNow() {
    tablesDue = 0;
    show();
}
async function copy() {
    const button = element('copy');
    getSelection()?.selectAllChildren(element('command'));
    try {
        await navigator.clipboard.writeText(element('command').textContent ?? '');
        button.textContent = 'Copied';
    }
    catch {
        // Browsers give the clipboard only to pages over TLS or from this machine.
        button.textContent = 'Selected: press Ctrl-C';
    }
}
window.addEventListener('hashchange', () => void follow());
// A row must not move between the press and the release of a button on it.
document.addEventListener('pointerdown', () => (tablesDue = performance.now() + 600));
element('copy').addEventListener('click', () => void copy());
element('order').addEventListener('change', showNow);
element('login').addEventListener('submit', (event) => {
    event.preventDefault();
    token = element('token').value.trim();
    sessionStorage.setItem('token', token);
    void openRun();
});
source.addEventListener('change', () => {
    history.replaceState(null, '', link(route.kind, route.name));
    void choose(source.value, 1);
});
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
/** Lists the recorded runs, and shows the one that the address names. */
async function openRun() {
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
legend();
void poll();
void openRun();
