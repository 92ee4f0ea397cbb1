// Calls the page's pure modules for tests, one JSON line each: {"call": NAME, …} → a value.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const load = (name) => import(new URL(`state/${name}.js`, folder));
const [filters, expressions, { ContextTree }, { Tracker }, { Heights, SplitHeights }, { Model }, { Rows }, json, link, reading, { Session }, { LivenessMonitor }, { cut }, { Past }, { Shown }, searches, { readPage }, { readMoment }, { queryOf }, { Matches }, words, { Labels }, { Claims }, { LiveTexts, isLivePart }, references, { usageOf }, { readTable }] =
  await Promise.all(
    ["filter/filter", "filter/expression", "tree", "results/transient", "log/heights", "model", "log/rows", "json", "filter/link", "log/describe", "connection/session", "connection/liveness", "results/summaries", "history/past", "log/shown", "history/search", "history/requests", "history/moments", "history/query", "history/matches", "history/words", "labels", "claims", "live", "log/references", "outcomes", "results/tables"].map(load),
  );

const { hueOf } = await import(new URL("view/elements/dom.js", folder));

const functions = {
  localId: ({ id, pod }) => references.localId(id, pod),
  originOf: ({ envelope }) => references.originOf(envelope),
  hues: ({ names }) => names.map(hueOf),
  hasDuplicateKeys: ({ text }) => json.hasDuplicateKeys(text),
  describe({ envelope }) {
    return reading.describe(envelope);
  },
  conclusion: ({ payload }) => reading.conclusionText(payload),
  check({ filter }) {
    try {
      filters.check(filter);
      return null;
    } catch (error) {
      return error.message;
    }
  },
  select({ filter, envelopes }) {
    const test = filters.compile(filter);
    const tree = new ContextTree();
    return envelopes
      .filter((envelope, i) => test(envelope, tree.lineage(tree.add(envelope, i))))
      .map(({ id }) => id);
  },
  reprint({ filter }) {
    const text = expressions.print(filter);
    return { text, filter: expressions.parse(text) };
  },
  parse({ text }) {
    try {
      return { filter: expressions.parse(text) };
    } catch (error) {
      return { message: error.message, position: error.position };
    }
  },
  complete({ text, known }) {
    return expressions.complete(text, text.length, known).options;
  },
  track({ envelopes }) {
    const tracker = new Tracker();
    for (const envelope of envelopes) tracker.add(envelope);
    return envelopes.map(({ id }) => [tracker.badges(id), tracker.summary(id)]);
  },
  tree({ envelopes }) {
    const tree = new ContextTree();
    envelopes.forEach((envelope, i) => tree.add(envelope, i));
    return [...tree].map((node) => [
      node.id, node.type ?? null, node.parent?.id ?? null, node.count, [...node.participants],
      node.state, node.conclusion?.id ?? null, node.creator ?? null,
      node.title ?? null, node.progress,
    ]);
  },
  readTable: ({ text }) => readTable(text),
  usage({ payload }) {
    const usage = usageOf({ kind: "conclusion", payload });
    return usage && [usage.input, usage.output, usage.cached, usage.model];
  },
  tokens({ envelopes }) {
    const tree = new ContextTree();
    envelopes.forEach((envelope, i) => tree.add(envelope, i));
    const numbers = ({ input, output, cached }) => [input, output, cached];
    return {
      contexts: Object.fromEntries([...tree].map((node) => [node.id, numbers(node.tokens)])),
      participants: Object.fromEntries([...tree.tokensBy].map(([id, models]) => [
        id, Object.fromEntries([...models].map(([model, sum]) => [model, numbers(sum)])),
      ])),
    };
  },
  claims({ envelopes }) {
    const claims = new Claims();
    for (const envelope of envelopes) claims.receive(envelope, 0);
    return [...claims].map(({ name, holder, id }) => [name, holder, id]);
  },
  heights({ steps, head }) {
    const heights = head ? new SplitHeights() : new Heights();
    const replaced = head ?? [];
    if (head) heights.setHead([5, 7]); // replaced below
    const naive = [];
    for (const [what, at, height] of steps) {
      const above = head ? 2 : 0;
      if (what === "push") (heights.push(height), naive.push(height));
      else if (what === "set" && naive.length) {
        heights.set(above + (at % naive.length), height);
        naive[at % naive.length] = height;
      } else if (what === "truncate") {
        heights.truncate(above + (at % (naive.length + 1)));
        naive.length = heights.length - above;
      }
    }
    if (head) heights.setHead(replaced);
    naive.unshift(...replaced);
    if (heights.length !== naive.length || heights.total !== naive.reduce((sum, one) => sum + one, 0)) return false;
    const tops = naive.map((_, i) => naive.slice(0, i).reduce((sum, one) => sum + one, 0));
    return tops.every((top, i) => heights.top(i) === top && heights.find(top) === i);
  },
  // Processes frames in order and returns the resulting state of the model.
  model({ frames, folds = [], search = "", updates = true, limits, now = 1_000 }) {
    const model = new Model({ newId: () => "new", limits });
    const rows = new Rows(model);
    for (const frame of frames) {
      if (frame.use) model.useFilter(frame.use);
      else model.receive(JSON.stringify(frame), frame.now ?? now);
      if (updates) rows.update();
    }
    rows.update();
    for (const [id, folded] of folds) rows.fold(model.tree.get(id), folded);
    rows.search = searches.readSearch(search, now);
    if (search) rows.layOut(0);
    return {
      rebuilt: model.rebuilt,
      isStale: model.isStale,
      rows: rows.rows.map(({ entry, fold }) => (fold ? `fold ${fold.id}` : entry.mark ?? entry.envelope.id)),
      folds: Object.fromEntries(rows.rows.filter(({ fold }) => fold).map(({ fold, since, forMe }) => [fold.id, [since, forMe]])),
      query: model.session.query(model.filter),
      present: [...model.participants.values()].filter(({ present }) => present).map(({ id }) => id),
      refusals: model.outbox.refusals.map(({ envelope }) => envelope.payload.error),
      kept: JSON.stringify([[...model.tracker._calls.values()], [...model.tracker._copies.keys()]]),
      open: model.proposals.open.map(({ envelope }) => envelope.id),
      rejections: Object.fromEntries([...model.proposals].map(({ envelope, rejections }) => [envelope.id, rejections])),
      resolutions: Object.fromEntries([...model.proposals].map(({ envelope, state, by }) => [envelope.id, [state, by ?? null]])),
      tree: [...model.tree].map(({ id }) => id),
      spans: Object.fromEntries([...model.tree].map(({ id, start, end }) => [id, [start, end]])),
      rates: model.rates.read(now + 1_000),
      states: Object.fromEntries([...model.tree].map((node) => [node.id, model.stateOf(node)])),
    };
  },
  // Simulates a gateway with a limited history: envelopes and filter changes, then the rows shown.
  filtered({ steps, welcome, history }) {
    const model = new Model({ newId: () => "new" });
    const rows = new Rows(model);
    rows.foldConcluded = false;
    const [log, tree] = [[], new ContextTree()];
    const hear = (envelope) => model.receive(JSON.stringify(envelope), Date.parse(log.at(-1)?.envelope.ts ?? envelope.ts));
    const isSent = ({ envelope, node }) => filters.compile(model.filter)(envelope, tree.lineage(node));
    const join = (members) => {
      const contexts = [...tree].reverse().map(({ id, type, parent, creator }) => ({ id, type, parent: parent?.id, creator }));
      const ts = log.at(-1)?.envelope.ts ?? welcome.ts;
      hear({ ...welcome, ts, payload: { ...welcome.payload, contexts, ...members } });
    };
    join({});
    for (const step of steps) {
      if (step.use) {
        model.useFilter(step.use);
        const replay = model.isReloading ? log.slice(-history).filter(isSent) : [];
        join({ resumed: !model.isReloading, replayed: replay.length });
        for (const { envelope } of replay) hear(envelope);
      } else {
        log.push({ envelope: step, node: tree.add(step, log.length) });
        if (isSent(log.at(-1))) hear(step);
      }
      rows.update();
    }
    return {
      rows: rows.rows.map(({ entry }) => entry.mark ?? entry.envelope.id),
      wanted: log.filter(isSent).map(({ envelope }) => envelope.id),
      kept: log.slice(-history).filter(isSent).map(({ envelope }) => envelope.id),
    };
  },
  // Simulates a gateway with a long log of which a suffix was received: pages are requested, answered in
  // any order or lost, while envelopes arrive and old ones are dropped. Returns what is wrong with the rows.
  past({ steps, welcome, before, page, limits, bounds, query = {} }) {
    const model = new Model({ newId: () => "new", limits });
    const past = new Past(model, { page, ...bounds });
    const [rows, older] = [new Rows(model), new Rows(past)];
    rows.foldConcluded = older.foldConcluded = false;
    const shown = new Shown(older, rows);
    const log = [];
    const write = () => {
      const number = log.length;
      const context = number % 3 ? { context: { id: `k${number % 2}` } } : {};
      const envelope = { protocol: "mcpp/v0.1", id: `${number}`, ts: new Date(number * 1000).toISOString(), from: "bob", kind: "chat", ...context, payload: {} };
      log.push({ position: number * 3, time: Math.floor(number / 2), envelope, text: JSON.stringify(envelope) });
      return log.at(-1);
    };
    const test = filters.compile(query.filter ?? filters.everything);
    const isWanted = ({ envelope }) => test(envelope, envelope.context ? { id: envelope.context.id, ancestors: [] } : null);
    const hear = (one) => model.receive(one.text ?? JSON.stringify(one), log.at(-1)?.time * 1000 || 0);
    // Answers as the contract of history says; `scan` bounds the work, so pages may be empty.
    const answer = ({ before, after, order, limit, cursor }, scan) => {
      const place = (bound) => log.findIndex(({ envelope }) => envelope.id === bound);
      const isBefore = ({ time }, i) => before === undefined || (typeof before === "string" ? i < place(before) : time < before);
      const isAfter = ({ time }, i) => after === undefined || (typeof after === "string" ? i > place(after) : time > after);
      const list = log.map((one, i) => [one, i]).filter(([one, i]) => isBefore(one, i) && isAfter(one, i));
      if (order === "newest") list.reverse();
      const rest = list.filter(([, i]) => cursor === undefined || (order === "newest" ? i < Number(cursor) : i > Number(cursor)));
      const read = rest.slice(0, Math.min(limit, scan));
      const next = read.length < rest.length ? String(read.at(-1)[1]) : null;
      return { entries: read.map(([one]) => one).filter(isWanted), next, epoch: welcome.payload.pod.epoch };
    };
    for (let i = 0; i < before; i += 1) write();
    past.use(query);
    model.filter = query.filter ?? model.filter;
    hear({ ...welcome });
    const pending = [];
    const problems = [];
    const check = () => {
      shown.update();
      const list = Array.from({ length: shown.count }, (_, i) => shown.at(i));
      const keys = list.map((_, i) => shown.key(i));
      keys.forEach((key, i) => { if (shown.find(key) !== i) problems.push(`${key} is not found`); });
      if (list[0].edge !== "older") problems.push("no edge");
      if (past.log.size > (bounds?.maxEntries ?? Infinity) + page) problems.push("too many");
      const wanted = log.filter(isWanted).map(({ envelope }) => envelope.id);
      let last = null;
      for (const { edge, entry } of list.slice(1)) {
        const at = edge ? -1 : wanted.indexOf(entry.envelope.id);
        if (!edge && last !== null && at !== last + 1) problems.push(`${wanted[last]} then ${entry.envelope.id}`);
        if (!edge && past.older.isDone && last === null && entry === list[1].entry && at !== 0) problems.push("the beginning is missing");
        last = edge ? null : at;
      }
      if (past.isAttached && list.length > 1 && last !== null && last !== wanted.length - 1) problems.push("the end is missing");
      // What is known twice must agree: after a hole, rows go on later.
      const order = list.filter(({ entry }) => entry).map(({ entry }) => Number(entry.envelope.id));
      if (order.some((id, i) => i && order[i - 1] >= id)) problems.push(`order ${order}`);
    };
    for (const [what, number] of steps) {
      if (what === "hear") {
        for (let i = 0; i <= number % 8; i += 1) {
          const one = write();
          if (isWanted(one)) hear(one);
        }
      } else if (what === "load") {
        const asked = ["older", "newer"].map((edge) => [edge, past.ask(edge)]).filter(([, request]) => request);
        for (const [edge, request] of asked) past.accept(edge, request, answer(request, 1 + (number % 7)));
      } else if (what === "older" || what === "newer") {
        const request = past.ask(what);
        if (request) pending.push([what, request]);
      } else if (what === "answer" && pending.length) {
        const [[edge, request]] = pending.splice(number % pending.length, 1);
        past.accept(edge, request, answer(request, 1 + (number % 7)));
      } else if (what === "refuse" && pending.length) {
        const [[edge, request]] = pending.splice(number % pending.length, 1);
        past.refuse(edge, request, "No.");
      } else if (what === "lose") {
        pending.length = 0;
        past.disconnect();
      } else if (what === "locate") {
        const [entry] = answer(past.firstSince(number / 2), Infinity).entries;
        if (entry && !past.isReceived(entry)) past.around(entry);
      } else if (what === "restart") past.restart();
      else if (what === "around" && past.log.size) past.around(past.log.entries[number % past.log.entries.length]);
      check();
    }
    // With answers to everything, the whole log can be read back.
    past.restart();
    for (let i = 0; i < 400 && !past.older.isDone; i += 1) {
      const request = past.ask("older");
      past.accept("older", request, answer(request, 50));
      check();
    }
    const oldest = log.find(isWanted)?.envelope.id;
    const first = [...Array(shown.count).keys()].map((i) => shown.at(i)).find(({ entry }) => entry);
    if (oldest !== undefined && first?.entry.envelope.id !== oldest) problems.push("the oldest is not reached");
    for (let i = 0; i < 400 && !past.isAttached; i += 1) {
      const request = past.ask("newer");
      past.accept("newer", request, answer(request, 50));
      check();
    }
    if (!past.isAttached) problems.push("not attached again");
    return problems.slice(0, 5);
  },
  page: ({ text }) => readPage(JSON.parse(text).payload, text),
  search({ text, now, entry }) {
    try {
      const search = searches.readSearch(text, now);
      if (search === null) return null;
      const { text: words, terms, filter, since, until } = search;
      return { text: words, terms: terms.map(({ longest }) => longest), filter, since, until, matches: entry ? search.matches(entry) : undefined };
    } catch (error) {
      return { message: error.message };
    }
  },
  // Returns whether a text matches, and the parts of it that would be highlighted.
  found({ text, payload, context }) {
    const search = searches.readSearch(text, 0);
    const envelope = { kind: "chat", payload, context };
    const found = search?.matches({ envelope, lineage: null, at: 0, text: JSON.stringify(envelope) }) ?? false;
    const parts = typeof payload === "string" && search ? words.occurrences(payload, search.terms) : [];
    return { found, sent: search?.text ?? "", marked: parts.map(([from, to]) => payload.slice(from, to)) };
  },
  moment: ({ text, now, isEnd }) => readMoment(text, now, { isEnd }),
  query: ({ filter, me, view, search, now }) => queryOf({ filter, me }, { ...view, search: searches.readSearch(search, now) }),
  // Counts in pages of these positions each, and returns the ranks of some.
  matches({ pages, ask, maxCount, countTo = [] }) {
    const matches = new Matches({ maxCount });
    matches.start({ text: "x" });
    let asked = 0;
    const count = () => {
      for (let request = matches.ask(); request; request = matches.ask()) {
        const entries = pages[asked].map((position) => ({ position }));
        asked += 1;
        matches.accept(request, { entries, next: asked < pages.length ? `${asked}` : null });
      }
    };
    count();
    for (const position of countTo) {
      matches.countTo(position);
      count();
    }
    return { asked, count: matches.positions.length, isComplete: matches.isComplete, ranks: ask.map((one) => matches.rank(one)) };
  },
  // Composes drafts, processes frames, and returns what remains to be sent.
  unconfirmed({ drafts, frames }) {
    const model = new Model({ newId: () => "new" });
    for (const draft of drafts) model.outbox.compose(draft, 1_000);
    for (const frame of frames) model.receive(JSON.stringify(frame), 1_000);
    const since = model.outbox.unconfirmedChats[0]?.since ?? null;
    const texts = model.unconfirmed().map((text) => JSON.parse(text));
    const refusals = model.outbox.refusals.map(({ envelope }) => [envelope.correlation_id, envelope.payload.error]);
    return { since, texts, refusals };
  },
  // Processes frames, composes drafts, and returns the error and what remains to be sent.
  compose({ drafts, frames }) {
    const model = new Model({ newId: () => "new" });
    for (const frame of frames) model.receive(JSON.stringify(frame), 1_000);
    let problem = null;
    try {
      for (const draft of drafts) model.outbox.compose(draft, 1_000);
    } catch (error) {
      problem = error.message;
    }
    return { problem, unconfirmed: model.unconfirmed().length };
  },
  // Returns the results of calls to a liveness monitor, each given with its time in seconds.
  liveness({ steps }) {
    const liveness = new LivenessMonitor();
    return steps.map(([what, seconds]) => liveness[what](seconds * 1_000) ?? null);
  },
  // Returns what the page shows of an index: the share of the log that it has, or null.
  indexing({ pages }) {
    const past = new Past(new Model({ newId: () => "new" }));
    return pages.map((payload) => {
      past.noteIndex(readPage(payload, JSON.stringify({ payload })));
      return past.indexing;
    });
  },
  labels({ ids, title }) {
    const labels = new Labels();
    return ids.map((id) => labels.of(id, title));
  },
  // Asks for changes of a replay: each step is a change, the number of one that is answered, or "lost".
  replay({ steps }) {
    let ids = 0;
    const model = new Model({ newId: () => `${(ids += 1)}` });
    const control = model.replayControl;
    const sent = [];
    for (const step of steps) {
      if (typeof step === "number") control.answer(sent[step].id);
      else if (step !== "lost") sent.push(control.ask(step));
      else {
        control.lose();
        const again = control.repeat();
        if (again) sent.push(again);
      }
    }
    return { sent: sent.map(({ payload }) => payload), wanted: control.wanted };
  },
  // Returns the delays after connections that lasted this long each.
  delays({ held, code = 1006, welcome }) {
    const session = new Session();
    if (welcome) session.welcome(welcome);
    return held.map((heldMs) => session.closed(code, heldMs).delay);
  },
  // Returns the texts that are being written after each envelope: sender, id, text.
  live({ envelopes }) {
    const texts = new LiveTexts();
    return envelopes.map((envelope) => {
      if (isLivePart(envelope)) texts.add(envelope, 0);
      else texts.observe(envelope);
      return texts.all.map(({ from, id, text }) => [from, id, text]);
    });
  },
  // Returns the position to resume from, and the size of the log, after live parts.
  afterParts({ texts }) {
    const model = new Model();
    const classes = texts.map((text) => model.receive(text, 1_000));
    return { classes, lastId: model.session.lastId, size: model.log.size };
  },
  cut: ({ text, limit }) => cut(text, limit),
  reveal: ({ text }) => json.reveal(text),
  unescaped: ({ text }) => json.unescaped(text),
  indent: ({ text }) => json.indent(text),
  code: ({ fragment }) => link.readCode(fragment),
  view: ({ view }) => link.readView(link.writeView(view)),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...rest } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(functions[call](rest) ?? null)}\n`);
}
