"""Builds the tokenizer that a GGUF file describes: GPT-2's byte-level BPE, or SentencePiece's BPE over scores.

The file has the vocabulary, and for byte-level BPE the merges; how text is cut before that is only named there
(`tokenizer.ggml.pre`), and the rules behind the names are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatewise.errors import GatewiseError
from gatewise.files import shown

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Metadata = Mapping[str, Any]

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of tokens
_LONGEST_TOKEN = 1_024  # characters; the longest of real vocabularies have some hundred
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # Hugging Face's names and GGUF's

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _SIGNS
_QWEN2 = _WORDS + r"\p{N}" + _SIGNS
_CUTS = {  # None: as GPT-2 does it
    **dict.fromkeys(("default", "gpt-2", "olmo", "smollm"), None),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), _LLAMA3),
    "qwen2": _QWEN2,
}
_SINGLE_DIGITS = ("smollm",)


@dataclass(frozen=True, eq=False)
class TokenizerParts:
    """What a Hugging Face folder says about its tokenizer."""

    tokenizer: Tokenizer  # tokenizer.json
    config: dict[str, Any]  # tokenizer_config.json

    def loaded(self) -> PreTrainedTokenizerBase:
        """Return it as transformers' tokenizer."""
        from transformers import PreTrainedTokenizerFast

        options = {key: value for key, value in self.config.items() if key != "tokenizer_class"}
        return PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, **options)


def tokenizer_parts(metadata: Metadata, longest: int) -> TokenizerParts:
    """Build the tokenizer; `longest` is how many tokens the model reads."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise GatewiseError(f"its tokenizer is of kind {shown(kind)}; 'gpt2' and 'llama' are understood.")
    tokenizer = _byte_level(metadata) if kind == "gpt2" else _sentence_pieces(metadata)
    special = special_tokens(metadata)
    if "bos" in special and _adds_bos(metadata):
        _begin_with(tokenizer, *special["bos"])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": text for name, (_, text) in special.items()},
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = str(metadata["tokenizer.chat_template"])
    return TokenizerParts(tokenizer, config)


def special_tokens(metadata: Metadata) -> dict[str, tuple[int, str]]:
    """Return number and text of BOS, EOS, the unknown and the padding token, as far as the file names them."""
    tokens, special = _texts(metadata, "tokenizer.ggml.tokens"), {}
    for ours, theirs in _SPECIAL.items():
        number = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(tokens):
            raise GatewiseError(f"its {theirs} token is {shown(number)}; expected one of {len(tokens):,} tokens.")
        special[ours] = number, tokens[number]
    return special


def _texts(metadata: Metadata, key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise GatewiseError(f"{key} is {shown(value)}; expected a list of texts.")
    return value


def _vocabulary(metadata: Metadata) -> tuple[dict[str, int], Any]:
    """Tokens by text, and their types."""
    tokens, kinds = _texts(metadata, "tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    longest = max(map(len, tokens), default=0)
    if longest > _LONGEST_TOKEN:  # there are as many ways to cut a token as it has characters, each as long
        raise GatewiseError(f"it has a token of {longest:,} characters; tokens have at most {_LONGEST_TOKEN:,}.")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if not isinstance(kinds, np.ndarray) or not len(kinds) == len(tokens) == len(vocabulary):
        raise GatewiseError("its vocabulary is not whole: tokens are there twice, or their types are missing.")
    return vocabulary, kinds


def _byte_level(metadata: Metadata) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rule = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in _CUTS:
        raise GatewiseError(f"its tokenizer cuts text by the rule {shown(rule)}; known are {', '.join(_CUTS)}.")
    vocabulary, kinds = _vocabulary(metadata)
    merges = [tuple(merge.split(" ")) for merge in _texts(metadata, "tokenizer.ggml.merges")]
    if not all(len(merge) == 2 and {*merge, "".join(merge)} <= vocabulary.keys() for merge in merges):
        raise GatewiseError("its vocabulary is not whole: it has merges of tokens that it does not have.")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    cut = _CUTS[rule]
    first = [] if cut is None else [pre_tokenizers.Split(Regex(cut), behavior="isolated")]
    if rule in _SINGLE_DIGITS:
        first = [pre_tokenizers.Digits(individual_digits=True)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, byte_level])
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, vocabulary, kinds)
    return tokenizer


def _sentence_pieces(metadata: Metadata) -> Tokenizer:
    """BPE over words that begin with ▁ instead of a space; what is not in the vocabulary is spelled in bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary, kinds = _vocabulary(metadata)
    merges = _merges_by_score(metadata, vocabulary, kinds)
    unknown = special_tokens(metadata).get("unk", (0, None))[1]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    _add_whole_tokens(tokenizer, vocabulary, kinds)
    return tokenizer


def _merges_by_score(metadata: Metadata, vocabulary: Mapping[str, int], kinds: Any) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours whose union has the best score: every way to cut a token is a merge."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary):
        raise GatewiseError("its vocabulary is not whole: tokens have no scores.")
    merges = []
    for token, number in vocabulary.items():
        if kinds[number] != _NORMAL:
            continue
        for at in range(1, len(token)):
            if token[:at] in vocabulary and token[at:] in vocabulary:
                merges.append((-float(scores[number]), number, (token[:at], token[at:])))
    return [cut for _, _, cut in sorted(merges)]  # the best score first


def _add_whole_tokens(tokenizer: Tokenizer, vocabulary: Mapping[str, int], kinds: Any) -> None:
    """Tokens that text is searched for before it is cut: control tokens, and those that the makers asked for."""
    from tokenizers import AddedToken

    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        tokens = [token for token, number in vocabulary.items() if kinds[number] == kind]
        added = [AddedToken(token, normalized=False, special=special) for token in tokens]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _adds_bos(metadata: Metadata) -> bool:
    """What the file says, and llama.cpp's defaults where it says nothing."""
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    usual = kind == "llama" or _CUTS.get(rule) == _LLAMA3
    return bool(metadata.get("tokenizer.ggml.add_bos_token", usual))


def _begin_with(tokenizer: Tokenizer, number: int, text: str) -> None:
    from tokenizers import processors

    # In a template `$A` and `$B` stand for texts: one would be there twice, the other stops the process.
    begins: list[int] = []
    if not text.startswith("$"):
        with suppress(ValueError):  # another token that reads like part of a template, such as `a:1`
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[text, "$A"], pair=[text, "$A", "$B:1"], special_tokens=[(text, number)]
            )
            begins = tokenizer.encode("", add_special_tokens=True).ids
    if begins != [number]:
        raise GatewiseError(f"its BOS token is {shown(text)}, which cannot begin a text.")
