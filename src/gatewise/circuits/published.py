"""Circuits of GPT-2 small that people have worked out by hand, known by their nodes."""

from __future__ import annotations

from collections.abc import Mapping

# Wang et al. 2022 ("Interpretability in the Wild"), figure 2: layer.head
_IOI_CLASSES = {
    "previous token": "2.2 4.11",
    "duplicate token": "0.1 0.10 3.0",
    "induction": "5.5 5.8 5.9 6.9",
    "S-inhibition": "7.3 7.9 8.6 8.10",
    "name mover": "9.6 9.9 10.0",
    "backup name mover": "9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9",
    "negative name mover": "10.7 11.10",
}
PUBLISHED_IOI: Mapping[str, str] = {  # head -> role
    "a{}.h{}".format(*head.split(".")): role for role, heads in _IOI_CLASSES.items() for head in heads.split()
}
# Hanna et al. 2023 ("How does GPT-2 compute greater-than?"): the heads that carry the year YY to the last position, and
# the MLPs that raise the larger years. Later encodings of this circuit (ACDC's) leave out a5.h1 and a8.h8 and add the
# early part, a0.h1, a0.h3, a0.h5 and m0 to m3.
PUBLISHED_GT = ("a5.h1", "a5.h5", "a6.h1", "a6.h9", "a7.h10", "a8.h8", "a8.h11", "a9.h1", "m8", "m9", "m10", "m11")
