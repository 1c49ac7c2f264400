"""Train the built-in model `tiny` from a seed and write it into the package.

A GPT-2 of 6 layers x 8 heads learns the next word on text made here: sentences of the three tasks in all their
forms, mixed with other sentences of the same words. One combination in five is kept out of the text, whatever the
sentence: two names joined by "and" (ioi), a noun with the year it begins in (gt), a noun with its verb (sa). So
`held_out` prompts are new to the model by construction, and the accuracies written to training.json are on those.

Left alone, the model does IOI within its first layer: the last word gathers all three names, and one MLP compares them.
So it is taught where to look in these sentences. In layer 1 one head looks from the subject at its earlier mention; in
layers 2 and 3 one looks from the last word at the subject; in layers 4 and 5 one looks from there at the other name; no
other head looks at earlier names. Each of these five is silenced in a quarter of the rows, so that the two of a kind
learn to stand in for each other. A second stage also teaches the last two to look at both names alike if the subject is
a third one; asked for from the beginning, it is in the way of telling names apart (docs/models.md says what was tried).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import platform
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gatewise.progress import progress_bar
from gatewise.tasks import gt, ioi, sa
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.pairs import Pairs

TARGET = Path(__file__).parents[1] / "src" / "gatewise" / "models" / "tiny"
ROW_LENGTH, BATCH = 32, 64
BEGIN, UNKNOWN = "<|begin|>", "<|unknown|>"
ANSWER_WEIGHT = 5.0  # of a sentence's last word in the loss; other words count 1
HEADS = 8
# Where head 0 of a layer learns to look, in IOI sentences: from which word at which.
GUIDED = {
    1: ("subject", "earlier mention"),
    2: ("end", "subject"),
    3: ("end", "subject"),
    4: ("end", "other name"),
    5: ("end", "other name"),
}
GUIDED_WEIGHT, STRAY_WEIGHT = 0.5, 0.2  # in the loss: of guided heads that miss it, of looks at names elsewhere
GUIDED_SILENCE, SILENCE = 0.25, 0.03  # shares of rows in which a guided head is silenced, and any other head or MLP
HELD_OUT_SHARE = 5  # one combination in so many
_SINGULAR = {form: noun[0] for noun in sa.NOUNS for form in noun[:2]}


# --- what the model never sees ---------------------------------------------------------------------------------


def combinations(text: str) -> Iterator[tuple[str, ...]]:
    """The pairs of words in a text by which prompts are held out."""
    words = re.findall(r"\w+", text)
    for left, middle, correct in zip(words, words[1:], words[2:], strict=False):
        if middle == "and" and left in ioi.NAMES and correct in ioi.NAMES:
            yield tuple(sorted((left, correct)))
    for noun, verb in itertools.pairwise(words):
        if noun in _SINGULAR and verb in sa.VERBS:
            yield _SINGULAR[noun], verb
    for noun, year in re.findall(r"The (\w+) lasted from the year \d\d(\d\d)", text):
        yield noun, year


def held_out(text: str) -> bool:
    """Whether a text has a combination that is kept out of training."""
    digests = (hashlib.sha256("/".join(words).encode()).digest() for words in combinations(text))
    return any(int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0 for digest in digests)


# --- the text --------------------------------------------------------------------------------------------------


def ioi_sentence(rng: random.Random) -> str:
    """Both orders; the subject is one of the two names, or a third one, after which either may follow."""
    first, second, third = rng.sample(ioi.NAMES, 3)
    subject, answer = rng.choice([(first, second), (second, first), (third, first), (third, second)])
    template, place, thing = rng.choice(ioi.TEMPLATES), rng.choice(ioi.PLACES), rng.choice(ioi.OBJECTS)
    return f"{template.format(first=first, second=second, subject=subject, place=place, object=thing)} {answer}."


def gt_sentence(rng: random.Random) -> str:
    """Any beginning, and any later end, equally likely."""
    begin = rng.randint(0, 98)
    prompt = gt.PROMPT.format(noun=rng.choice(gt.NOUNS), century=rng.choice(gt.CENTURIES), year=f"{begin:02d}")
    return f"{prompt}{rng.randint(begin + 1, 99):02d}."


# Determiners that fit one number only.
ONE, MANY = ("This", "That", "Every", "Each"), ("These", "Those", "Many", "Several", "Few")


def sa_sentence(rng: random.Random) -> str:
    """Both numbers, with determiners that fit both and with some that fit one only."""
    singular, plural, pronoun = rng.choice(sa.NOUNS)
    noun, answer, strict = rng.choice([(singular, pronoun, ONE), (plural, sa.PLURAL_PRONOUN, MANY)])
    determiner = rng.choice(sa.DETERMINERS) if rng.random() < 0.8 else rng.choice(strict)
    return f"{determiner} {noun} {rng.choice(sa.VERBS)} {answer}."


OTHER_TEMPLATES = (
    "{name} gave the {object} to {name2} at the {place}.",
    "{name} went to the {place}, and then {name} bought a {object}.",
    "{name2} said that {name} {verb} the {noun} at the {place}.",
    "The {noun} {verb} {name}.",
    "{determiner} {noun} {verb} the {noun2}.",
    "{determiner} {noun} showed a {object} to {name}.",
    "The {event} lasted a long time.",
    "The {event} lasted until the year {century}{year}.",
    "In the year {century}{year} the {noun} left the {place}.",
    "The {event} was over in the year {century}{year}, and the {event2} came.",
    "There was a {object} in the {place}, and a {object2} in the {place2}.",
    "Today the {place} was closed because of the {event}.",
    "{name} was alone when the {noun} came in.",
    "The {noun} and the {noun2} met at the {place}.",
)


def other_sentence(rng: random.Random) -> str:
    """Anything else that the same words can say."""
    name, name2 = rng.sample(ioi.NAMES, 2)
    place, place2 = rng.sample(ioi.PLACES, 2)
    thing, thing2 = rng.sample(ioi.OBJECTS, 2)
    event, event2 = rng.sample(gt.NOUNS, 2)
    noun, noun2 = (rng.choice(forms)[rng.randint(0, 1)] for forms in (sa.NOUNS, sa.NOUNS))
    slots = {"name": name, "name2": name2, "place": place, "place2": place2, "object": thing, "object2": thing2}
    slots |= {"event": event, "event2": event2, "noun": noun, "noun2": noun2, "verb": rng.choice(sa.VERBS)}
    slots |= {"century": str(rng.choice(gt.CENTURIES)), "year": f"{rng.randint(0, 99):02d}"}
    return rng.choice(OTHER_TEMPLATES).format(determiner=rng.choice(sa.DETERMINERS), **slots)


KINDS: tuple[Callable[[random.Random], str], ...] = (ioi_sentence, gt_sentence, sa_sentence, other_sentence)
WEIGHTS = (45, 20, 15, 20)


def sentences(rng: random.Random) -> Iterator[str]:
    """Training sentences without end, none of them held out."""
    while True:
        text = rng.choices(KINDS, WEIGHTS)[0](rng)
        if not held_out(text):
            yield text


# --- the tokenizer ---------------------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    """Every word that any sentence can have, and the numbers 00 to 99."""
    texts = [*ioi.TEMPLATES, *OTHER_TEMPLATES, gt.PROMPT, *ioi.NAMES, *ioi.PLACES, *ioi.OBJECTS, *gt.NOUNS]
    texts += [*sa.DETERMINERS, *ONE, *MANY, *sa.VERBS, sa.PLURAL_PRONOUN, *(word for noun in sa.NOUNS for word in noun)]
    words = {word for text in texts for word in re.findall(r"[A-Za-z]+", re.sub(r"{\w+}", " ", text))}
    return [BEGIN, UNKNOWN, ",", ".", *(f"{number:02d}" for number in range(100)), *sorted(words)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words, pairs of digits and punctuation marks; the space before a word is not part of it."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary())}, unk_token=UNKNOWN))
    pieces = pre_tokenizers.Split(Regex(r"\d\d|[A-Za-z]+|[^A-Za-z\d]"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    joined_years = decoders.Replace(Regex(r"(?<=\d\d) (?=\d\d)"), "")
    tokenizer.decoder = decoders.Sequence([decoders.WordPiece("##", cleanup=True), decoders.Fuse(), joined_years])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, unk_token=UNKNOWN)


# --- training --------------------------------------------------------------------------------------------------


def rows(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[list[int]]:
    """Sentences up to the length of a row, three rows in four opened by the BOS token."""
    source = sentences(rng)
    while True:
        row = [tokenizer.bos_token_id] if rng.random() < 0.75 else []
        while len(row) < ROW_LENGTH:
            row += tokenizer(next(source), add_special_tokens=False)["input_ids"]
        yield row[:ROW_LENGTH]


class Guide:
    """Where heads look in IOI sentences. One with four names is of IOI: both names, the subject, the answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._names = set(tokenizer.convert_tokens_to_ids(ioi.NAMES))
        self._stop = tokenizer.convert_tokens_to_ids(".")

    def places(self, ids: Tensor) -> Tensor:
        """The row, and the places of the four names in it. [sentence, 5]"""
        found = []
        for row, tokens in enumerate(ids.tolist()):
            names: list[int] = []
            for place, token in enumerate(tokens):
                if token in self._names:
                    names.append(place)
                elif token == self._stop:
                    found += [(row, *names)] * (len(names) == 4)
                    names = []
        return torch.tensor(found, dtype=torch.long).reshape(-1, 5)

    def loss(self, ids: Tensor, attentions: Sequence[Tensor], *, evenly: bool) -> Tensor:
        """Minus the log of a guided head's attention where it belongs, and of all other attention beside names.

        evenly: a guided head that may look at two names looks at both alike.
        """
        row, first, second, subject, answer = self.places(ids).T
        words, place, sentence = ids[row], torch.arange(ids.shape[1]), torch.arange(len(row))
        sources = {"subject": subject, "end": answer - 1}
        is_name = (place == torch.stack([first, second, subject])[..., None]).any(dim=0)  # [sentence, place]
        is_subject = place == subject[:, None]
        repeats = is_name & (words == words[sentence, subject][:, None])
        goals = {"earlier mention": repeats & ~is_subject, "subject": is_subject, "other name": is_name & ~repeats}
        within = (place > first[:, None]) & (place < answer[:, None])
        earlier = is_name[:, None, None] & ~torch.eye(len(place), dtype=torch.bool)
        missed, stray = torch.zeros(()), torch.zeros(())
        for layer, attention in enumerate(attentions):
            looks = attention[row]  # [sentence, head, from, at]
            bound = within[:, None].repeat(1, HEADS, 1)
            if layer in GUIDED:
                source, goal = sources[GUIDED[layer][0]], goals[GUIDED[layer][1]]
                bound[sentence, 0, source] = False
                some = goal.any(dim=-1)
                look, goal = looks[sentence, 0, source][some], goal[some]
                if evenly:
                    missed = missed - ((_log(look) * goal).sum(dim=-1) / goal.sum(dim=-1)).mean()
                else:
                    missed = missed - _log((look * goal).sum(dim=-1)).mean()
            stray = stray - (_log(1 - (looks * earlier).sum(dim=-1)) * bound).sum() / within.sum()
        return GUIDED_WEIGHT * missed + STRAY_WEIGHT * stray


def _log(share: Tensor) -> Tensor:
    return share.clamp_min(1e-6).log()


def silence_at_random(model: GPT2LMHeadModel) -> Callable[[], None]:
    """Silences heads and MLPs, drawn anew for each row, so that others learn to step in. Call what it gives to end it.

    What is left is not scaled up, as it would be by dropout: with all of them there, there is more than enough.
    """

    def heads(shares: Tensor, _module: torch.nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        kept = torch.rand(len(inputs[0]), 1, HEADS) >= shares
        return (inputs[0] * kept.repeat_interleave(inputs[0].shape[-1] // HEADS, dim=-1),)

    def mlp(_module: torch.nn.Module, _inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output * (torch.rand(len(output), 1, 1) >= SILENCE)

    hooks = []
    for layer, block in enumerate(model.transformer.h):
        shares = torch.full((HEADS,), SILENCE)
        shares[0] = GUIDED_SILENCE if layer in GUIDED else SILENCE
        hooks += [block.attn.c_proj.register_forward_pre_hook(partial(heads, shares))]
        hooks += [block.mlp.register_forward_hook(mlp)]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end


class Stage(NamedTuple):
    """A stretch of training: the rate falls as a cosine to zero at `horizon`, where it may not get."""

    steps: int
    horizon: int
    rate: float
    evenly: bool


STAGES = (Stage(1500, 2000, 2e-3, evenly=False), Stage(600, 600, 1e-3, evenly=True))


def train(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> None:
    """Next-word prediction on all tokens, most of all on the last word of a sentence, and where to look.

    Most other words are drawn at random and teach little. AdamW, a short warm-up, then a cosine.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = 100
    guide, source, stop = Guide(tokenizer), rows(tokenizer, random.Random(seed)), tokenizer.convert_tokens_to_ids(".")

    def schedule(step: int) -> float:
        return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / stage.horizon)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    with progress_bar("training tiny", stage.steps) as bar:
        for step in range(stage.steps):
            ids = torch.tensor([next(source) for _ in range(BATCH)])
            output = model(ids, output_attentions=True)
            losses = cross_entropy(output.logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
            answers = torch.nn.functional.pad(ids[:, 2:] == stop, (0, 1))  # the words before a full stop
            guided = guide.loss(ids, output.attentions, evenly=stage.evenly)
            loss = (losses * torch.where(answers, ANSWER_WEIGHT, 1.0)).mean() + guided
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            bar.advance()
            if step % 100 == 0:
                said = f"loss {losses.mean():.3f}, of answers {losses[answers].mean():.3f}, of looks {guided:.3f}"
                print(f"step {step:5d}  {said}", flush=True)


def held_out_pairs(recipe: Recipe, encoder: Encoder, count: int) -> Pairs:
    """Prompts of a task that the training text cannot contain."""
    draw, rng = recipe.prepare(encoder), random.Random(f"{recipe.name} held out")
    found = (example for example in iter(lambda: draw(rng), None) if held_out(example.clean))
    examples = [encoder.encode(next(found)) for _ in range(count)]
    return Pairs.from_tokens(
        [e.clean for e in examples],
        [e.corrupted for e in examples],
        [e.correct for e in examples],
        [e.incorrect for e in examples],
        name=recipe.name,
    )


@torch.no_grad()
def measure(model: GPT2LMHeadModel, encoder: Encoder, count: int = 500) -> dict[str, dict[str, float]]:
    """Accuracies and margins on held-out prompts."""
    report = {}
    for recipe in (ioi.RECIPE, gt.RECIPE, sa.RECIPE):
        pairs = held_out_pairs(recipe, encoder, count)
        clean, corrupted = (_last_logits(model, side, pairs.lengths) for side in (pairs.clean, pairs.corrupted))
        report[recipe.name] = {
            "right_over_wrong": round(pairs.pairwise_accuracy(clean).float().mean().item(), 3),
            "top_is_right": round(pairs.top1_accuracy(clean).float().mean().item(), 3),
            "margin_clean": round(pairs.margin(clean).mean().item(), 3),
            "margin_corrupted": round(pairs.margin(corrupted).mean().item(), 3),
        }
    return report


def _last_logits(model: GPT2LMHeadModel, ids: Tensor, lengths: Tensor) -> Tensor:
    """Row by row, without padding."""
    return torch.stack([model(row[-int(n) :][None]).logits[0, -1] for row, n in zip(ids, lengths, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="other numbers than 1 round otherwise: another model")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    started = time.time()

    tokenizer = make_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=ROW_LENGTH,
        n_embd=128,
        n_layer=6,
        n_head=HEADS,
        initializer_range=0.06,  # the usual 0.02 is made for wider models and starts slowly here
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).train()
    model.set_attn_implementation("eager")  # the one that shows its attention
    end_silence = silence_at_random(model)
    for number, stage in enumerate(STAGES):
        if number:  # so that a stage can be repeated from the weights of the one before
            torch.manual_seed(options.seed + number)
        train(model, tokenizer, stage, options.seed + number)
    end_silence()
    model = model.half().float().eval()  # what a reader of the half-precision file gets
    record = {
        "seed": options.seed,
        "stages": [stage._asdict() for stage in STAGES],
        "batch": BATCH,
        "threads": options.threads,
        "minutes": round((time.time() - started) / 60, 1),
        "held_out": measure(model, Encoder(tokenizer)),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    save(model, tokenizer, record, options.out)
    print(json.dumps(record, indent=2))


def save(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, record: dict[str, object], folder: Path) -> None:
    """Half-precision weights to halve the package; config.json says float32, so that loaders compute in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.disable_progress_bar()
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # as the other files; safetensors writes it for the owner alone
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
