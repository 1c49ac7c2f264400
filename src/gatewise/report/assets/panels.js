// Words and tables: the headline, the details of what is pointed at or selected, the prompts, where it all comes from.
const MEANING = {  // what each direction sees, before any test of how edges act together
  ns: "losing it from the clean run hurts; giving it to the corrupted run does not help as much.",
  dn: "giving it to the corrupted run helps; losing it from the clean run does not hurt as much.",
  both: "losing it hurts, and giving it helps.",
};

function showHeadline() {
  const record = data.provenance, versions = record.versions || {};
  $("title").textContent = data.title;
  document.title = data.title + " – gatewise";
  $("subtitle").textContent = [record.method && `${record.method}, ${data.sizes.at(-1).toLocaleString("en")} edges per direction`,
    `${data.graph.edges.toLocaleString("en")} edges in the model`, record.examples && `${record.examples} pairs`,
    versions.gatewise && `gatewise ${versions.gatewise}`].filter(Boolean).join(" · ");
  fill($("facts"), data.facts.map((fact) => {
    const total = data.proportions.reduce((sum, one) => sum + one.edges, 0) || 1;
    const top = fact.answer ? el("p", { class: fact.answer.length > 16 ? "big long" : "big" }, fact.answer[0].toUpperCase() + fact.answer.slice(1))
      : [el("p", { class: "big" }, total.toLocaleString("en"), " edges"), el("div", { class: "bar", role: "presentation" },
        data.proportions.map((one) => el("span", { class: kindOf(one.type), width: 100 * one.edges / total + "%" })))];
    return el("div", { class: "fact" }, el("p", { class: "question" }, fact.title), top, el("p", { class: "small" }, fact.text));
  }));
  const gated = model.gates.some((gate) => gate.significant);
  fill($("legend"), Object.entries(MEANING).map(([kind, text]) =>
    el("li", {}, el("span", { class: "swatch " + kind }), el("b", {}, `${FOUND[kind]}: `), text, el("span", { class: "muted" }, ` (set-difference label ${LABELS[kind]})`))),
    gated ? el("li", { class: "beads" }, el("span", { class: "bead is-and" }), el("span", { class: "bead is-or" }), el("span", { class: "bead is-adder" }), el("span", { class: "bead is-other" }),
      el("b", {}, "beads: "), "the edge takes part in a tested gate, where its group acts as ", labelName("AND"), ", ", labelName("OR"), ", ", labelName("ADDER"), " or is ", labelName("undecided"), ".") : null);
  $("legend").hidden = $("kinds").hidden = !data.directed;  // without a direction there is one circuit and no gate
  const marks = { good: "✓", note: "i", warning: "!" };
  const remarks = (list) => list.map((one) => el("li", {},
    el("span", { class: "mark " + one.level, role: "img", "aria-label": one.level }, marks[one.level]), el("b", {}, one.title), " ", one.text));
  fill($("doubts"), remarks(data.doubts));
  $("doubts").hidden = data.doubts.length === 0;
  fill($("trust"), remarks(data.trust));
  fill($("steps"), data.next.map((step, i) => {
    const text = (data.next_commands || [])[i] || step.changes;
    return el("li", {}, step.why[0].toUpperCase() + step.why.slice(1), text ? [":", commandLine(text)] : ".");
  }));
  $("next").hidden = data.next.length === 0;
}
function kindOf(type) { return Object.keys(LABELS).find((kind) => LABELS[kind] === type); }

function edgeFacts(edge) {
  const lines = Object.keys(data.edges.score).map((name) => {
    const held = data.edges.in[name][edge.id], first = held ? data.sizes[Math.log2(held & -held)] : null;
    const exact = data.edges.exact[name] && data.edges.exact[name][edge.id];
    return [CIRCUITS[name], exact === undefined ? "" : signed(exact), number(data.edges.score[name][edge.id]), held ? `yes, from ${first}` : "no"];
  });
  const withExact = lines.some((line) => line[1]);
  return [el("table", {}, el("thead", {}, row("th", ["", ...(withExact ? ["effect"] : []), "score", "in circuit"])),
    el("tbody", {}, lines.map((line) => row("td", withExact ? line : [line[0], ...line.slice(2)])))),
  el("p", { class: "muted small" }, withExact ? `Effect: what it adds to the logit difference in the whole model, on ${plural(data.effect_pairs, "held-out pair")}; positive helps. ` : "",
    `Score: by ${data.provenance.method || "the search"}, on the pairs that were searched on.`)];
}
function testedText(edge) {
  const tested = data.edges.tested[edge.id];
  return tested < 0 ? "not tested" : TESTED[tested] === "undecided" ? "tests leave it open" : `tests as ${TESTED[tested]}`;
}
function truthTable(table) {
  const [i, j] = table.edges.map((edge) => model.edges[edge]), most = Math.max(...table.values.map(Math.abs)) || 1;
  const rows = [["neither", 0], [i.from.name, table.values[0]], [j.from.name, table.values[1]], ["both", table.values[2]]];
  const verdict = table.label === "undecided" ? "undecided" : `looks like ${table.label}`, [beyond, low, high] = table.beyond;
  return el("table", { class: "truth" },
    el("caption", {}, `${verdict} (both do ${number(beyond, 2)} more than the sum, ${number(low, 2)} to ${number(high, 2)}), `
      + `all else that it reads ${table.rest}`),
    el("thead", {}, el("tr", {}, el("th", {}, "clean"), el("th", { colSpan: 2 }, "normalised effect, whole model"))),
    el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, number(value, 2)),
      el("td", { class: "cell" }, el("div", { class: "fill", width: 100 * Math.abs(value) / most + "%" }))))));
}

function gateLines(edge) {
  return edge.gates.map(({ gate, name, label }) => el("p", { class: "small" }, "In a tested gate: group ", el("b", {}, name), ` of ${gate.receiver} `, labelName(label)));
}
function where(node) {
  return node.kind === "attention" ? `head ${node.row} of layer ${node.layer}` : node.kind === "output" ? "where the answer is read"
    : node.name === "input" ? "the embedded tokens" : data.graph.layered ? `layer ${layerName(node.layer)}` : `MLP of layer ${node.layer}`;
}
function describe(target, state) {
  if (target.edge !== undefined) {
    const edge = model.edges[target.edge], tables = model.tablesOf[edge.id];
    return [el("b", { class: "mono" }, edge.name), el("p", {}, "found by ", foundName(edge.by), `, ${testedText(edge)}`), gateLines(edge), ...edgeFacts(edge),
      tables.length && !edge.gates.length ? truthTable(tables[0]) : null].flat();
  }
  const node = model.nodes[target.node], { into, out } = edgesOf(target.node), gate = model.gatesOf[node.id][0];
  const strongestInto = into.slice().sort((a, b) => b.strength - a.strength).slice(0, 3), effect = data.nodes.effect[node.name];
  return [el("b", {}, node.name), el("span", { class: "muted" }, " " + where(node)),
    effect !== undefined ? el("p", {}, `normalised effect ${percent(effect)}`, effect < -data.against ? ", against the task" : "") : null,
    el("p", { class: "muted" }, `in ${into.length} (${countText(into)}), out ${out.length} (${countText(out)})`),
    strongestInto.length ? el("table", {}, el("tbody", {}, strongestInto.map((edge) => row("td", [edge.from.name + (edge.port.suffix ? ` → ${edge.port.suffix}` : ""),
      foundName(edge.by), percent(edge.strength)])))) : null,
    gate ? el("p", { class: "small" }, "Tested gate ", labelName(gate.label), ": ", gateSentence(gate)) : null,
    el("p", { class: "muted" }, "Click to see what it does.")];
}
function countText(edges, by = "by") {
  const counts = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  for (const edge of edges) counts[edge[by]] += 1;
  return KINDS.filter((kind) => counts[kind]).map((kind) => `${counts[kind]} by ${FOUND[kind]}`).join(", ") || "none";
}
// What is drawn, and what passes the filters: lists and what is pointed at go by the latter.
let drawnNow = [], byNode = model.nodes.map(() => ({ into: [], out: [] }));
function shownEdges() { return drawnNow; }
function edgesOf(node) { return byNode[node]; }
function setShown(drawn, listed) {
  drawnNow = drawn;
  byNode = model.nodes.map(() => ({ into: [], out: [] }));
  for (const edge of listed) { byNode[edge.from.id].out.push(edge); byNode[edge.to.id].into.push(edge); }
}

function showPanel(state, act) {
  const panel = $("panel"), { select } = act;
  const back = el("button", { type: "button", class: "quiet", on: { click: () => select(null) } }, "← Whole circuit");
  if (state.selected && state.selected.edge !== undefined) {
    const edge = model.edges[state.selected.edge], tables = model.tablesOf[edge.id];
    fill(panel, back, el("h3", { class: "mono name" }, edge.name), el("p", {}, "Found by ", foundName(edge.by), `, ${testedText(edge)}.`), gateLines(edge),
      edgeFacts(edge), tables.slice(0, 4).map(truthTable), moreTables(tables.slice(4)),
      el("p", {}, [edge.from, edge.to].map((node) => el("button", { type: "button", on: { click: () => select({ node: node.id }) } }, node.name))));
  } else if (state.selected) {
    const node = model.nodes[state.selected.node], pinned = state.pins.has(node.id);
    const pin = el("button", { type: "button", class: "quiet pin", "aria-pressed": String(pinned), on: { click: () => act.pin(node.id) } }, pinned ? "Unpin" : "Pin");
    fill(panel, el("div", { class: "panel-head" }, back, pin), el("h3", { id: "node-title", class: "name" }, node.name, el("span", { class: "muted" }, " " + where(node))),
      nodeDoing(node, state, act.again), nodeGates(node, select));
  } else fill(panel, strongestReceivers(select));
}
function showPins(state, act) {
  fill($("pins"), state.pins.size ? [el("span", { class: "muted" }, "Pinned"), ...[...state.pins].map((id) => el("span", { class: "chip" },
    el("button", { type: "button", class: "link", on: { click: () => act.select({ node: id }) } }, model.nodes[id].name),
    el("button", { type: "button", class: "close", "aria-label": `Unpin ${model.nodes[id].name}`, on: { click: () => act.pin(id) } }, "×")))] : []);
  $("pins").hidden = state.pins.size === 0;
}
function moreTables(tables) {
  return tables.length ? el("details", {}, el("summary", {}, `${tables.length} more truth tables`), tables.map(truthTable)) : null;
}
function nodeGates(node, select) {
  const { into, out } = edgesOf(node.id), parts = [];
  const total = (port) => into.reduce((sum, edge) => sum + (edge.port === port ? edge.strength : 0), 0);
  const strongestFirst = (edges) => edges.slice().sort((a, b) => b.strength - a.strength);
  const [largest, ...others] = model.gatesOf[node.id];
  if (largest) parts.push(gateCard(largest, null));
  if (others.length) parts.push(el("details", {}, el("summary", {}, plural(others.length, "more tested gate")), others.map((gate) => gateCard(gate, null))));
  for (const port of node.ports.slice().sort((a, b) => total(b) - total(a))) {  // the strongest first
    const edges = into.filter((edge) => edge.port === port);
    if (!edges.length) continue;
    const tables = data.tables.filter((table) => model.edges[table.edges[0]].port === port && table.edges.every((id) => model.edges[id].listed));
    const lines = strongestFirst(edges).map((edge) => el("tr", {},
      el("td", {}, el("button", { type: "button", class: "link", on: { click: () => select({ edge: edge.id }) } }, edge.from.name)),
      el("td", {}, number(data.edges.score.ns[edge.id], 2)), el("td", {}, number(data.edges.score.dn[edge.id], 2)),
      el("td", {}, foundName(edge.by)), el("td", {}, data.edges.tested[edge.id] < 0 ? "–" : TESTED[data.edges.tested[edge.id]])));
    parts.push(el("div", { class: "gate" }, el("h4", { class: "mono" }, `into ${port.name}`),
      el("table", {}, el("thead", {}, row("th", ["sender", "ns", "dn", "found by", "test of two"])), el("tbody", {}, lines)),
      tables.slice(0, 1).map(truthTable), moreTables(tables.slice(1))));
  }
  const readers = strongestFirst(out).slice(0, 12);
  return [parts.length ? el("h4", { class: "gate" }, "What it reads") : null, ...parts,
    readers.length ? el("div", { class: "gate" }, el("h4", {}, "Who reads it"), el("p", { class: "readers" }, readers.map((edge) =>
      el("button", { type: "button", class: "link", on: { click: () => select({ node: edge.to.id }) } }, edge.port.name)),
      out.length > readers.length ? el("span", { class: "muted" }, `and ${out.length - readers.length} more`) : null)) : null];
}
function strongestReceivers(select) {
  const totals = model.nodes.map((node) => [node, edgesOf(node.id).into.reduce((sum, edge) => sum + edge.strength, 0)]).filter(([, total]) => total > 0);
  const top = totals.sort((a, b) => b[1] - a[1]).slice(0, 40), most = top.length ? top[0][1] : 1;
  return [el("h3", {}, "Strongest receivers"), el("p", { class: "muted" }, "Select one to see what it does, and its gates."),
    el("ul", { class: "list" }, top.map(([node, total]) => {
      const { into } = edgesOf(node.id), gate = model.gatesOf[node.id][0];
      const bar = el("div", { class: "bar mini", width: 100 * total / most + "%" }, KINDS.map((kind) => {
        const part = into.filter((edge) => edge.by === kind).reduce((all, edge) => all + edge.strength, 0);
        return part ? el("span", { class: kind, width: 100 * part / total + "%" }) : null;
      }));
      return el("li", {}, el("button", { type: "button", "data-node": node.name, "aria-label": `${node.name}: ${countText(into)}${gate ? `; tested gate: ${gate.label}` : ""}`,
        on: { click: () => select({ node: node.id }) } }, el("span", {}, node.name, el("span", { class: "muted" }, ` ${into.length}`)), bar, gate ? labelName(gate.label) : el("span")));
    }))];
}

function showExamples() {
  const names = { clean: "model, clean", corrupted: "model, corrupted", ...Object.fromEntries(Object.entries(CIRCUITS).map(([key, text]) => [key, `${text} circuit`])) };
  const shown = (text) => `“${text.trim() || text}”`, list = (texts) => texts.length > 4 ? `${shown(texts[0])} … ${shown(texts.at(-1))}` : texts.map(shown).join(", ");
  const bar = (value, kind) => el("div", { class: "prob " + kind }, el("i", { width: 100 * value + "%" }), el("span", {}, percent(value)));
  fill($("examples"), data.examples.map((example) => el("article", { class: "example" },
    el("p", { class: "prompt" }, marked(example.clean, example.corrupted)),
    el("p", { class: "prompt other" }, "Corrupted: ", marked(example.corrupted, example.clean)),
    el("p", { class: "answers" }, `correct ${list(example.correct)}, incorrect ${list(example.incorrect)}`),
    el("table", {}, el("colgroup", {}, el("col"), el("col"), el("col"), el("col")), el("thead", {}, row("th", ["", "P(correct)", "P(incorrect)", "says"])),
      el("tbody", {}, Object.entries(names).filter(([key]) => example.answers[key]).map(([key, text]) => {
        const answer = example.answers[key], top = answer.top[0];
        return el("tr", {}, el("td", {}, text), el("td", {}, bar(answer.correct, "correct")), el("td", {}, bar(answer.incorrect, "incorrect")),
          el("td", { title: answer.top.map(([token, p]) => `${shown(token)} ${percent(p)}`).join(", ") }, top ? shown(top[0]) : ""));
      }))))));
  $("prompts").hidden = data.examples.length === 0;
}
// The words in which a prompt differs from its other version, underlined.
function marked(text, other) {
  const words = text.split(/(\s+)/), others = other.split(/(\s+)/);
  if (words.length !== others.length) return [text];
  return words.map((word, i) => (word === others[i] ? word : el("mark", {}, word)));
}

function showProvenance() {
  const record = data.provenance, versions = record.versions || {}, time = record.time || {};
  if (data.command) fill($("command"), el("p", { class: "muted" }, "This command makes the same report again:"), commandLine(data.command));
  const flat = (value) => (value && typeof value === "object" ? Object.entries(value).map(([key, one]) => `${key} ${inner(one)}`).join(", ") : String(value));
  const inner = (value) => (value && typeof value === "object" ? `(${flat(value)})` : String(value));
  const entries = { model: record.model, weights: record.weights, task: record.task, pairs: record.examples, "pairs' fingerprint": record.data,
    method: record.method, parameters: record.parameters && flat(record.parameters), seed: record.seed, precision: record.dtype,
    device: record.device, threads: record.threads, versions: flat(versions), finished: time.finished,
    "time": data.seconds ? `${data.seconds} s in all` : null };
  fill($("record"), Object.entries(entries).filter(([, value]) => value !== undefined && value !== null && value !== "").flatMap(([key, value]) =>
    [el("dt", {}, key), el("dd", {}, String(value))]));
}
