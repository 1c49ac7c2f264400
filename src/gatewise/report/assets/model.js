// The report's data and what follows from them: nodes, ports, names, and which edges are in which circuit.
const data = JSON.parse(document.getElementById("data").textContent);
const FOUND = { ...data.found_by, none: "neither alone" };  // who found an edge: noising only, denoising only, both
const KINDS = Object.keys(FOUND);
const TESTED = data.tested_labels;
const CIRCUITS = data.circuits;
const LABELS = data.set_difference_labels;  // what the set difference of the two circuits calls these edges

const model = (() => {
  const nodes = [], ports = [], byName = new Map();
  for (const sublayer of data.graph.sublayers) {
    sublayer.nodes.forEach((name, row) => {
      const node = { id: nodes.length, name, kind: sublayer.kind, layer: sublayer.layer, row, ports: [] };
      byName.set(name, node);
      nodes.push(node);
    });
  }
  const logits = { id: nodes.length, name: "logits", kind: "output", layer: data.graph.sublayers.at(-1).layer, row: 0, ports: [] };
  const senders = nodes.slice();
  nodes.push(logits);
  byName.set("logits", logits);
  for (const sublayer of data.graph.sublayers) {
    for (const name of sublayer.ports) {
      const [, owner, input] = /^(.*?)(?:<([qkv])>)?$/.exec(name);
      const node = byName.get(owner);
      const kind = input || (node.kind === "attention" ? "head" : node.kind === "output" ? "logits" : "mlp");
      const port = { id: ports.length, name, node, kind, suffix: input || "" };
      node.ports.push(port);
      ports.push(port);
    }
  }
  const columns = data.edges, count = columns.sender.length;
  const edges = Array.from({ length: count }, (_, i) => ({
    id: i, from: senders[columns.sender[i]], port: ports[columns.port[i]], to: ports[columns.port[i]].node,
    name: senders[columns.sender[i]].name + "->" + ports[columns.port[i]].name, by: "none", shade: "none", listed: false, line: false, visible: false, strength: 0, gates: [],
  }));
  const tablesOf = edges.map(() => []);
  for (const table of data.tables) for (const edge of table.edges) tablesOf[edge].push(table);
  const gates = data.gates ? data.gates.tested : [];
  gates.forEach((gate, id) => {
    gate.id = id;
    gate.node = byName.get(gate.receiver);
    if (!gate.significant) return;  // marks no edge
    for (const [name, group] of Object.entries(gate.groups)) {
      for (const edge of group.shown || []) edges[edge].gates.push({ gate, name, label: group.label });
    }
  });
  const gatesOf = nodes.map((node) => gates.filter((gate) => gate.node === node && gate.significant));
  return { nodes, senders, ports, edges, byName, logits, tablesOf, gates, gatesOf };
})();

function isIn(circuit, edge, size) {
  const bit = 1 << size, held = data.edges.in;
  if (circuit === "ns|dn") return ((held.ns[edge] | held.dn[edge]) & bit) !== 0;
  return (held[circuit][edge] & bit) !== 0;
}

function foundBy(edge, size) {
  const bit = 1 << size, ns = data.edges.in.ns[edge] & bit, dn = data.edges.in.dn[edge] & bit;
  return ns && dn ? "both" : ns ? "ns" : dn ? "dn" : "none";
}

// |score| relative to the strongest, in the direction that found the edge.
const strongest = Object.fromEntries(Object.entries(data.edges.score).map(([name, scores]) => {
  const held = data.edges.in[name];
  return [name, scores.reduce((most, score, i) => (held[i] ? Math.max(most, Math.abs(score)) : most), 0) || 1];
}));
function strengthIn(circuit, edge, size) {
  const bit = 1 << size;
  const of = (name) => (data.edges.in[name][edge] & bit ? Math.abs(data.edges.score[name][edge]) / strongest[name] : 0);
  return circuit === "ns|dn" ? Math.max(of("ns"), of("dn")) : of(circuit);
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1e-9) return "0";
  const text = size >= 1000 ? Math.round(value).toLocaleString("en") : size < 0.001 ? value.toExponential(1) : value.toPrecision(digits);
  return text.replace("-", "−");
}
// Two decimals, without a minus before zero.
function fixed2(value) { return value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−"); }
function signed(value) { return (value > 0 ? "+" : "") + fixed2(value); }
function plural(count, one, many = one + "s") { return `${count.toLocaleString("en")} ${count === 1 ? one : many}`; }
function percent(value) { return value === null || value === undefined ? "–" : Math.round(100 * value) + " %"; }
function layerName(layer) { return layer < 0 ? "input" : layer >= model.logits.layer ? "logits" : String(layer); }
