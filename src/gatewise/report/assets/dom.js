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
function typeName(type) { return el("b", { class: "t-" + type.toLowerCase() }, type === "none" ? "no type" : type); }
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
  const names = ["none", "ink", "soft", "line", "faint", "surface", "accent"];
  return Object.fromEntries([...GATES.map((type) => [type, of(type.toLowerCase())]), ...names.map((name) => [name, of(name)])]);
}
