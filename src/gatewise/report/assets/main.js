// Wiring: one state, controls that change it, and one function that shows it.
const state = { circuit: "ns|dn", size: data.sizes.length - 1, types: new Set(TYPES), ports: new Set(), score: 0,
  from: -1, to: model.logits.layer, name: "", selected: null };
const PORTS = { q: "q", k: "k", v: "v", head: "head", mlp: data.graph.layered ? "gate" : "MLP", logits: "logits" };
const portKinds = Object.keys(PORTS).filter((kind) => model.ports.some((port) => port.kind === kind));
portKinds.forEach((kind) => state.ports.add(kind));

let panelLater = 0, first = true, ranked = [], rankedFor = "";
function rank() {  // the edges of the chosen circuit, the weakest first; filters keep the order
  if (rankedFor === `${state.circuit} ${state.size}`) return;
  rankedFor = `${state.circuit} ${state.size}`;
  for (const edge of model.edges) {
    edge.visible = false;
    edge.type = typeAt(edge.id, state.size);
    edge.strength = isIn(state.circuit, edge.id, state.size) ? strengthIn(state.circuit, edge.id, state.size) : 0;
  }
  ranked = model.edges.filter((edge) => isIn(state.circuit, edge.id, state.size)).sort((a, b) => a.strength - b.strength);
}
function update() {
  const names = state.name.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean), least = (state.score / 100) ** 2;
  const found = [];
  rank();
  for (const edge of ranked) {
    edge.visible = state.types.has(edge.type) && state.ports.has(edge.port.kind) && edge.strength >= least
      && edge.from.layer >= state.from && edge.to.layer <= state.to
      && (!names.length || names.some((name) => edge.from.name.includes(name) || edge.port.name.includes(name)));
    if (edge.visible) found.push(edge);
  }
  setShown(found);
  const total = data.curves[state.circuit][state.size].edges, one = data.curves[state.circuit][state.size];
  $("size-value").textContent = data.sizes[state.size].toLocaleString("en");
  $("score-value").textContent = state.score ? `${number(100 * least, 2)} % of the strongest` : "anything";
  $("shown").textContent = `${shownNow.length.toLocaleString("en")} of the ${total.toLocaleString("en")} edges of ${CIRCUITS[state.circuit]} shown (${countText(shownNow)}).`;
  $("measured").textContent = `Faithful: ${one.faithful.answer}. Removing it destroys ${percent(one.destroyed)}.`;
  $("over").setAttribute("aria-label", `Circuit drawing. ${$("shown").textContent} Arrow keys move, plus and minus zoom, 0 fits.`);
  if (state.selected && state.selected.edge !== undefined && !model.edges[state.selected.edge].visible) state.selected = null;
  graph.changed();
  clearTimeout(panelLater);
  panelLater = setTimeout(() => showPanel(state, select), first ? 0 : 60);  // lists follow when a slider rests
  first = false;
}
function updateAll() { update(); showCurves(state); showMeasures(state); }
function select(target) {
  state.selected = target;
  showPanel(state, select);
  if (target && target.node !== undefined) graph.centre(target.node);
  graph.overlay();
}
const graph = makeGraph(state, { describe: (target) => describe(target, state).filter(Boolean), select });

function checkboxes(box, values, chosen) {
  for (const [value, text] of Object.entries(values)) {
    const input = el("input", { type: "checkbox", name: box.id, value, checked: true });
    input.addEventListener("change", () => { if (input.checked) chosen.add(value); else chosen.delete(value); update(); });
    box.append(el("label", {}, input, text));
  }
}
const radios = el("div", {});
for (const [value, text] of Object.entries(CIRCUITS)) {
  const input = el("input", { type: "radio", name: "which", value, checked: value === state.circuit });
  input.addEventListener("change", () => { state.circuit = value; updateAll(); });
  radios.append(el("label", {}, input, el("span", {}, text)));
}
$("which").append(radios);
checkboxes($("types"), { ...Object.fromEntries(GATES.map((type) => [type, type])), none: "neither alone" }, state.types);
checkboxes($("ports"), Object.fromEntries(portKinds.map((kind) => [kind, PORTS[kind]])), state.ports);
$("size").max = String(data.sizes.length - 1);
$("size").value = String(state.size);
$("size").disabled = data.sizes.length < 2;
$("size").addEventListener("input", () => { state.size = Number($("size").value); updateAll(); });
$("score").addEventListener("input", () => { state.score = Number($("score").value); update(); });
$("name").addEventListener("input", () => { state.name = $("name").value; update(); });
for (let layer = -1; layer <= model.logits.layer; layer++) {
  for (const id of ["layer-from", "layer-to"]) $(id).append(el("option", { value: String(layer) }, layerName(layer)));
}
$("layer-to").value = String(state.to);
$("layer-from").addEventListener("change", () => { state.from = Number($("layer-from").value); update(); });
$("layer-to").addEventListener("change", () => { state.to = Number($("layer-to").value); update(); });
$("reset").addEventListener("click", () => {
  Object.assign(state, { types: state.types, score: 0, from: -1, to: model.logits.layer, name: "" });
  TYPES.forEach((type) => state.types.add(type));
  portKinds.forEach((kind) => state.ports.add(kind));
  for (const input of document.querySelectorAll("#filters input[type=checkbox]")) input.checked = true;
  $("score").value = "0";
  $("name").value = "";
  $("layer-from").value = "-1";
  $("layer-to").value = String(model.logits.layer);
  update();
});

// Search: nodes and edges of the shown circuit by name.
let matches = [], marked_ = -1;
function search() {
  const wanted = $("search").value.trim().toLowerCase(), list = $("found");
  const nodes = wanted ? model.nodes.filter((node) => node.name.includes(wanted) && edgesOf(node.id).into.length + edgesOf(node.id).out.length) : [];
  const edges = wanted ? shownNow.filter((edge) => edge.name.includes(wanted)).sort((a, b) => b.strength - a.strength) : [];
  const starts = (node) => (node.name === wanted ? 0 : node.name.startsWith(wanted) ? 1 : 2);
  nodes.sort((a, b) => starts(a) - starts(b));
  matches = [...nodes.slice(0, 8).map((node) => ({ text: node.name, kind: "node", target: { node: node.id } })),
    ...edges.slice(0, 12).map((edge) => ({ text: edge.name, kind: edge.type, target: { edge: edge.id } }))].slice(0, 14);
  marked_ = matches.length ? 0 : -1;
  fill(list, matches.length ? matches.map((match, i) => el("li", { role: "option", id: "match-" + i, on: { mousedown: (event) => { event.preventDefault(); choose(i); } } },
    el("span", { class: "mono" }, match.text), el("span", { class: "muted" }, match.kind))) : wanted ? [el("li", { role: "option" }, "nothing shown has this name")] : []);
  list.hidden = !wanted;
  $("search").setAttribute("aria-expanded", String(!list.hidden));
  mark();
}
function mark() {
  [...$("found").children].forEach((item, i) => item.setAttribute("aria-selected", String(i === marked_)));
  if (marked_ >= 0) $("search").setAttribute("aria-activedescendant", "match-" + marked_);
  else $("search").removeAttribute("aria-activedescendant");
}
function closeSearch() { $("found").hidden = true; $("search").setAttribute("aria-expanded", "false"); }
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

$("save-svg").addEventListener("click", () => download(fileName(".svg"), "image/svg+xml", viewAsSvg(graph)));
$("save-json").addEventListener("click", () => download(fileName(".json"), "application/json", circuitAsJson(state, shownNow)));

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = null;  // until the button is pressed, as the system has it
function showTheme() {
  const now = theme || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  $("theme").textContent = now === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(now === "dark"));
  $("theme").setAttribute("aria-label", now === "dark" ? "Switch to light colours" : "Switch to dark colours");
  graph.changed();
  showCurves(state);
}
$("theme").addEventListener("click", () => { theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; showTheme(); });
dark.addEventListener("change", showTheme);

showHeadline();
showProportions();
showAgreement();
showExamples();
showProvenance();
updateAll();
showTheme();
window.gatewiseReport = { graph, model, state };  // for the tests and for curious people
