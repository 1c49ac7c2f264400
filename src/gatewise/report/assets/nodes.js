// What a node does on a few prompts, clean beside corrupted: where it looks, where that matters, what it writes.
const LONG = 60;  // tokens; of longer prompts only what is looked at is shown, with its neighbours

function tokenText(text) { return text.replace(/\n/g, "⏎") || "∅"; }
// A prompt as tokens, each as dark as the head looks at it.
function attentionLine(tokens, weights, from, other) {
  const seen = new Map(weights), keep = new Set([from, tokens.length - 1]);
  for (const [place] of weights) for (const near of [place - 1, place, place + 1]) keep.add(near);
  const line = el("p", { class: "tokens" });
  const apart = tokens.some((text) => /^\s/.test(text)) ? "" : " ";  // tokenizers of whole words leave spaces out
  let skipped = false;
  tokens.forEach((text, i) => {
    if (tokens.length > LONG && !keep.has(i)) { if (!skipped) line.append(" … "); skipped = true; return; }
    skipped = false;
    const weight = seen.get(i) || 0;
    const token = el("span", { class: (i === from ? "from " : "") + (other && other[i] !== text ? "differs" : ""), title: `${tokenText(text).trim()}: ${percent(weight)}` }, tokenText(text));
    token.style.setProperty("--weight", Math.round(100 * Math.sqrt(weight)) + "%");
    if (weight >= 0.35) token.classList.add("strong");
    line.append(token, apart);
  });
  return line;
}
function attentionPart(prompt, one) {
  return one.attention.map((line) => {
    const at = tokenText(prompt.clean[line.position]).trim(), answer = line.position === prompt.clean.length - 1;
    return el("div", { class: "look" },
      el("p", { class: "small" }, "From ", el("b", {}, `“${at}”`), answer ? ", where the answer is read:" : ", where it matters too:"),
      ["clean", "corrupted"].map((side) => el("div", { class: "side" }, el("span", { class: "muted" }, side),
        attentionLine(prompt[side], line.weights[side], line.position, prompt[side === "clean" ? "corrupted" : "clean"]))));
  });
}
function writesPart(prompt, one) {
  const shown = (text) => `“${tokenText(text).trim() || tokenText(text)}”`, some = (texts) => texts.slice(0, 2).map(shown).join(", ") + (texts.length > 2 ? " …" : "");
  const most = Math.max(0.01, ...["clean", "corrupted"].flatMap((side) => [one.direct[side].correct, one.direct[side].incorrect].map(Math.abs)));
  const cell = (value) => el("td", { class: "cell" }, el("div", { class: "signed-bar" }, signedBar(value / most)), el("span", {}, signed(value)));
  const words = (list) => el("td", { class: "words" }, list.length ? "" : el("span", { class: "muted", title: "none beyond what a random output of its length does" }, "none"), list.map(([text, value]) => el("span", { title: signed(value) }, tokenText(text).trim() || tokenText(text))));
  return [el("table", { class: "writes" }, el("thead", {}, row("th", ["direct effect", "clean", "corrupted"])),
    el("tbody", {}, ["correct", "incorrect"].map((kind) => el("tr", {}, el("td", {}, `${kind} `, el("span", { class: "muted" }, some(prompt[kind]))), cell(one.direct.clean[kind]), cell(one.direct.corrupted[kind]))),
      el("tr", {}, el("td", {}, "tokens up"), words(one.direct.clean.promoted), words(one.direct.corrupted.promoted)),
      el("tr", {}, el("td", {}, "tokens down"), words(one.direct.clean.suppressed), words(one.direct.corrupted.suppressed)))),
    el("p", { class: "muted small" }, "What it writes at the answer, straight through the final norm and the unembedding: logits above the mean of the vocabulary; tokens only beyond what a random output of the same length does. What it does through later nodes is not in them.")];
}
function signedBar(share) {
  const width = Math.min(1, Math.abs(share)) * 50;
  return svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("line", { class: "zero", x1: 50, x2: 50, y1: 0, y2: 8 }),
    svg("rect", { class: share < 0 ? "down" : "up", x: share < 0 ? 50 - width : 50, width, y: 1, height: 6 }));
}
function effectText(prompt, one) {
  const listed = one.effect.slice(0, 4).map(([place, value]) => `“${tokenText(prompt.clean[place]).trim()}” ${percent(value)}`);
  return listed.length ? `Normalised effect by position: ${listed.join(", ")}.` : "Nothing it writes on this prompt has an effect to first order.";
}
function nodeDoing(node, state, again) {
  const all = data.nodes.of[node.name];
  if (!all) return node.kind === "output" ? null : el("p", { class: "muted small" }, "Only the strongest nodes of the circuit were looked into.");
  const place = Math.min(state.prompt, all.length - 1), prompt = data.nodes.prompts[place], one = all[place];
  const choose = el("div", { class: "prompts", role: "group", "aria-label": "Example prompt" }, all.map((_, i) => el("button", { type: "button",
    "aria-pressed": String(i === place), "aria-label": `Example prompt ${i + 1}`, on: { click: () => { state.prompt = i; again(); } } }, String(i + 1))));
  return el("div", { class: "doing" },
    el("p", {}, "Normalised effect ", el("b", {}, percent(data.nodes.effect[node.name])), " of the logit difference, to first order, on all paths to the output, in the whole model on the shown held-out prompts",
      data.nodes.effect[node.name] < -data.against ? el("b", {}, ": it works against the task.") : "."),
    el("div", { class: "prompt-head" }, el("h4", {}, "On example prompt"), choose),
    one.attention.length ? attentionPart(prompt, one) : ["clean", "corrupted"].map((side) => el("div", { class: "side" }, el("span", { class: "muted" }, side), attentionLine(prompt[side], [], -1, prompt[side === "clean" ? "corrupted" : "clean"]))),
    el("p", { class: "small effect-line" }, effectText(prompt, one)),
    writesPart(prompt, one));
}
