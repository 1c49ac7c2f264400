"""The paper's own numbers, to stand beside ours. GPT-2 small; ± as printed there."""

from __future__ import annotations

from gatewise_paper.experiment import Table

_NINE = tuple(
    f"{method} {direction}" for method in ("ACDC", "EAP", "Edge Pruning") for direction in ("Ns", "Dn", "Ns+Dn")
)
_THREE_BY_THREE = tuple(
    f"{task} {method}" for task in ("IOI", "GT", "SA") for method in ("ACDC", "EAP", "Edge Pruning")
)


def _rows(text: str) -> list[list[str | int]]:
    """`100: a b c` for each line; ± is written as in the paper."""
    rows: list[list[str | int]] = []
    for line in text.strip().splitlines():
        size, cells = line.split(":")
        rows.append([int(size), *cells.split()])
    return rows


COMPLETENESS_KL = Table(
    "IOI: KL(G\\C || G) (tabklcompleteness)",
    ("edges", *_NINE),
    _rows("""
        100: 0.62±0.1 0.64±0.1 0.64±0.1 0.51±0.1 0.71±0.1 0.74±0.1 0.56±0.1 0.62±0.1 0.64±0.1
        200: 0.64±0.1 0.69±0.1 0.71±0.1 0.56±0.1 0.73±0.0 0.73±0.1 0.58±0.1 0.65±0.1 0.69±0.1
        500: 0.71±0.1 0.84±0.1 0.87±0.1 0.65±0.1 0.81±0.1 0.83±0.1 0.67±0.1 0.88±0.1 0.94±0.1
        1000: 0.81±0.1 0.96±0.1 1.03±0.1 0.74±0.1 0.96±0.1 1.02±0.1 1.08±0.1 1.11±0.1 1.13±0.1
        2000: 1.05±0.1 1.19±0.2 1.22±0.1 0.89±0.1 1.11±0.2 1.24±0.2 1.31±0.2 1.40±0.1 1.41±0.1
        5000: 1.34±0.2 1.42±0.2 1.46±0.2 1.21±0.1 1.42±0.2 1.48±0.2 1.62±0.2 1.73±0.1 1.73±0.1
    """),
)
COMPLETENESS_ACCURACY = Table(
    "IOI: accuracy of G\\C (tabacccompleteness)",
    ("edges", *_NINE),
    _rows("""
        100: 0.73±0.1 0.68±0.0 0.63±0.1 0.74±0.1 0.53±0.0 0.51±0.0 0.76±0.1 0.67±0.1 0.66±0.0
        200: 0.65±0.0 0.62±0.0 0.60±0.0 0.68±0.0 0.49±0.0 0.46±0.0 0.59±0.0 0.55±0.0 0.56±0.0
        500: 0.53±0.0 0.51±0.0 0.51±0.0 0.61±0.0 0.41±0.0 0.38±0.0 0.55±0.0 0.43±0.0 0.43±0.0
        1000: 0.40±0.0 0.34±0.0 0.33±0.0 0.39±0.0 0.29±0.0 0.26±0.0 0.32±0.0 0.27±0.0 0.26±0.0
        2000: 0.34±0.0 0.26±0.0 0.24±0.0 0.35±0.0 0.18±0.0 0.14±0.0 0.24±0.0 0.18±0.0 0.16±0.0
        5000: 0.26±0.0 0.22±0.0 0.21±0.0 0.29±0.0 0.13±0.0 0.09±0.0 0.21±0.0 0.11±0.0 0.11±0.0
    """),
)
HAMMING = Table(
    "Hamming distance, Ns minus Ns+Dn (tabdifferencehamming)",
    ("edges", *_THREE_BY_THREE),
    _rows("""
        100: 3.4±0.6 0.6±0.1 8.4±3.7 4.8±0.9 0.5±0.1 12.7±4.9 2.8±0.4 1.1±0.2 15.3±5.8
        200: 5.9±1.3 1.2±0.3 18.1±6.7 6.7±1.8 1.3±0.2 22.5±9.1 4.3±0.9 2.2±0.5 28.4±12.7
        500: 14.7±3.7 1.8±0.7 44.5±13.8 16.9±4.2 1.6±0.8 49.1±15.6 12.8±2.9 2.9±0.9 55.9±16.7
        1000: 21.8±5.3 4.7±1.8 89.6±27.9 23.6±6.4 4.4±1.6 97.5±29.4 19.7±4.3 5.7±2.8 108.2±31.4
        2000: 49.5±12.9 7.9±2.9 195.3±57.8 55.7±14.9 8.6±3.5 211.7±66.2 44.8±15.2 8.8±3.1 237.4±64.8
        5000: 127±28.5 14.5±6.9 509.5±164.7 136.5±33.4 15.9±6.1 564.8±181.1 113.7±5.8 15.4±5.8 688.9±144.5
    """),
    "30 seeds.",
)
METRICS = Table(
    "Two metrics of completeness (tabmetrics)",
    ("method", "5 sampled K", "10 sampled K", "20 sampled K", "30 sampled K", "new metric"),
    [
        ["ACDC", "1.1±1.6", "1.8±1.2", "1.4±1.1", "1.2±0.6", "1.3±0.13"],
        ["EAP", "1.7±1.5", "1.3±1.6", "1.6±1.2", "1.3±0.7", "1.4±0.11"],
        ["Edge Pruning", "1.5±1.8", "1.4±1.9", "1.4±1.6", "1.6±0.6", "1.2±0.08"],
        ["Ours (Ns+Dn)", "0.4±0.3", "0.6±0.4", "0.3±0.3", "0.3±0.2", "1.8±0.03"],
    ],
    "Five seeds of discovery, K of 2 to 5 nodes.",
)
RATIOS = Table(
    "Best |Ns| : |Dn| (tabratio)",
    ("method", "IOI", "GT", "SA"),
    [
        ["ACDC", "1.12:1", "1.05:1", "1.07:1"],
        ["EAP", "1.09:1", "1.03:1", "1.05:1"],
        ["Edge Pruning", "1.11:1", "1.07:1", "1.06:1"],
    ],
)
ABLATION = Table(
    "Change of KL by state of two edges (appendix to figrealmodel)",
    ("edge 1", "edge 2", "AND", "OR", "ADDER"),
    [
        ["kept", "kept", "0.50", "0.28", "0.65"],
        ["kept", "removed", "0.02", "0.27", "0.32"],
        ["removed", "kept", "0.04", "0.27", "0.36"],
        ["removed", "removed", "0.00", "0.00", "0.00"],
    ],
)
UNLEARNING = Table(
    "A toy experiment on model unlearning",
    ("method", "accuracy", "accuracy of G-C"),
    [["EAP", "92.74", "29.17"], ["Edge Pruning", "92.74", "31.44"], ["Ours", "92.74", "13.21"]],
)
