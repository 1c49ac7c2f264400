"""What `gate_findings.py` measured, told as the tables of docs/findings.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LABELS = ("AND", "OR", "ADDER")


def tables(cells: Sequence[Mapping[str, Any]]) -> str:
    """The tables of docs/findings.md."""
    names = {id(cell): f"{cell['about']['model']}, {cell['about']['task']}" for cell in cells}
    made = []

    def table(title: str, header: str, rows: Iterable[Sequence[str]]) -> None:
        columns = header.count("|") + 1
        lines = [f"| {header} |", "|" + " --- |" * columns, *(f"| {' | '.join(row)} |" for row in rows)]
        made.append(f"**{title}**\n\n" + "\n".join(lines))

    for key in ("whole ports", "circuit"):
        table(
            f"Gates: {key}",
            "cell | receivers | tested | stand | confirmed | across ports | within a port | MLP or logits | largest | "
            "labels",
            ([names[id(cell)], *gate_counts(cell["gates"][key])] for cell in cells),
        )
    table(
        "The largest gates",
        "cell | receiver | groups | interaction | of the whole | rest of the model clean, corrupted | gate indices",
        ([names[id(cell)], *row] for cell in cells for row in largest_gates(cell)),
    )
    table(
        "The split against gate indices",
        "cell | method | ns, dn | AND, OR, ADDER | local share | of AND, OR, ADDER | labels ~ gamma | scores ~ gamma | "
        "above the floor | of matched edges",
        ([names[id(cell)], method, *split_row(cell["split"][method])] for cell in cells for method in ("eap", "acdc")),
    )
    table(
        "Mean gate index by label, and how far above matched edges",
        "cell | method | AND | above | OR | above | ADDER | above",
        ([names[id(cell)], method, *label_row(cell["split"][method])] for cell in cells for method in ("eap", "acdc")),
    )
    table(
        "Partners of labels",
        "cell | method | AND at the receiver (in another port) | elsewhere | none | "
        "OR at the receiver (in another port) | elsewhere | none",
        (
            [names[id(cell)], method, *partner_row(cell["partners"][method])]
            for cell in cells
            for method in ("eap", "acdc")
        ),
    )
    table(
        "Backups",
        "cell | pairs tested | stand | free norm only | strongest",
        ([names[id(cell)], *backup_row(cell["backups"])] for cell in cells),
    )
    table(
        "Replication",
        "cell | pairs | gates | stand again | same label",
        (
            [names[id(cell)], key, f"{row['gates']:.0f}", percent(row["stand"]), percent(row["same_label"])]
            for cell in cells
            for key, row in cell["gates"]["replication"].items()
        ),
    )
    table(
        "Completion at equal edges",
        "cell | edges | other edges | completeness, completed | Ns+Dn | gain | destroyed | Ns+Dn | recovered | Ns+Dn",
        ([names[id(cell)], *completion_row(one)] for cell in cells for one in cell["completion"]),
    )
    table(
        "Corollary 1",
        "cell | gates, aim | edges | saved | gates thinned | KL, whole | smallest | largest loss of a gate",
        ([names[id(cell)], name, *minimal_row(one)] for cell in cells for name, one in cell["minimal"].items()),
    )
    return "\n\n".join(made)


def gate_counts(found: Mapping[str, Any]) -> list[str]:
    standing = [one for one in found["tested"] if one["significant"]]
    head = [one for one in standing if one["receiver"].startswith("a")]
    across, within = (sum(one["across"] is which for one in head) for which in (True, False))
    largest = max((abs(one["value"][0]) for one in standing), default=0.0)
    labels = Counter(one["label"] for one in standing)
    counts = (found["looked_at"], len(found["tested"]), len(standing), sum(bool(one["confirmed"]) for one in standing))
    more = (across, within, len(standing) - len(head))
    spoken = ", ".join(f"{count} {label}" for label, count in labels.most_common()) or "-"
    return [*map(str, counts + more), f"{largest:.2f}", spoken]


def largest_gates(cell: Mapping[str, Any], most: int = 4) -> list[list[str]]:
    rows = [one for key in ("whole ports", "circuit") for one in cell["gates"][key]["tested"] if one["significant"]]
    found: dict[str, dict[str, Any]] = {}
    for one in sorted(rows, key=lambda one: -abs(one["value"][0])):
        found.setdefault(one["receiver"], one)
    shown = []
    for one in list(found.values())[:most]:
        logit_diff = one["on_logit_diff"]
        groups = ((name, group) for name, group in one["groups"].items() if name in one["set"])
        acts = ", ".join(f"{name} {number(group['gamma'])} {group['acts']}" for name, group in groups)
        on_logit_diff = (
            "-" if logit_diff is None else f"{logit_diff['clean'][0]:+.2f}, {logit_diff['corrupted'][0]:+.2f}"
        )
        shown.append(
            [
                one["receiver"],
                " x ".join(one["set"]),
                interval(one["value"]),
                percent(one["share_of_all"]),
                on_logit_diff,
                acts,
            ]
        )
    return shown


def split_row(found: Mapping[str, Any]) -> list[str]:
    by_label = found["by_label"]
    return [
        f"{found['ns']}, {found['dn']}",
        ", ".join(str(by_label[kind]["edges"]) for kind in LABELS),
        percent(found["local_share"]),
        ", ".join(percent(by_label[kind]["median_local_share"]) for kind in LABELS),
        f"{found['label_correlation']:.2f}",
        f"{found['score_correlation']:.2f}",
        f"{found['score_correlation_above_floor']:.2f} ({found['edges_above_floor']})",
        f"{found['score_correlation_matched']:.2f}",
    ]


def label_row(found: Mapping[str, Any]) -> list[str]:
    cells = []
    for kind in LABELS:
        one = found["by_label"][kind]
        cells += [number(one["mean_gamma"]), f"{interval(one['above_matched'])}, {one['matched']}"]
    return cells


def partner_row(found: Mapping[str, Any]) -> list[str]:
    cells = []
    for kind in ("AND", "OR"):
        where, ports = found[kind]["where"], found[kind]["ports"]
        cells += [f"{where.get('receiver', 0)} ({ports.get('another', 0)})"]
        cells += [str(where.get(key, 0)) for key in ("elsewhere", "none")]
    return cells


def backup_row(found: Mapping[str, Any]) -> list[str]:
    rows = found["tested"]
    standing = [one for one in rows if one["significant"]]
    free = sum(one["interplay"][1] > 0 and not one["significant"] for one in rows)
    best = ", ".join(f"{one['stand_in']} for {one['node']} {interval(one['frozen'])}" for one in standing[:2])
    return [str(len(rows)), str(len(standing)), str(free), best or "-"]


def completion_row(one: Mapping[str, Any]) -> list[str]:
    both = (one["completed"], one["ns+dn"])
    return [
        str(one["edges"]),
        str(one["other_edges"]),
        *(f"{found['completeness']:.3f}" for found in both),
        interval(one["gain"]),
        *(percent(found[key]) for key in ("destroyed", "recovered") for found in both),
    ]


def minimal_row(one: Mapping[str, Any]) -> list[str]:
    counts = (str(one[key]) for key in ("edges", "saved", "thinned"))
    return [*counts, *(f"{one[key]:.3f}" for key in ("sound", "minimal", "largest_loss"))]


def interval(found: Sequence[float | None]) -> str:
    return "-" if found[0] is None else f"{number(found[0])} ({number(found[1])} to {number(found[2])})"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
