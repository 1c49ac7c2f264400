// The drawing: edges on one canvas, redrawn when what is shown changes; nodes and what is pointed at on another above it.
// The nodes are a picture too, made with the edges: pointing and moving put it in place and draw only what stands out.
// Thousands of edges take longer than a frame to draw: the strongest come at once, then all of them, some per frame, on a
// canvas that is put in place when it is complete.
const AT_ONCE = 300, PER_FRAME = 900, NAMED = 160;  // edges; with more of them drawn, names would cover each other
function makeGraph(state, on) {
  const box = $("plot"), base = $("base"), over = $("over"), tip = $("tip");
  const below = base.getContext("2d"), above = over.getContext("2d");
  let laid, grid, ratio = 1, view = { x: 0, y: 0, scale: 1 }, drawn = { ...view }, paths = [], ink = colours();
  const back = document.createElement("canvas"), behind = back.getContext("2d");
  const still = document.createElement("canvas"), resting = still.getContext("2d");
  let hover = null, waiting = 0, later = 0, order = [], used = [], pictured = null, bright = new Set(), done = 0, filling = 0;
  const times = [];

  function resize() {
    const upwards = box.clientWidth < 620;
    const room = upwards ? Math.max(460, Math.min(1100, (model.logits.layer + 2) * 25 + 90)) : 660;
    box.style.height = room + "px";
    ratio = Math.min(2, window.devicePixelRatio || 1);
    for (const canvas of [base, over, back, still]) {
      canvas.width = Math.round(box.clientWidth * ratio);
      canvas.height = Math.round(box.clientHeight * ratio);
    }
    laid = makeLayout(box.clientWidth, box.clientHeight, state.level);
    grid = makeGrid(laid);
    paths = laid.curves.map(pathOf);
    changed();
  }
  function pathOf(curve) {
    const path = new Path2D();
    path.moveTo(...curve[0]);
    path.bezierCurveTo(...curve[1], ...curve[2], ...curve[3]);
    return path;
  }
  function changed() {
    order = shownEdges();  // the weakest first
    used = new Array(model.nodes.length).fill(false);
    for (const edge of order) used[edge.from.id] = used[edge.to.id] = true;
    redraw();
  }
  function recoloured() {
    ink = colours();
    redraw();
  }
  function redraw() {
    clearTimeout(later);
    later = 0;
    ask(true);
  }
  let whole = false;
  function ask(everything) {
    whole = whole || everything;
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; paint(whole); whole = false; });
  }
  function paint(everything) {
    const started = performance.now();
    if (everything) { paintNodes(); paintEdges(); }
    else if (drawn.x !== view.x || drawn.y !== view.y || drawn.scale !== view.scale) {  // moved: shift the picture, redraw later
      const scale = view.scale / drawn.scale;
      base.style.transform = `translate(${view.x - drawn.x * scale}px, ${view.y - drawn.y * scale}px) scale(${scale})`;
    }
    paintOver();
    times.push({ what: everything ? "edges" : "overlay", ms: performance.now() - started });
    if (times.length > 2000) times.shift();
  }
  function begin(context) {
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalAlpha = 1;
    context.clearRect(0, 0, base.width, base.height);
    context.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
  }
  function strokeSome(context, from, to) {
    const calm = Math.min(1, 260 / Math.max(1, order.length)) ** 0.35;
    for (let i = from; i < to; i++) strokeEdge(context, order[i], calm, 1);
  }
  function paintEdges() {
    clearTimeout(filling);
    begin(below);
    strokeSome(below, Math.max(0, order.length - AT_ONCE), order.length);
    drawn = { ...view };
    base.style.transform = "none";
    done = 0;
    if (order.length > AT_ONCE) filling = setTimeout(fillUp, 140);  // when nothing has changed for a moment
  }
  function fillUp() {
    if (done === 0) begin(behind);
    const end = Math.min(order.length, done + PER_FRAME);
    strokeSome(behind, done, end);
    done = end;
    if (done < order.length) { filling = setTimeout(fillUp, 0); return; }
    below.setTransform(1, 0, 0, 1, 0, 0);
    below.globalAlpha = 1;
    below.clearRect(0, 0, base.width, base.height);
    below.drawImage(back, 0, 0);
  }
  function strokeEdge(context, edge, calm, wider) {
    const strength = edge.strength ** 0.45;
    context.globalAlpha = wider > 1 ? 0.95 : (0.15 + 0.75 * strength) * calm;
    context.lineWidth = (0.6 + 3.8 * strength) * wider / Math.sqrt(view.scale);
    context.strokeStyle = ink[edge.shade];
    context.stroke(paths[edge.id]);
    const bead = laid.beads[edge.id];
    if (!bead) return;
    context.globalAlpha = 1;
    context.beginPath();
    context.arc(bead[0], bead[1], 3 / Math.sqrt(view.scale), 0, 7);
    context.fillStyle = gateInk(edge.gates[0].label);
    context.fill();
    context.lineWidth = 1 / Math.sqrt(view.scale);
    context.strokeStyle = ink.surface;
    context.stroke();
  }
  function gateInk(label) { return ink[label.toLowerCase()] || ink.soft; }
  function lit() {  // edges to bring forward: of what is pointed at, or else of what is selected; and of what is pinned
    const target = hover || state.selected, found = new Set();
    if (!target && !state.pins.size) return null;
    if (target && target.edge !== undefined) found.add(model.edges[target.edge]);
    for (const node of [...(target && target.node !== undefined ? [target.node] : []), ...state.pins]) {
      for (const edge of [...edgesOf(node).into, ...edgesOf(node).out]) if (edge.line) found.add(edge);
    }
    return [...found].sort((a, b) => a.strength - b.strength);
  }
  function paintNodes() {  // most filters leave the nodes as they are
    const same = pictured && pictured.ink === ink && pictured.laid === laid && ["x", "y", "scale"].every((one) => drawn[one] === view[one])
      && used.every((value, id) => value === pictured.used[id]);
    if (same) return;
    pictured = { ink, laid, used };
    begin(resting);
    for (const node of model.nodes) paintNode(resting, node, used[node.id]);
  }
  function paintOver() {
    above.setTransform(1, 0, 0, 1, 0, 0);
    above.clearRect(0, 0, over.width, over.height);
    const forward = lit();
    base.style.opacity = forward ? (state.selected && !hover ? "0.05" : "0.16") : "1";
    above.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
    above.lineCap = "round";
    if (forward) for (const edge of forward) strokeEdge(above, edge, 1, 1.35);
    bright = new Set(state.pins);
    for (const edge of forward || []) { bright.add(edge.from.id); bright.add(edge.to.id); }
    for (const target of [hover, state.selected]) if (target && target.node !== undefined) bright.add(target.node);
    const scale = view.scale / drawn.scale;
    above.setTransform(scale, 0, 0, scale, ratio * (view.x - drawn.x * scale), ratio * (view.y - drawn.y * scale));
    above.globalAlpha = forward ? 0.35 : 1;
    above.drawImage(still, 0, 0);
    above.globalAlpha = 1;
    above.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
    for (const id of bright) paintNode(above, model.nodes[id], true, (state.selected && state.selected.node === id) || state.pins.has(id));
    const roomy = laid.step * view.scale > 74 && laid.lane * view.scale > 26, few = order.length <= NAMED;
    const first = [...state.pins, ...(forward ? namesOf(forward) : [])];
    const rest = forward && !roomy ? [] : few || roomy ? namesOf(order) : [];
    paintLabels([...new Set([...first, ...rest])], (id) => !forward || bright.has(id));
    paintAxes();
    over.classList.toggle("pointing", Boolean(hover));
    over.classList.toggle("zoomed", view.scale > 1.01);
  }
  function namesOf(edges) { return [...new Set(edges.slice().reverse().flatMap((edge) => [edge.to.id, edge.from.id]))]; }
  function paintNode(context, node, used, chosen = false) {
    const { x, y, pill } = laid.points[node.id], r = laid.radii[node.id];
    const gate = model.gatesOf[node.id][0];
    const outline = () => {
      context.fillStyle = ink.surface;
      context.fill();
      context.lineWidth = (chosen ? 2.6 : 1.3) / Math.sqrt(view.scale);
      context.strokeStyle = chosen ? ink.accent : ink.ink;
      context.stroke();
    };
    context.beginPath();
    if (!used && !pill) {
      context.arc(x, y, Math.max(0.9, r * 0.2), 0, 7);
      context.fillStyle = ink.line;
      context.fill();
    } else if (pill) {
      context.font = "600 12px system-ui, sans-serif";
      const half = context.measureText(node.name).width / 2 + 7;
      context.roundRect(x - half, y - 11, 2 * half, 22, 11);
      outline();
      context.fillStyle = ink.ink;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(node.name, x, y + 0.5);
    } else {
      const outlineAt = (size) => {
        context.beginPath();
        if (node.kind === "attention") context.arc(x, y, size, 0, 7);
        else context.roundRect(x - size, y - size, 2 * size, 2 * size, size * 0.35);
      };
      if (gate) {  // a tested gate reads here
        outlineAt(r + 3 / Math.sqrt(view.scale));
        context.fillStyle = ink.surface;
        context.fill();
        context.lineWidth = 1.6 / Math.sqrt(view.scale);
        context.strokeStyle = gateInk(gate.label);
        context.stroke();
      }
      outlineAt(r);
      outline();
    }
  }
  function paintLabels(ids, strong) {  // above the node, or else below it, or else a line further, or else not at all: the strongest come first
    const taken = [], size = 11 / view.scale, [left, top] = [-view.x / view.scale, -view.y / view.scale];
    const [right, bottom] = [left + laid.width / view.scale, top + laid.height / view.scale];
    above.font = `500 ${size}px system-ui, sans-serif`;
    for (const id of ids) {
      const { x, y, pill } = laid.points[id], name = model.nodes[id].name;
      if (pill || x < left || x > right || y < top || y > bottom) continue;
      const half = above.measureText(name).width / 2 + 1 / view.scale;
      const reach = laid.radii[id] + (model.gatesOf[id].length ? 3 : 0);
      for (const shift of [-reach - 4 / view.scale, reach + size, -reach - 4 / view.scale - size, reach + 2 * size]) {
        const box_ = [x - half, y + shift - size, x + half, y + shift];
        if (taken.some((other) => box_[0] < other[2] && box_[2] > other[0] && box_[1] < other[3] && box_[3] > other[1])) continue;
        taken.push(box_);
        label(name, x, y + shift, strong(id));
        break;
      }
    }
  }
  function label(text, x, y, strong) {
    above.globalAlpha = strong ? 1 : 0.35;
    above.textAlign = "center";
    above.textBaseline = "alphabetic";
    above.lineWidth = 3.4 / view.scale;
    above.strokeStyle = ink.surface;
    above.lineJoin = "round";
    above.strokeText(text, x, y);
    above.fillStyle = strong ? ink.ink : ink.soft;
    above.fillText(text, x, y);
    above.globalAlpha = 1;
  }
  function paintAxes() {  // layers and heads, kept at the rim whatever the view
    above.setTransform(ratio, 0, 0, ratio, 0, 0);
    above.font = "11px system-ui, sans-serif";
    above.fillStyle = ink.soft;
    above.textBaseline = "middle";
    for (const { text, x, y, anchor } of axisLabels(laid, view)) {
      above.textAlign = anchor;
      above.fillText(text, x, y);
    }
  }

  function find(x, y) {
    const wx = (x - view.x) / view.scale, wy = (y - view.y) / view.scale;
    const centre_ = state.selected && state.selected.node, pinned = (edge) => state.pins.has(edge.from.id) || state.pins.has(edge.to.id);
    const accept = (id) => {
      const edge = model.edges[id];
      if (!edge.line) return false;
      if (centre_ !== undefined && centre_ !== null) return edge.to.id === centre_ || edge.from.id === centre_ || pinned(edge);
      return edge.visible || pinned(edge);
    };
    for (const node of model.nodes) {
      const { x: nx, y: ny, pill } = laid.points[node.id], reach = laid.radii[node.id] + 3 / view.scale;
      if (!used[node.id] && !bright.has(node.id)) continue;
      if (pill ? Math.abs(wx - nx) < 27 && Math.abs(wy - ny) < 13 : Math.hypot(wx - nx, wy - ny) < reach) return { node: node.id };
    }
    const edge = grid.nearest(wx, wy, 6 / view.scale, accept);
    return edge === null ? null : { edge };
  }
  const same = (a, b) => (a && b ? a.node === b.node && a.edge === b.edge : a === b);
  function point(target, x, y) {
    if (!same(target, hover)) {
      hover = target;
      ask(false);
      if (hover) fill(tip, on.describe(hover));
    }
    tip.hidden = !hover;
    if (hover) {
      const { offsetWidth: w, offsetHeight: h } = tip, clamp = (value, most) => Math.max(6, Math.min(value, most - 6));
      const right = x + 18 + w < box.clientWidth, beside = right || x - 18 - w > 0;
      const left = right ? x + 18 : beside ? x - 18 - w : clamp(x - w / 2, box.clientWidth - w);
      const below = y + 22 + h < box.clientHeight || y < box.clientHeight / 2;
      tip.style.left = left + "px";
      tip.style.top = (beside ? clamp(y - h / 2, box.clientHeight - h) : below ? y + 22 : y - h - 16) + "px";
    }
  }
  function moved() {
    ask(false);
    clearTimeout(filling);
    clearTimeout(later);
    later = setTimeout(redraw, 110);
  }
  function zoom(factor, x = box.clientWidth / 2, y = box.clientHeight / 2) {
    const scale = Math.max(1, Math.min(12, view.scale * factor)), change = scale / view.scale;
    view = { scale, x: x - (x - view.x) * change, y: y - (y - view.y) * change };
    bound();
    moved();
  }
  function bound() {  // never lose the drawing out of sight
    const { clientWidth: w, clientHeight: h } = box;
    view.x = Math.min(w * 0.5, Math.max(w * 0.5 - w * view.scale, view.x));
    view.y = Math.min(h * 0.5, Math.max(h * 0.5 - h * view.scale, view.y));
  }
  function fit() { view = { x: 0, y: 0, scale: 1 }; redraw(); }
  function centre(node) {
    if (view.scale <= 1.01) return;
    const spot = laid.points[node];
    view.x = box.clientWidth / 2 - spot.x * view.scale;
    view.y = box.clientHeight / 2 - spot.y * view.scale;
    redraw();
  }

  const fingers = new Map();
  let dragged = 0, pinch = 0;
  const spotOf = (event) => { const frame = over.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };
  over.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, spotOf(event));
    dragged = 0;
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    const [x, y] = spotOf(event), before = fingers.get(event.pointerId);
    if (!before) { point(find(x, y), x, y); return; }
    fingers.set(event.pointerId, [x, y]);
    dragged += Math.hypot(x - before[0], y - before[1]);
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()], apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (pinch) zoom(apart / pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      pinch = apart;
    } else if (dragged > 4) {
      point(null);
      over.classList.add("grabbing");
      view.x += x - before[0];
      view.y += y - before[1];
      bound();
      moved();
    }
  });
  const release = (event) => {
    const [x, y] = spotOf(event);
    if (event.type === "pointerup" && fingers.size === 1 && dragged <= 4) {
      const target = find(x, y);
      on.select(target);
      if (event.pointerType === "touch") point(target, x, y);
    }
    fingers.delete(event.pointerId);
    pinch = 0;
    over.classList.remove("grabbing");
  };
  over.addEventListener("pointerup", release);
  over.addEventListener("pointercancel", release);
  over.addEventListener("pointerleave", () => point(null));
  over.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // a plain wheel scrolls the page
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0022), ...spotOf(event));
  }, { passive: false });
  over.addEventListener("dblclick", (event) => zoom(1.8, ...spotOf(event)));
  over.addEventListener("keydown", (event) => {
    const shifts = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (event.key in shifts) { view.x += shifts[event.key][0]; view.y += shifts[event.key][1]; bound(); moved(); }
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") fit();
    else if (event.key === "Escape") on.select(null);
    else return;
    event.preventDefault();
  });
  $("zoom-in").addEventListener("click", () => zoom(1.4));
  $("zoom-out").addEventListener("click", () => zoom(1 / 1.4));
  $("fit").addEventListener("click", fit);
  let width = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== width) { width = box.clientWidth; view = { x: 0, y: 0, scale: 1 }; resize(); }
  }).observe(box);
  resize();
  width = box.clientWidth;
  return { changed, recoloured, redraw, resize, overlay: () => ask(false), centre, times, complete: () => order.length <= AT_ONCE || done === order.length, view: () => view, laid: () => laid, lit, order: () => order,
    screen: (target) => {
      const [x, y] = target.node !== undefined ? [laid.points[target.node].x, laid.points[target.node].y]
        : pointOn(laid.curves[target.edge], 0.5);
      return [x * view.scale + view.x, y * view.scale + view.y];
    } };
}
