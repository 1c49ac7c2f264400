// Where things stand: layers along one axis, heads and the MLP along the other. Left to right, or upwards on narrow screens.
// level: "ports" (edges arrive at q, k or v, nodes are of one size) or "nodes" (their middle; nodes as large as their effect).
function makeLayout(width, height, level) {
  const upwards = width < 620, sublayers = data.graph.sublayers;
  const heads = Math.max(...sublayers.map((sublayer) => sublayer.nodes.length), 1);
  const withHeads = !data.graph.layered, lanes = withHeads ? heads + 1 : heads;
  const first = -1, last = model.logits.layer, along = upwards ? height : width, across = upwards ? width : height;
  const top = 36, bottom = upwards ? 26 : 44;
  const rim = upwards ? [56, 36] : [64, 46];  // where input and logits stand, from either end
  const gap = Math.max(upwards ? 44 : 60, 0.8 * (along - rim[0] - rim[1]) / (last - first));  // between them and the layers
  const start = rim[0] + gap, end = rim[1] + gap;
  const step = (along - start - end) / Math.max(1, last - first - 2 + (withHeads ? 0.5 : 0)), lane = (across - top - bottom) / lanes;
  const radius = Math.max(2.2, Math.min(step * (withHeads ? 0.2 : 0.3), lane * 0.26, 13));
  const place = (layer, position) => {
    const a = layer < 0 ? rim[0] : layer >= last ? along - rim[1] : start + layer * step, b = top + (position + 0.5) * lane;
    return upwards ? { x: b, y: height - a } : { x: a, y: b };
  };
  const laneOf = (node) => {
    if (node.kind === "output" || node.name === "input") return (lanes - 1) / 2;
    if (node.kind === "attention") return node.row;
    const count = sublayers.find((sublayer) => sublayer.nodes.includes(node.name)).nodes.length;
    return withHeads ? heads : (lanes - count) / 2 + node.row;
  };
  const points = model.nodes.map((node) => {
    const shift = withHeads && node.kind === "pointwise" ? 0.48 : 0;
    const lane_ = laneOf(node);
    return { ...place(node.layer + shift, lane_), lane: lane_, pill: node.kind === "output" || node.name === "input" };
  });
  const effect = (node) => Math.abs(data.nodes.effect[node.name] || 0);
  const most = Math.max(...model.nodes.map(effect)) || 1, largest = Math.max(radius, Math.min(lane * 0.4, step * 0.6, 16));
  const radii = model.nodes.map((node) => (level === "nodes" ? radius * 0.7 + (largest - radius * 0.7) * Math.sqrt(effect(node) / most) : radius));
  const laid = { upwards, width, height, step, lane, lanes, heads, radius, radii, points, place, withHeads, level };
  laid.curves = model.edges.map((edge) => curveOf(edge, laid));
  laid.beads = model.edges.map((edge) => (edge.gates.length ? beadOn(laid.curves[edge.id]) : null));
  return laid;
}

const PORT_PLACE = { q: -0.62, k: 0, v: 0.62 };
function curveOf(edge, laid) {
  const a = laid.points[edge.from.id], b = laid.points[edge.to.id], r = laid.radius;
  const reach = (node, point) => (point.pill ? 26 : laid.radii[node.id]);
  const shift = laid.level === "nodes" ? 0 : (PORT_PLACE[edge.port.suffix] ?? 0) * r;
  const flip = laid.upwards;
  // u runs along the layers, w across them
  const u1 = (flip ? -a.y : a.x) + (flip && a.pill ? 10 : reach(edge.from, a)), u2 = (flip ? -b.y : b.x) - (flip && b.pill ? 10 : reach(edge.to, b));
  const w1 = flip ? a.x : a.y, w2 = (flip ? b.x : b.y) + shift;
  const span = Math.max(0, u2 - u1), near = Math.exp(-(((w2 - w1) / (laid.lane * 0.9)) ** 2));
  const outside = a.lane === laid.heads && laid.withHeads ? 1 : -1;  // arcs along the MLPs bow away from the heads
  const bow = span > laid.step ? outside * near * Math.min(span * 0.2, laid.lane * 0.85) : 0;
  const pull = Math.max(span * 0.42, r);
  const points = [[u1, w1], [u1 + pull, w1 + bow], [u2 - pull, w2 + bow], [u2, w2]];
  return points.map(([u, w]) => (flip ? [w, -u] : [u, w]));
}
function pointOn(curve, t) {
  const s = 1 - t, a = s * s * s, b = 3 * s * s * t, c = 3 * s * t * t, d = t * t * t;
  return [a * curve[0][0] + b * curve[1][0] + c * curve[2][0] + d * curve[3][0],
    a * curve[0][1] + b * curve[1][1] + c * curve[2][1] + d * curve[3][1]];
}

// Where an edge carries the mark of its gate: just before the receiver.
function beadOn(curve) {
  const length = Math.hypot(curve[3][0] - curve[0][0], curve[3][1] - curve[0][1]);
  return pointOn(curve, 1 - Math.min(0.35, 9 / Math.max(1, length)) / 1.3);
}
// Labels of layers and heads at the rim, whatever the view: on the screen and in saved files.
function axisLabels(laid, view) {
  const labels = [], step = laid.step * view.scale, every = Math.max(1, Math.ceil(20 / step));
  for (let layer = 0; layer < model.logits.layer; layer += every) {
    const spot = laid.place(layer + (laid.withHeads ? 0.24 : 0), 0);
    labels.push(laid.upwards ? { text: String(layer), x: 6, y: spot.y * view.scale + view.y, anchor: "left" }
      : { text: String(layer), x: spot.x * view.scale + view.x, y: 14, anchor: "center" });
  }
  if (!laid.upwards) labels.push({ text: "layer", x: 8, y: 14, anchor: "left" });
  if (!laid.withHeads) return labels;
  const lane = laid.lane * view.scale, skip = Math.max(1, Math.ceil(15 / lane));
  for (let i = 0; i <= laid.heads; i += i + skip > laid.heads && i < laid.heads ? laid.heads - i : skip) {
    const spot = laid.place(0, i), text = i === laid.heads ? "MLP" : "h" + i;
    labels.push(laid.upwards ? { text, x: spot.x * view.scale + view.x, y: 12, anchor: "center" }
      : { text, x: 8, y: spot.y * view.scale + view.y, anchor: "left" });
  }
  return labels;
}

// A grid of the curves' pieces, so that finding the edge under the pointer looks at a few pieces of thousands of edges.
function makeGrid(laid) {
  const cell = 16, piece = 10, cells = new Map();  // pieces are in the cell of their middle, so half a piece may stick out
  laid.curves.forEach((curve, id) => {
    const length = Math.hypot(curve[3][0] - curve[0][0], curve[3][1] - curve[0][1]);
    const pieces = Math.max(4, Math.ceil(length / piece));
    let [x, y] = curve[0];
    for (let i = 1; i <= pieces; i++) {
      const [nextX, nextY] = pointOn(curve, i / pieces);
      const key = Math.floor((x + nextX) / 2 / cell) * 4096 + Math.floor((y + nextY) / 2 / cell), found = cells.get(key);
      if (found) found.push(id, x, y, nextX, nextY); else cells.set(key, [id, x, y, nextX, nextY]);
      [x, y] = [nextX, nextY];
    }
  });
  const distance = (x, y, x1, y1, x2, y2) => {
    const dx = x2 - x1, dy = y2 - y1, t = Math.max(0, Math.min(1, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1)));
    return Math.hypot(x - x1 - t * dx, y - y1 - t * dy);
  };
  return {
    nearest(x, y, tolerance, accept) {
      const reach = tolerance + piece, to = (value) => Math.floor(value / cell);
      let best = null, bestDistance = tolerance;
      for (let i = to(x - reach); i <= to(x + reach); i++) for (let j = to(y - reach); j <= to(y + reach); j++) {
        const found = cells.get(i * 4096 + j) || [];
        for (let at = 0; at < found.length; at += 5) {
          const apart = distance(x, y, found[at + 1], found[at + 2], found[at + 3], found[at + 4]);
          if (apart < bestDistance && accept(found[at])) { bestDistance = apart; best = found[at]; }
        }
      }
      return best;
    },
  };
}
