// Calls the page's pure modules for tests, one JSON line each: {"call": NAME, …} → a value.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const load = (name) => import(new URL(`state/${name}.js`, folder));
const [filters, expressions, { ContextTree }, { Tracker }, { Heights }, { Model }, { Rows }, json, link, reading, { Session }, { LivenessMonitor }, { cut }] =
  await Promise.all(
    ["filter/filter", "filter/expression", "tree", "results/transient", "log/heights", "model", "log/rows", "json", "filter/link", "log/describe", "connection/session", "connection/liveness", "results/summaries"].map(load),
  );

const { hueOf } = await import(new URL("view/elements/dom.js", folder));

const functions = {
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
    ]);
  },
  heights({ steps }) {
    const heights = new Heights();
    const naive = [];
    for (const [what, at, height] of steps) {
      if (what === "push") (heights.push(height), naive.push(height));
      else if (what === "set" && naive.length) {
        heights.set(at % naive.length, height);
        naive[at % naive.length] = height;
      } else if (what === "truncate") {
        heights.truncate(at % (naive.length + 1));
        naive.length = heights.length;
      }
    }
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
    rows.search = search;
    if (search) rows.layOut(0);
    return {
      rebuilt: model.rebuilt,
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
  // Returns the delays after connections that lasted this long each.
  delays({ held }) {
    const session = new Session();
    return held.map((heldMs) => session.closed(1006, heldMs).delay);
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
