// Tested gates: the effect of every set of clean groups, how each group acts, and the set-difference labels of its edges.
const SHOWN_GATES = matchMedia("(max-width: 640px)").matches ? 2 : 6;

function span([value, low, high]) { return value === null ? "–" : `${signed(value)} (${fixed2(low)} to ${fixed2(high)})`; }
function joined(names) { return names.length < 2 ? names.join("") : names.slice(0, -1).join(", ") + " and " + names.at(-1); }

// The strongest interaction in words.
function gateSentence(gate) {
  const together = gate.table.filter((one) => one.set.length > 1).sort((a, b) => Math.abs(b.interaction[0]) - Math.abs(a.interaction[0]))[0];
  const effect = (set) => gate.table.find((one) => one.set.length === set.length && set.every((name) => one.set.includes(name))).value[0];
  const parts = together.set.map((name) => `${name} alone ${fixed2(effect([name]))}`), [beyond, low, high] = together.interaction, more = beyond > 0;
  return `Normalised effect: ${parts.join(", ")}, ${together.set.length > 2 ? "all of them" : "together"} ${fixed2(effect(together.set))}: `
    + `${fixed2(Math.abs(beyond))} ${more ? "more" : "less"} than the sum of their parts (${fixed2(more ? low : -high)} to ${fixed2(more ? high : -low)}).`;
}
// How the groups act, the clear ones.
function actsText(gate) {
  const acts = new Map();
  for (const [name, group] of Object.entries(gate.groups)) if (group.label !== "undecided") acts.set(group.label, [...(acts.get(group.label) || []), name]);
  const parts = [...acts].map(([label, names], i) => [i ? ", " : "", el("b", {}, joined(names)), i ? " as " : names.length > 1 ? " act as " : " acts as ", labelName(label)]);
  return parts.length ? el("p", { class: "acts" }, parts.flat(), ".") : null;
}
function confirmedText(gate) {
  if (!gate.confirmed) return null;
  const sides = ["clean", "corrupted"].filter((side) => gate.confirmed[side]), yes = sides.filter((side) => gate.confirmed[side].holds);
  if (yes.length === sides.length) return "confirmed end to end";
  return yes.length ? `confirmed end to end only with the rest of the model ${yes[0]}` : "not confirmed end to end";
}

// Rows of dots and bars: ● a clean group, ○ a corrupted one. Bars grow from 0, with their interval.
function gateTable(gate) {
  const names = Object.keys(gate.groups), rows = [{ set: [], value: [0, 0, 0] }, ...gate.table].sort((a, b) => a.set.length - b.set.length);
  const ends = rows.flatMap((one) => one.value), low = Math.min(0, ...ends), high = Math.max(0, ...ends), width = high - low || 1;
  const at = (value) => 100 * (value - low) / width;
  const bar = ([value, from, to]) => svg("svg", { class: "gauge", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "zero", x1: at(0), x2: at(0), y1: 0, y2: 12 }),
    svg("rect", { class: "effect", x: Math.min(at(0), at(value)), width: Math.abs(at(value) - at(0)), y: 2.5, height: 7 }),
    svg("line", { class: "whisker", x1: at(from), x2: at(to), y1: 6, y2: 6 }));
  return el("table", { class: "gate-table" },
    el("thead", {}, el("tr", {}, names.map((name) => el("th", {}, name)), el("th", {}, "normalised effect"), el("th", {}))),
    el("tbody", {}, rows.map((one) => el("tr", {}, names.map((name) => {
      const on = one.set.includes(name);
      return el("td", { class: on ? "on" : "off" }, el("span", { role: "img", "aria-label": on ? "clean" : "corrupted" }, on ? "●" : "○"));
    }), el("td", { class: "cell" }, bar(one.value)), el("td", { title: span(one.value) }, fixed2(one.value[0]))))));
}

// Where a group lies between OR (-1), ADDER (0) and AND (+1), with its interval.
function indexScale([value, low, high]) {
  const at = (index) => 50 + 47 * index;
  const picture = svg("svg", { class: "scale", viewBox: "0 0 100 14", preserveAspectRatio: "none", role: "img",
    "aria-label": value === null ? "no gate index: no effect above the floor" : `gate index ${span([value, low, high])}` });
  for (const [label, from, to] of [["or", -1, -1 / 3], ["adder", -1 / 3, 1 / 3], ["and", 1 / 3, 1]]) {
    picture.append(svg("rect", { class: "zone " + label, x: at(from), width: at(to) - at(from) - 0.6, y: 5.5, height: 3 }));
  }
  if (value !== null) picture.append(svg("line", { class: "whisker", x1: at(low), x2: at(high), y1: 7, y2: 7 }), svg("line", { class: "needle", x1: at(value), x2: at(value), y1: 1.5, y2: 12.5 }));
  return picture;
}
function groupRow(name, group) {
  const labels = Object.keys(LABELS).filter((kind) => group.labels && group.labels[LABELS[kind]]);
  const ports = (group.ports || []).map((port) => (/<([qkv])>$/.exec(port) || [])[1]).filter(Boolean);
  const what = group.edges === undefined ? "all its other edges" : plural(group.edges, "edge") + (ports.length ? ` into ${joined(ports)}` : "");
  const last = data.sizes.length - 1, strength = (edge) => strengthIn("ns|dn", edge, last);
  const senders = [...new Set((group.shown || []).slice().sort((a, b) => strength(b) - strength(a)).map((edge) => model.edges[edge].from.name))];
  return el("tr", {}, el("td", {}, el("b", {}, name), el("span", { class: "muted" }, " " + what),
    senders.length ? el("span", { class: "muted senders", title: senders.join(", ") }, senders.slice(0, 3).join(", ") + (senders.length > 3 ? " …" : "")) : null),
    el("td", { class: "index" }, indexScale(group.gamma), labelName(group.label), el("span", { class: "muted" }, group.gamma[0] === null ? " γ –" : ` γ ${span(group.gamma)}`)),
    el("td", { class: "labels" }, labels.length ? labels.map((kind) => el("span", { title: `found by ${FOUND[kind]}; set-difference label ${LABELS[kind]}` },
      el("i", { class: "dot " + kind }), `${group.labels[LABELS[kind]]} ${LABELS[kind]}`)) : "–"));
}
function groupTable(gate) {
  return el("table", { class: "groups" },
    el("thead", {}, el("tr", {}, el("th", {}, "group"), el("th", { class: "index" }, el("span", { class: "ends" }, el("span", {}, "OR"), el("span", {}, "ADDER"), el("span", {}, "AND"))),
      el("th", {}, "set-difference labels"))),
    el("tbody", {}, Object.entries(gate.groups).map(([name, group]) => groupRow(name, group))));
}
function restText(gate) {
  const rest = gate.rest === "group" ? "its other edges are a group of their own" : `its other edges ${gate.rest}`;
  return `${rest}${gate.conditional ? "; another label with them on the other side" : ""} · ${gate.pairs} held-out pairs`;
}
function gateCard(gate, select) {
  const confirmed = confirmedText(gate);
  const title = el("button", { type: "button", class: "link", "data-gate": gate.receiver, on: { click: () => select({ node: gate.node.id }, true) } }, gate.receiver);
  return el("article", { class: "gate-card" },
    el("h3", {}, select ? title : gate.receiver, " ", labelName(gate.label),
      gate.label !== "undecided" && gate.members.length < Object.keys(gate.groups).length ? el("span", { class: "muted small" }, ` of ${joined(gate.members)}`) : null),
    actsText(gate), el("p", { class: "sentence" }, gateSentence(gate)), gateTable(gate), groupTable(gate),
    el("p", { class: "muted small" }, [confirmed && confirmed[0].toUpperCase() + confirmed.slice(1), restText(gate)].filter(Boolean).join(" · ") + "."));
}

function showTestedGates(select) {
  const section = $("tested");
  section.hidden = !data.gates;
  if (!data.gates) return;
  const significant = model.gates.filter((gate) => gate.significant), others = model.gates.filter((gate) => !gate.significant);
  const counts = new Map();
  for (const gate of significant) counts.set(gate.label, (counts.get(gate.label) || 0) + 1);
  const listed = [...counts].sort((a, b) => b[1] - a[1]).map(([label, count]) => `${count} ${label}`).join(", ");
  $("tested-lead").textContent = (significant.length
    ? `${significant.length} of ${plural(model.gates.length, "test")} are significant: together the groups do measurably more or less than the sum of what each does alone. By their whole tables: ${listed}. `
    : `None of ${plural(model.gates.length, "test")} is significant: no groups were seen to do more or less together than the sum of what each does alone. `)
    + `${plural(data.gates.looked_at, "receiver")} looked at; tested on held-out pairs, corrected for the number of tests.`;
  const rest = significant.slice(SHOWN_GATES);
  fill($("tested-cards"), significant.slice(0, SHOWN_GATES).map((gate) => gateCard(gate, select)));
  fill($("tested-more"),
    rest.length ? el("details", { id: "more-gates" }, el("summary", {}, `${plural(rest.length, "more significant gate")}`),
      el("div", { class: "gate-cards" }, rest.map((gate) => gateCard(gate, select)))) : null,
    others.length ? el("details", {}, el("summary", {}, plural(others.length, "test that is not significant", "tests that are not significant")),
      el("p", { class: "muted small" }, "Not shown to be a gate, which is not the same as shown to be none."),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, row("th", ["receiver", "groups", "largest interaction", "p"])),
        el("tbody", {}, others.map((gate) => {
          const top = gate.table.filter((one) => one.set.length > 1).sort((a, b) => Math.abs(b.interaction[0]) - Math.abs(a.interaction[0]))[0];
          return row("td", [gate.receiver, Object.keys(gate.groups).join(", "), `${top.set.join(" × ")} ${span(top.interaction)}`, number(gate.p, 2)]);
        }))))) : null);
}
