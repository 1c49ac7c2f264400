// Curves over circuit size, the table of measures, proportions, and set-difference labels against tested ones.
// Colours are those of the directions, never those of gates.
const LINES = { "ns|dn": ["ink", ""], ns: ["ns", "6 4"], dn: ["dn", "2 4"], "ns+dn": ["soft", "9 3 2 3"] };

function keptText([value, low, high]) { return low === null || high === null ? percent(value) : `${percent(value)} (${percent(low)} to ${percent(high)})`; }
function curveChart(title, caption, valueOf, chance, state, intervalOf = () => null) {
  const ink = colours(), width = 560, height = 280, left = 46, right = 12, top = 12, bottom = 40;
  const points = Object.keys(CIRCUITS).map((name) => [name, data.curves[name].map((one, i) => [data.sizes[i], valueOf(one)])]);
  const values = points.flatMap(([, line]) => line.map((point) => point[1])).filter((value) => value !== null);
  const low = Math.min(0, ...values), high = Math.max(1, ...values);
  const first = Math.log(data.sizes[0]), span = Math.log(data.sizes.at(-1)) - first || 1;
  const x = (size) => left + (data.sizes.length > 1 ? (Math.log(size) - first) / span : 0.5) * (width - left - right);
  const y = (value) => top + (high - value) / (high - low || 1) * (height - top - bottom);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title + ". " + caption });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)));
  }
  data.sizes.forEach((size, i) => {
    if (data.sizes.length > 8 && i % 2) return;
    picture.append(svg("text", { x: x(size), y: height - bottom + 18, "text-anchor": "middle" }, size.toLocaleString("en")));
  });
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "edges per direction"));
  picture.append(svg("line", { class: "now", x1: x(data.sizes[state.size]), x2: x(data.sizes[state.size]), y1: top, y2: height - bottom }));
  for (const [name, line] of points) {
    const [colour, dash] = LINES[name], known = line.filter((point) => point[1] !== null);
    picture.append(svg("polyline", { points: known.map(([size, value]) => `${x(size)},${y(value)}`).join(" "), fill: "none",
      stroke: ink[colour], "stroke-width": name === state.circuit ? 3 : 1.8, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
    data.curves[name].forEach((one, i) => {
      const range = intervalOf(one);
      if (name !== state.circuit || !range || range.includes(null)) return;
      picture.append(svg("line", { class: "interval", x1: x(data.sizes[i]), x2: x(data.sizes[i]), y1: y(Math.max(low, range[1])), y2: y(Math.min(high, range[2])), stroke: ink[colour], "stroke-width": 1.2 }));
    });
    for (const [size, value] of known) {
      picture.append(svg("circle", { cx: x(size), cy: y(value), r: name === state.circuit ? 4 : 2.8, fill: ink[colour] },
        svg("title", {}, `${CIRCUITS[name]}, ${size} edges per direction: ${percent(value)}`)));
    }
  }
  const last = data.curves["ns+dn"].at(-1);
  if (chance(last) !== null) {
    const spot = [x(data.sizes.at(-1)), y(chance(last))];
    picture.append(svg("path", { d: `M${spot[0] - 4} ${spot[1] - 4}l8 8m0 -8l-8 8`, stroke: ink.soft, "stroke-width": 1.8 },
      svg("title", {}, `random circuits: ${percent(chance(last))}`)));
  }
  const now = valueOf(data.curves[state.circuit][state.size]);
  const text = `${caption} ${now === null ? "" : `The ${CIRCUITS[state.circuit]} circuit of ${plural(data.curves[state.circuit][state.size].edges, "edge")}: ${percent(now)}.`}`;
  const keys = Object.entries(CIRCUITS).map(([name, label]) => el("span", {}, lineKey(ink[LINES[name][0]], LINES[name][1]), " ", label));
  keys.push(el("span", {}, "× random"));
  return el("div", { class: "chart" }, el("h3", {}, title), el("p", { class: "caption" }, text), picture, el("div", { class: "keys" }, keys));
}
function lineKey(colour, dash) {
  return svg("svg", { width: 26, height: 8, viewBox: "0 0 26 8", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash }));
}
function normalise(value, low, high) { return high === low ? null : (value - low) / (high - low); }

// How the size was chosen: what circuits of all sizes that were run keep, on pairs that the search has not seen.
function scanChart(record) {
  const ink = colours(), width = 560, height = 280, left = 46, right = 12, top = 12, bottom = 40, scan = record.scan;
  const low = Math.min(0, ...scan.map((one) => one.low)), first = Math.log(scan[0].edges), span = Math.log(scan.at(-1).edges) - first || 1;
  const x = (size) => left + (Math.log(size) - first) / span * (width - left - right);
  const y = (value) => top + (1 - value) / (1 - low) * (height - top - bottom);
  const title = "Faithfulness against size", marked = record.edges, outline = (key) => scan.map((one) => `${x(one.edges)},${y(one[key])}`).join(" ");
  const caption = `Share of the KL that ${record.scan[0].in_union ? "the circuits of both directions together keep, under noising or denoising, whichever is less," : "the noising circuit keeps"} on ${plural(record.validation_pairs, "pair")} that the search has not seen; dashed: its lower bound, `
    + `which has to reach ${percent(record.goal)}. ` + (marked ? `The smallest that does has ${plural(marked, "edge")}${record.scan[0].in_union ? " by each direction" : ""}.` : `None of at most ${plural(record.most_edges, "edge")} does.`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title + ". " + caption });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)));
  }
  for (let size = scan[0].edges; size <= scan.at(-1).edges; size *= 4) {
    picture.append(svg("text", { x: x(size), y: height - bottom + 18, "text-anchor": "middle" }, size.toLocaleString("en")));
  }
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, scan[0].in_union ? "edges by each direction" : "edges"),
    svg("line", { x1: left, x2: width - right, y1: y(record.goal), y2: y(record.goal), stroke: ink.soft, "stroke-dasharray": "2 3" }),
    svg("polyline", { points: outline("low"), fill: "none", stroke: ink.ns, "stroke-width": 1.4, "stroke-dasharray": "5 4" }),
    svg("polyline", { points: outline("share"), fill: "none", stroke: ink.ns, "stroke-width": 2.4 }));
  for (const one of scan) {
    picture.append(svg("circle", { cx: x(one.edges), cy: y(one.share), r: one.edges === marked ? 6 : 2.8, fill: ink.ns },
      svg("title", {}, `${plural(one.in_union || one.edges, "edge")}: ${percent(one.share)} (at least ${percent(one.low)}), logit difference ${percent(one.logit_diff)}, accuracy ${percent(one.accuracy)}`)));
  }
  if (marked) picture.append(svg("line", { class: "now", x1: x(marked), x2: x(marked), y1: top, y2: height - bottom }));
  return el("div", { class: "chart", id: "scan" }, el("h3", {}, title), el("p", { class: "caption" }, caption), picture);
}

function showCurves(state) {
  fill($("curves"),
    data.faithfulness ? scanChart(data.faithfulness) : "",
    curveChart("Faithful on both sides, by KL: noising", "Share of the KL between the runs that the circuit alone keeps: 0 % is the empty circuit, 100 % the whole model.",
      (one) => one.recovered,
      (one) => (one.random_circuit ? normalise(one.random_circuit.kl_from_full[0], one.empty.kl_from_full[0], 0) : null), state),
    curveChart("The second side: denoising", "The same where the circuit alone is corrupted: what is missing to 100 % something outside it still does.",
      (one) => one.recovered_dn, () => null, state),
    curveChart("Faithful: what the circuit keeps", "Normalised logit difference of the circuit alone: 0 % is the empty circuit, 100 % the whole model. Lines are 95 % intervals of the chosen circuit.",
      (one) => one.recovered_logit_diff,
      (one) => (one.random_circuit ? normalise(one.random_circuit.logit_diff[0], one.empty.logit_diff[0], one.full.logit_diff[0]) : null), state, (one) => one.kept),
    curveChart("Complete: what is lost without it", "Normalised KL from the model once the circuit is removed: 100 % is full corruption.",
      (one) => one.destroyed,
      (one) => (one.random_complement ? normalise(one.random_complement.kl_to_full[0], 0, one.empty.kl_to_full[0]) : null), state));
}

function showMeasures(state) {
  const of = (name) => data.curves[name][state.size], last = data.sizes.length - 1 === state.size;
  const pm = ([mean, error]) => `${number(mean)} ± ${number(error, 2)}`;
  const line = (name, edges, inside, outside) => row("td", [name, edges.toLocaleString("en"), pm(inside.kl_from_full), percent(inside.accuracy[0]),
    pm(inside.logit_diff), pm(outside.kl_to_full), percent(outside.accuracy[0]), pm(outside.logit_diff)]);
  const any = of("ns|dn"), lines = [line("whole model", data.graph.edges, any.full, any.empty), line("empty circuit", 0, any.empty, any.full)];
  for (const [name, text] of Object.entries(CIRCUITS)) {
    const one = of(name);
    lines.push(line(`${text} circuit`, one.edges, one.circuit, one.complement));
    if (last && one.random_circuit && (name === "ns|dn" || name === "ns+dn")) {
      lines.push(line(`random (mean of ${one.random_circuits})`, one.edges, one.random_circuit, one.random_complement));
    }
  }
  fill($("measures"),
    el("h3", {}, `Measures on held-out pairs, at ${plural(data.sizes[state.size], "edge")} per direction`),
    el("table", {}, el("thead", {},
      el("tr", {}, el("th", {}), el("th", {}), el("th", { colSpan: 3 }, "the circuit alone"), el("th", { colSpan: 3 }, "the model without it")),
      row("th", ["", "edges", "KL(G‖C) ↓", "pairwise accuracy", "logit diff", "KL(G∖C‖G) ↑", "pairwise accuracy", "logit diff"])),
      el("tbody", {}, lines)),
    el("p", { class: "muted small" }, "KL in nats; ± is the standard error over pairs. Removed edges carry what they carry on the corrupted prompt."));
}

// Who found the edges at the chosen size.
function showProportions(state) {
  const kinds = Object.keys(LABELS), byKind = Object.fromEntries(kinds.map((kind) => [kind, []]));
  for (const edge of model.edges) { const kind = foundBy(edge.id, state.size); if (byKind[kind]) byKind[kind].push(edge); }
  const total = kinds.reduce((sum, kind) => sum + byKind[kind].length, 0) || 1;
  const crossed = (edges) => (edges.length ? edges.reduce((sum, edge) => sum + edge.to.layer - edge.from.layer, 0) / edges.length : null);
  fill($("proportions"), el("h3", {}, `Who found the edges, at ${plural(data.sizes[state.size], "edge")} per direction`),
    el("div", { class: "bar", role: "img", "aria-label": kinds.map((kind) => `${FOUND[kind]} ${percent(byKind[kind].length / total)}`).join(", ") },
      kinds.map((kind) => el("span", { class: kind, width: 100 * byKind[kind].length / total + "%" }))),
    el("table", {}, el("thead", {}, row("th", ["found by", "edges", "share", "receiver inputs", "layers crossed", "set-difference label"])),
      el("tbody", {}, kinds.map((kind) => row("td", [foundName(kind), byKind[kind].length.toLocaleString("en"), percent(byKind[kind].length / total),
        new Set(byKind[kind].map((edge) => edge.port)).size.toLocaleString("en"), number(crossed(byKind[kind]), 2), LABELS[kind]])))));
}

function showAgreement() {
  const agreement = data.agreement;
  if (!agreement.edges) {
    fill($("agreement"), el("h3", {}, "Set-difference labels against truth tables"), el("p", { class: "muted" }, "No edges were tested."));
    return;
  }
  const labels = TESTED.filter((label) => Object.values(agreement.table).some((counts) => counts[label]));
  const lines = Object.entries(agreement.table).map(([type, counts]) => el("tr", {}, el("td", {}, foundName(kindOf(type)), ` (${type})`),
    labels.map((label) => el("td", { class: label === type ? "same" : "" }, String(counts[label] || 0))),
    el("td", {}, percent(agreement.share_by_type[type]))));
  fill($("agreement"), el("h3", {}, "Set-difference labels against truth tables"),
    el("table", { class: "agree" }, el("thead", {}, row("th", ["found by ↓ test →", ...labels, "agree"])), el("tbody", {}, lines)),
    el("p", { class: "muted small" }, `${plural(agreement.edges, "edge")} of the largest circuits, in tables of two edges into one input; `
      + `${agreement.untested.toLocaleString("en")} without a test.`));
}
