// Elements out of plain values. Text always becomes text nodes: nothing of the data is ever read as markup.
const $ = (id) => document.getElementById(id);
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  apply(node, properties);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return node;
}
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map(asNode));
  return node;
}
function asNode(child) { return child instanceof Node ? child : document.createTextNode(String(child)); }
function apply(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "width") node.style.width = value;
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
}
function fill(node, ...children) { node.replaceChildren(...children.flat().filter(Boolean).map(asNode)); }
function row(tag, cells) { return el("tr", {}, cells.map((cell) => el(tag, {}, cell))); }
function foundName(kind) { return el("b", { class: "by-" + kind }, FOUND[kind]); }
// AND, OR and ADDER have their colours; what a test leaves open, or calls otherwise, has none.
function labelClass(label) { return "label " + (data.signs[label] ? "is-" + label.toLowerCase() : "is-other"); }
function labelName(label) { return el("span", { class: labelClass(label) }, label); }
function commandLine(text) {
  const copy = el("button", { type: "button", class: "quiet" }, "Copy");
  copy.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(copy.previousElementSibling); copy.textContent = "Selected"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return el("div", { class: "command" }, el("code", {}, text), copy);
}
function colours() {
  const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue("--" + name).trim();
  const names = [...KINDS, ...Object.keys(data.signs).map((label) => label.toLowerCase()), "ink", "soft", "line", "faint", "surface", "accent"];
  return Object.fromEntries(names.map((name) => [name, of(name)]));
}
