// Files out of the page: the view as SVG, the shown edges as a circuit file that gatewise, EAP-IG and MIB tools read.
function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function fileName(ending) {
  return data.title.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase() + ending;
}

function viewAsSvg(graph, caption) {
  const laid = graph.laid(), view = graph.view(), ink = colours();
  const edges = graph.lit() || graph.order(), used = new Set();
  const fixed = (value) => Number(value.toFixed(2)), anchors = { left: "start", center: "middle" };
  const drawing = svg("g", { transform: `translate(${fixed(view.x)} ${fixed(view.y)}) scale(${fixed(view.scale)})` }), beads = [];
  for (const edge of edges) {
    const [a, b, c, d] = laid.curves[edge.id].map((point) => point.map(fixed).join(" ")), strength = edge.strength ** 0.45;
    used.add(edge.from.id).add(edge.to.id);
    drawing.append(svg("path", { d: `M${a}C${b} ${c} ${d}`, fill: "none", stroke: ink[edge.shade], "stroke-linecap": "round",
      "stroke-width": fixed((0.6 + 3.8 * strength) / Math.sqrt(view.scale)), "stroke-opacity": fixed(0.15 + 0.75 * strength) },
      svg("title", {}, `${edge.name} (found by ${FOUND[edge.shade]})`)));
    const bead = laid.beads[edge.id];
    if (bead) beads.push(svg("circle", { cx: fixed(bead[0]), cy: fixed(bead[1]), r: 3, fill: ink[edge.gates[0].label.toLowerCase()] || ink.soft, stroke: ink.surface }));
  }
  drawing.append(...beads);
  const few = used.size <= 80;
  for (const node of model.nodes) {
    const { x, y, pill } = laid.points[node.id], r = laid.radii[node.id];
    if (!used.has(node.id)) continue;
    const shape = { fill: ink.surface, stroke: ink.ink, "stroke-width": 1.2 };
    const text = (dy) => svg("text", { x: fixed(x), y: fixed(y + dy), "text-anchor": "middle", "font-size": pill ? 12 : 9, fill: ink.ink },
      node.name);
    if (pill) drawing.append(svg("rect", { x: fixed(x - 27), y: fixed(y - 11), width: 54, height: 22, rx: 11, ...shape }), text(4));
    else {
      drawing.append(node.kind === "attention" ? svg("circle", { cx: fixed(x), cy: fixed(y), r: fixed(r), ...shape })
        : svg("rect", { x: fixed(x - r), y: fixed(y - r), width: fixed(2 * r), height: fixed(2 * r), rx: fixed(r * 0.35), ...shape }));
      if (few) drawing.append(text(-r - 3));
    }
  }
  const axis = svg("g", { class: "axis", "font-size": 11, fill: ink.soft }, ...axisLabels(laid, view).map(({ text, x, y, anchor }) =>
    svg("text", { x: fixed(x), y: fixed(y + 4), "text-anchor": anchors[anchor] }, text)));
  let x = 14;
  const legend = svg("g", { "font-size": 12, fill: ink.soft });
  for (const kind of KINDS.filter((one) => edges.some((edge) => edge.shade === one))) {
    legend.append(svg("rect", { x, y: laid.height + 12, width: 18, height: 4, rx: 2, fill: ink[kind] }), svg("text", { x: x + 23, y: laid.height + 18 }, FOUND[kind]));
    x += 44 + 6.5 * FOUND[kind].length;
  }
  legend.append(svg("text", { x: 14, y: laid.height + 38 }, caption));
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${laid.width} ${laid.height + 50}`,
    width: laid.width, height: laid.height + 50, "font-family": "system-ui, sans-serif" },
    svg("title", {}, data.title), svg("rect", { width: "100%", height: "100%", fill: ink.surface }), drawing, axis, legend);
  return new XMLSerializer().serializeToString(whole);
}

// Every edge of the graph in EAP-IG's order of construction, as `graph.py` makes it.
function* allEdges() {
  const { sublayers, qkv, config } = data.graph, groups = [];
  let written = 0;
  for (const sublayer of sublayers) {
    if (sublayer.kind !== "source") {
      let listing = sublayer.ports;
      if (sublayer.kind === "attention" && qkv === "split") {
        const heads = sublayer.nodes.length;
        listing = sublayer.nodes.flatMap((_, head) => [0, 1, 2].map((kind) => sublayer.ports[kind * heads + head]));
      }
      if (config.parallel_attn_mlp && sublayer.kind === "pointwise") groups.at(-1).listing.push(...listing);
      else groups.push({ listing: listing.slice(), reads: written });
    }
    written += sublayer.nodes.length;
  }
  for (const { listing, reads } of groups) {
    for (let sender = 0; sender < reads; sender++) for (const port of listing) yield model.senders[sender].name + "->" + port;
  }
}
function circuitAsJson(state, edges) {
  const shown = new Set(edges.map((edge) => edge.name)), present = new Set();
  const scoreOf = new Map(model.edges.map((edge) => [edge.name, scoreFor(state.circuit, edge.id)]));
  for (const edge of edges) { present.add(edge.from.name); present.add(edge.to.name); }
  const listed = {};
  for (const name of allEdges()) listed[name] = { score: scoreOf.get(name) || 0, in_graph: shown.has(name) };
  const block = { format: 1, qkv: data.graph.qkv, scored: true, provenance: { ...data.provenance, direction: state.circuit,
    edges: edges.length, exported_from: "report", note: "scores of edges outside the report are written as 0" } };
  if (data.graph.layered) block.sublayers = data.graph.sublayers.slice(0, -1).map((sublayer) => sublayer.nodes);
  return JSON.stringify({ cfg: data.graph.config,
    nodes: Object.fromEntries(model.nodes.map((node) => [node.name, { in_graph: present.has(node.name) }])),
    edges: listed, gatewise: block });
}
function scoreFor(circuit, edge) {
  const scores = data.edges.score;
  if (circuit !== "ns|dn") return scores[circuit][edge];
  return data.edges.in.ns[edge] ? scores.ns[edge] : scores.dn[edge];
}
