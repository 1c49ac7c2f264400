// Wiring: one state, controls that change it, and one function that shows it.
const OPENING = 60;  // edges drawn at first: the strongest
const PORTS = { q: "q", k: "k", v: "v", head: "head", mlp: data.graph.layered ? "gate" : "MLP", logits: "logits" };
const portKinds = Object.keys(PORTS).filter((kind) => model.ports.some((port) => port.kind === kind));
const state = {};
readState(addressState() || "", state);

let panelLater = 0, first = true, ranked = [], rankedFor = "", passing = [];
function rank() {  // the edges of the chosen circuit, the weakest first; filters keep the order
  if (rankedFor === `${state.circuit} ${state.size}`) return;
  rankedFor = `${state.circuit} ${state.size}`;
  for (const edge of model.edges) {
    edge.visible = edge.line = edge.listed = false;
    edge.strength = isIn(state.circuit, edge.id, state.size) ? strengthIn(state.circuit, edge.id, state.size) : 0;
    edge.by = foundBy(edge.id, state.size);
  }
  ranked = model.edges.filter((edge) => isIn(state.circuit, edge.id, state.size)).sort((a, b) => a.strength - b.strength);
}
// One line for all edges between the same two nodes: the strongest, found by whoever found any of them.
function merged(edges) {
  const between = new Map();
  for (const edge of edges) {
    const key = edge.from.id * model.nodes.length + edge.to.id, kinds = between.get(key)?.kinds || new Set();
    between.delete(key);  // so that the strongest decides the order
    between.set(key, { edge, kinds: kinds.add(edge.by) });
  }
  return [...between.values()].map(({ edge, kinds }) => {
    kinds.delete("none");
    edge.shade = kinds.size > 1 ? "both" : [...kinds][0] || "none";
    return edge;
  });
}
function update() {
  const names = state.name.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean), least = (state.score / 100) ** 2;
  rank();
  passing = [];
  for (const edge of ranked) {
    edge.shade = edge.by;
    edge.visible = edge.line = false;
    edge.listed = state.kinds.has(edge.by) && state.ports.has(edge.port.kind) && edge.strength >= least && (!state.gated || edge.gates.length > 0)
      && edge.from.layer >= state.from && edge.to.layer <= state.to
      && (!names.length || names.some((name) => edge.from.name.includes(name) || edge.port.name.includes(name)));
    if (edge.listed) passing.push(edge);
  }
  const listed = state.level === "nodes" ? merged(passing) : passing;
  const drawn = state.all ? listed : listed.slice(-OPENING);
  for (const edge of listed) edge.line = true;
  for (const edge of drawn) edge.visible = true;
  setShown(drawn, passing);
  if (state.selected && state.selected.edge !== undefined && !model.edges[state.selected.edge].listed) state.selected = null;
  showCaptions(listed, least);
  graph.changed();
  clearTimeout(panelLater);
  panelLater = setTimeout(() => showPanel(state, act), first ? 0 : 180);  // lists follow when a slider rests
  first = false;
  writeAddress(state);
}
function showCaptions(listed, least) {
  const one = data.curves[state.circuit][state.size], what = state.level === "nodes" ? ["connection between nodes", "connections between nodes"] : ["edge"];
  const of = `of the ${CIRCUITS[state.circuit]} circuit at ${plural(data.sizes[state.size], "edge")} per direction`;
  const filtered = passing.length < ranked.length ? `, ${passing.length.toLocaleString("en")} of its ${ranked.length.toLocaleString("en")} edges passing the filters` : "";
  $("size-value").textContent = data.sizes[state.size].toLocaleString("en");
  $("score-value").textContent = state.score ? `${number(100 * least, 2)} % of the strongest` : "anything";
  $("shown").textContent = (drawnNow.length < listed.length ? `The ${drawnNow.length.toLocaleString("en")} strongest of ${plural(listed.length, ...what)} ` : `All ${plural(listed.length, ...what)} `)
    + `${of}${filtered} (${countText(drawnNow, "shade")}).`;
  const opening = data.drawn && data.drawn.edges.length === drawnNow.length && data.drawn.edges.every((id) => model.edges[id].visible);
  $("measured").textContent = (opening ? `Alone, the drawn edges keep ${keptText(data.drawn.kept)} of the logit difference. ` : "") + `The whole ${CIRCUITS[state.circuit]} circuit has ${plural(one.edges, "edge")}. Faithful: ${one.faithful.answer}; it keeps ${keptText(one.kept)} of the logit difference. Removing it destroys ${percent(one.destroyed)}.`;
  $("show-all").hidden = listed.length <= OPENING;
  $("show-all").textContent = state.all ? `Show the ${OPENING} strongest` : `Show all ${listed.length.toLocaleString("en")}`;
  $("show-all").setAttribute("aria-pressed", String(state.all));
  $("save-json").textContent = `Save ${plural(edgesToSave().length, "drawn edge")} as JSON`;
  $("over").setAttribute("aria-label", `Circuit drawing. ${$("shown").textContent} Arrow keys move, plus and minus zoom, 0 fits.`);
  showSelection();
}
function showSelection() {
  const target = state.selected, node = target && target.node !== undefined ? model.nodes[target.node] : null;
  $("chosen").textContent = node ? `${node.name} alone: ${plural(edgesOf(node.id).into.length, "edge")} in, ${edgesOf(node.id).out.length} out.`
    : target ? `${model.edges[target.edge].name} alone.` : state.pins.size ? `${plural(state.pins.size, "pinned node")} in front.` : "";
}
// In the node-level view a connection stands for all its edges.
function edgesToSave() {
  if (state.level === "ports") return drawnNow;
  const shown = new Set(drawnNow.map((edge) => edge.from.id * model.nodes.length + edge.to.id));
  return passing.filter((edge) => shown.has(edge.from.id * model.nodes.length + edge.to.id));
}
function updateAll() { update(); showCurves(state); showMeasures(state); showProportions(state); }
function select(target, scroll) {
  state.selected = target;
  $("panel").scrollTop = 0;
  show();
  if (target && target.node !== undefined) graph.centre(target.node);
  if (scroll) $("circuit").scrollIntoView({ behavior: "smooth" });
}
function pin(id) {
  if (state.pins.has(id)) state.pins.delete(id); else state.pins.add(id);
  show();
}
function show() {
  showPanel(state, act);
  showPins(state, act);
  showSelection();
  graph.overlay();
  writeAddress(state);
}
const act = { select, pin, again: show };
const graph = makeGraph(state, { describe: (target) => describe(target, state).filter(Boolean), select });

function checkboxes(box, values, of) {
  for (const [value, text] of Object.entries(values)) {
    const input = el("input", { type: "checkbox", name: box.id, value });
    input.addEventListener("change", () => { if (input.checked) of().add(value); else of().delete(value); update(); });
    box.append(el("label", {}, input, text));
  }
}
function segments(box, values, name, chosen) {
  const radios = el("div", {});
  for (const [value, [text, title]] of Object.entries(values)) {
    const input = el("input", { type: "radio", name, value });
    input.addEventListener("change", () => chosen(value));
    radios.append(el("label", { title }, input, el("span", {}, text)));
  }
  box.append(radios);
}
segments($("which"), { "ns|dn": [CIRCUITS["ns|dn"], "found by noising or by denoising: ns ∪ dn"], ns: [CIRCUITS.ns, "ns: edges of the clean run are given corrupted content"],
  dn: [CIRCUITS.dn, "dn: edges of the corrupted run are given clean content"], "ns+dn": [CIRCUITS["ns+dn"], "ns+dn: one search with both effects added up"] },
"which", (value) => { state.circuit = value; updateAll(); });
segments($("level"), { ports: ["q, k, v inputs", "edges arrive at the q, k or v input of a head"], nodes: ["nodes", "one line between two nodes; nodes as large as their normalised effect"] }, "level",
  (value) => { state.level = value; update(); graph.resize(); });
checkboxes($("kinds"), FOUND, () => state.kinds);
checkboxes($("ports"), Object.fromEntries(portKinds.map((kind) => [kind, PORTS[kind]])), () => state.ports);
$("gated-label").hidden = !model.gates.some((gate) => gate.significant);
$("gated").addEventListener("change", () => { state.gated = $("gated").checked; update(); });
$("size").max = String(data.sizes.length - 1);
$("size").disabled = data.sizes.length < 2;
$("size").addEventListener("input", () => { state.size = Number($("size").value); updateAll(); });
$("score").addEventListener("input", () => { state.score = Number($("score").value); update(); });
$("name").addEventListener("input", () => { state.name = $("name").value; update(); });
for (let layer = -1; layer <= model.logits.layer; layer++) {
  for (const id of ["layer-from", "layer-to"]) $(id).append(el("option", { value: String(layer) }, layerName(layer)));
}
$("layer-from").addEventListener("change", () => { state.from = Number($("layer-from").value); update(); });
$("layer-to").addEventListener("change", () => { state.to = Number($("layer-to").value); update(); });
$("show-all").addEventListener("click", () => { state.all = !state.all; update(); });
$("reset").addEventListener("click", () => {
  Object.assign(state, { kinds: new Set(KINDS), ports: new Set(portKinds), gated: false, score: 0, from: -1, to: model.logits.layer, name: "" });
  showControls();
  update();
});
function showControls() {  // the controls as the state has them
  for (const [id, set] of [["kinds", state.kinds], ["ports", state.ports]]) {
    for (const input of document.querySelectorAll(`#${id} input`)) input.checked = set.has(input.value);
  }
  for (const [id, value] of [["which", state.circuit], ["level", state.level]]) {
    for (const input of document.querySelectorAll(`#${id} input`)) input.checked = input.value === value;
  }
  for (const [id, value] of [["size", state.size], ["score", state.score], ["name", state.name], ["layer-from", state.from], ["layer-to", state.to]]) $(id).value = String(value);
  $("gated").checked = state.gated;
}
addEventListener("hashchange", () => {
  const text = addressState();
  if (text === null) return;
  readState(text, state);
  showControls();
  updateAll();
  graph.resize();
  show();
});

// Search: nodes and edges of the shown circuit by name.
let matches = [], marked_ = -1;
function search() {
  const wanted = $("search").value.trim().toLowerCase(), list = $("matches");
  const nodes = wanted ? model.nodes.filter((node) => node.name.includes(wanted) && edgesOf(node.id).into.length + edgesOf(node.id).out.length) : [];
  const edges = wanted ? passing.filter((edge) => edge.name.includes(wanted)).sort((a, b) => b.strength - a.strength) : [];
  const starts = (node) => (node.name === wanted ? 0 : node.name.startsWith(wanted) ? 1 : 2);
  nodes.sort((a, b) => starts(a) - starts(b));
  matches = [...nodes.slice(0, 8).map((node) => ({ text: node.name, kind: "node", target: { node: node.id } })),
    ...edges.slice(0, 12).map((edge) => ({ text: edge.name, kind: FOUND[edge.by], target: { edge: edge.id } }))].slice(0, 14);
  marked_ = matches.length ? 0 : -1;
  fill(list, matches.length ? matches.map((match, i) => el("li", { role: "option", id: "match-" + i, on: { mousedown: (event) => { event.preventDefault(); choose(i); } } },
    el("span", { class: "mono" }, match.text), el("span", { class: "muted" }, match.kind))) : wanted ? [el("li", { role: "option" }, "nothing shown has this name")] : []);
  list.hidden = !wanted;
  $("search").setAttribute("aria-expanded", String(!list.hidden));
  mark();
}
function mark() {
  [...$("matches").children].forEach((item, i) => item.setAttribute("aria-selected", String(i === marked_)));
  if (marked_ >= 0) $("search").setAttribute("aria-activedescendant", "match-" + marked_);
  else $("search").removeAttribute("aria-activedescendant");
}
function closeSearch() { $("matches").hidden = true; $("search").setAttribute("aria-expanded", "false"); }
function choose(i) { closeSearch(); if (matches[i]) select(matches[i].target); }
$("search").addEventListener("input", search);
$("search").addEventListener("focus", search);
$("search").addEventListener("blur", closeSearch);
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") choose(marked_);
  else if (event.key === "Escape") closeSearch();
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (!matches.length) return;
    marked_ = (marked_ + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length;
    mark();
  } else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.selected) select(null); });

$("save-svg").addEventListener("click", () => download(fileName(".svg"), "image/svg+xml", viewAsSvg(graph, `${data.title}. ${$("shown").textContent} ${$("chosen").textContent}`)));
$("save-json").addEventListener("click", () => download(fileName(".json"), "application/json", circuitAsJson(state, edgesToSave())));
$("copy-link").addEventListener("click", async () => {
  clearTimeout(writing);
  written = stateAsText(state);
  history.replaceState(null, "", "#" + written);
  try { await navigator.clipboard.writeText(location.href); $("copy-link").textContent = "Copied"; }
  catch { $("copy-link").textContent = "It is in the address bar"; }
  setTimeout(() => { $("copy-link").textContent = "Copy link to this view"; }, 1800);
});

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = null;  // until the button is pressed, as the system has it
function showTheme() {
  const now = theme || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  $("theme").textContent = now === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(now === "dark"));
  $("theme").setAttribute("aria-label", now === "dark" ? "Switch to light colours" : "Switch to dark colours");
  graph.recoloured();
  showCurves(state);
}
$("theme").addEventListener("click", () => { theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; showTheme(); });
dark.addEventListener("change", showTheme);

showHeadline();
showTestedGates(select);
showControls();
showPins(state, act);
showAgreement();
showExamples();
showProvenance();
updateAll();
showTheme();
window.gatewiseReport = { graph, model, state };  // for the tests and for curious people
