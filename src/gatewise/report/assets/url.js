// The state in the address, after #: a view can be shared, and is there again after reloading. Only what differs from the
// opening view is written; what makes no sense is ignored.
function stateAsText(state) {
  const parts = new URLSearchParams(), all = (set, values) => values.every((value) => set.has(value));
  if (state.circuit !== "ns|dn") parts.set("circuit", CIRCUITS[state.circuit]);
  if (state.size !== data.sizes.length - 1) parts.set("size", String(data.sizes[state.size]));
  if (state.all) parts.set("edges", "all");
  if (state.level !== "ports") parts.set("level", state.level);
  if (!all(state.kinds, KINDS)) parts.set("found", [...state.kinds].join(","));
  if (!all(state.ports, portKinds)) parts.set("into", [...state.ports].join(","));
  if (state.gated) parts.set("gates", "only");
  if (state.score) parts.set("score", String(state.score));
  if (state.from !== -1 || state.to !== model.logits.layer) parts.set("layers", `${state.from}..${state.to}`);
  if (state.name) parts.set("name", state.name);
  if (state.pins.size) parts.set("pins", [...state.pins].map((id) => model.nodes[id].name).join(","));
  if (state.selected) parts.set(...(state.selected.edge !== undefined ? ["edge", model.edges[state.selected.edge].name] : ["node", model.nodes[state.selected.node].name]));
  if (state.prompt) parts.set("prompt", String(state.prompt + 1));
  return parts.toString();
}
function readState(text, state) {
  const parts = new URLSearchParams(text), list = (name) => (parts.get(name) || "").split(",");
  const subset = (name, values) => new Set(parts.has(name) ? values.filter((value) => list(name).includes(value)) : values);
  const number = (value, least, most, otherwise) => (/^-?\d+$/.test(value || "") && value >= least && value <= most ? Number(value) : otherwise);
  const size = data.sizes.indexOf(Number(parts.get("size"))), node = model.byName.get(parts.get("node"));
  const edge = model.edges.find((one) => one.name === parts.get("edge"));
  const [from, to] = (parts.get("layers") || "").split("..");
  Object.assign(state, {
    circuit: Object.keys(CIRCUITS).find((key) => CIRCUITS[key] === parts.get("circuit")) || "ns|dn",
    size: size < 0 ? data.sizes.length - 1 : size,
    all: parts.get("edges") === "all",
    level: parts.get("level") === "nodes" ? "nodes" : "ports",
    kinds: subset("found", KINDS),
    ports: subset("into", portKinds),
    gated: parts.get("gates") === "only",
    score: number(parts.get("score"), 0, 100, 0),
    from: number(from, -1, model.logits.layer, -1),
    to: number(to, -1, model.logits.layer, model.logits.layer),
    name: parts.get("name") || "",
    pins: new Set(list("pins").map((name) => model.byName.get(name)).filter(Boolean).map((one) => one.id)),
    selected: edge ? { edge: edge.id } : node ? { node: node.id } : null,
    prompt: number(parts.get("prompt"), 1, 1000, 1) - 1,
  });
}
let written = null, writing = 0;
function writeAddress(state) {
  clearTimeout(writing);
  writing = setTimeout(() => {
    written = stateAsText(state);
    history.replaceState(null, "", "#" + written);
  }, 120);
}
// Whether the address holds a state that is not the one we wrote; a mere anchor is none.
function addressState() {
  const text = location.hash.slice(1);
  return text.includes("=") && text !== written ? text : null;
}
