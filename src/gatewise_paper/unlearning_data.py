"""What a model is to forget, and what it is to keep: pairs for the experiment `unlearning`.

*Harmful answers* (PKU-SafeRLHF, from a file or from Hugging Face `datasets`). The paper does not say how prompts are
paired nor what an accuracy is, so this is our reading:

- a question counts as harmful if it has an answer marked unsafe and one marked safe; as harmless if all are safe;
- clean is `Question: <harmful question>\\nAnswer:`, corrupted the same with a harmless question of equal token length;
- correct is the *first token* of the unsafe answer, incorrect the first token of the safe one; questions whose two
  answers begin with the same token say nothing and are left out. Correct means that the model still does what it is to
  forget.

*An IOI template* (where a preset has nothing else): IOI prompts of one template are to be forgotten, IOI prompts of all
other templates are to be kept. Nothing harmful, made in code, known to every model that knows IOI.

In both cases the tasks gt and sa are to be kept, too. Pairs are written to files that `gatewise.task` reads, in the
output folder, so that they can be looked at.
"""

from __future__ import annotations

import csv
import importlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError
from gatewise.files import write_atomically
from gatewise.tasks import Task, task
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.example import Example
from gatewise.tasks.ioi import RECIPE, TEMPLATES
from gatewise_paper.naming import task_name
from gatewise_paper.presets import FORGET, IOI_TEMPLATE, KEEP, SAFE_RLHF, Preset

if TYPE_CHECKING:
    from gatewise.models.model import Model

FILES = {FORGET: "forget.jsonl", KEEP: "retain-ioi.jsonl"}
_PROMPT = "Question: {}\nAnswer:"
_LONGEST = 64  # tokens of a prompt
_ANSWER_WORDS = 8  # more than enough for a first token
_FORGOTTEN = TEMPLATES[0]
_ONE_ROW = ("prompt", "response_0", "response_1", "is_response_0_safe", "is_response_1_safe")  # the dataset's own
_ROW_EACH = ("prompt", "response", "is_safe")
_COLUMNS = f"{', '.join(_ONE_ROW)} (the dataset's own), or {', '.join(_ROW_EACH)}"
_WAY_OUT = (
    f"Give {SAFE_RLHF} as a file, --unlearn FILE (.jsonl or .csv with the columns {_COLUMNS}), or install Hugging Face "
    f"datasets and have a network."
)


def check_data(preset: Preset) -> None:
    """Say at once if there is nothing to forget."""
    source = preset.forgetting.source
    if source == SAFE_RLHF:
        _datasets()
    elif source != IOI_TEMPLATE and not Path(source).is_file():
        raise GatewiseError(f"--unlearn {source}: there is no such file. {_WAY_OUT}")


def to_forget(preset: Preset) -> str:
    """What is to be forgotten, in words."""
    source = preset.forgetting.source
    if source == IOI_TEMPLATE:
        shown = _FORGOTTEN.format(first="A", second="B", subject="B", place="store", object="drink")
        return f"indirect objects in prompts of one template, “{shown}”"
    return f"the first token of unsafe answers ({source if source == SAFE_RLHF else Path(source).name})"


def to_keep(preset: Preset) -> dict[str, str]:
    """Tasks that are to be kept, with their titles."""
    titles = {KEEP: "IOI, other templates"} if preset.forgetting.source == IOI_TEMPLATE else {}
    return {**titles, **{name: task_name(name) for name in ("gt", "sa") if name in preset.tasks}}


def unlearning_task(name: str, preset: Preset, model: Model, folder: Path) -> Task:
    """Pairs to forget, or those of other IOI templates to keep. The same call gives the same pairs."""
    encoder = Encoder(model.tokenizer, None, getattr(model.hf.config, "max_position_embeddings", None))
    size, source = preset.search_pairs if name == FORGET else 1, preset.forgetting.source
    if source == IOI_TEMPLATE:
        examples = _ioi(encoder, size + preset.held_out, of_template=name == FORGET)
    else:
        answers = _download_answers() if source == SAFE_RLHF else read_answers(Path(source))
        examples = pair_answers(answers, encoder)
    path = folder / "unlearning" / FILES[name]
    _write(path, examples)
    return task(path, model, examples=size, test_examples=preset.held_out, seed=0, first_token=name == FORGET)


def read_answers(path: Path) -> dict[str, list[tuple[str, bool]]]:
    """Questions with their answers, each of them safe or not, from a .jsonl or .csv file."""
    if path.suffix.lower() not in (".jsonl", ".csv"):
        raise GatewiseError(f"{path}: expected a .jsonl or .csv file with the columns {_COLUMNS}.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream) if path.suffix.lower() == ".csv" else _json_lines(path, stream)
            return _by_question((f"{path}, row {i}", row) for i, row in enumerate(rows, start=1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GatewiseError(f"{path} cannot be read: {error}. {_WAY_OUT}") from error


def pair_answers(questions: Mapping[str, list[tuple[str, bool]]], encoder: Encoder) -> list[Example]:
    """Harmful questions with a harmless counterpart of the same length, each with a first token of both answers."""
    harmless: dict[int, list[str]] = {}
    harmful: list[tuple[str, str, str]] = []
    for question, answers in questions.items():
        unsafe, safe = ([text for text, is_safe in answers if is_safe == wanted] for wanted in (False, True))
        if unsafe and safe:
            harmful.append((question, unsafe[0], safe[0]))
        elif safe:
            length = len(encoder.tokens([_PROMPT.format(question)])[0])
            harmless.setdefault(length, []).append(question)
    examples: list[Example] = []
    for question, unsafe_answer, safe_answer in harmful:
        prompt = _PROMPT.format(question)
        counterparts = harmless.get(len(encoder.tokens([prompt])[0]), [])
        if not counterparts or len(encoder.tokens([prompt])[0]) > _LONGEST:
            continue
        counterpart = _PROMPT.format(counterparts[len(examples) % len(counterparts)])
        example = Example(prompt, counterpart, (_beginning(unsafe_answer),), (_beginning(safe_answer),))
        try:
            encoder.encode(example, first_token=True)
        except GatewiseError:  # both answers begin alike, or with what is not in the vocabulary
            continue
        examples.append(example)
    if len(examples) < 2:
        raise GatewiseError(
            f"of {len(questions)} questions {len(harmful)} have a safe and an unsafe answer, {len(examples)} of these "
            f"a harmless counterpart of equal length and answers that begin with different tokens; at least 2 are "
            f"needed. Give more rows, harmless questions (all answers safe) among them."
        )
    return examples


def _beginning(answer: str) -> str:
    return " " + " ".join(answer.split()[:_ANSWER_WORDS])


def _json_lines(path: Path, stream: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise GatewiseError(f"{path}, line {number}: not valid JSON ({error}). One object per line.") from error
        if not isinstance(row, dict):
            raise GatewiseError(f"{path}, line {number}: expected a JSON object, got a {type(row).__name__}.")
        yield row


def _by_question(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[tuple[str, bool]]]:
    questions: dict[str, list[tuple[str, bool]]] = {}
    for where, row in rows:
        if all(column in row for column in _ONE_ROW):
            answers = [(row[f"response_{i}"], row[f"is_response_{i}_safe"]) for i in (0, 1)]
        elif all(column in row for column in _ROW_EACH):
            answers = [(row["response"], row["is_safe"])]
        else:
            raise GatewiseError(f"{where}: has the columns {', '.join(map(str, row))}; expected {_COLUMNS}.")
        for text, safe in answers:
            if str(text or "").strip() and str(row["prompt"] or "").strip():
                questions.setdefault(str(row["prompt"]).strip(), []).append((str(text), _truth(where, safe)))
    return questions


def _truth(where: str, value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).strip().lower() not in words:
        raise GatewiseError(f"{where}: {value!r} says neither safe nor unsafe; expected true or false.")
    return words[str(value).strip().lower()]


def _datasets() -> Any:
    """Hugging Face datasets; an error if it is not installed."""
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise GatewiseError(
            f"unlearning needs the dataset {SAFE_RLHF}, and Hugging Face datasets is not installed. {_WAY_OUT}"
        ) from error


def _download_answers() -> dict[str, list[tuple[str, bool]]]:
    """The dataset's questions with their answers, as `read_answers` gives them."""
    datasets = _datasets()
    try:
        rows = datasets.load_dataset(SAFE_RLHF, split="train")
    except Exception as error:  # whatever the libraries of the day raise without a network
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise GatewiseError(f"{SAFE_RLHF} could not be loaded ({reason}). {_WAY_OUT}") from error
    return _by_question((f"{SAFE_RLHF}, row {i}", row) for i, row in enumerate(rows, start=1))


def _ioi(encoder: Encoder, count: int, *, of_template: bool) -> list[Example]:
    """Different IOI prompts of the template to forget, or of all others."""
    draw = RECIPE.prepare(encoder)
    rng = random.Random(f"unlearning/{of_template}")
    start = _FORGOTTEN.split("{")[0]
    examples: dict[str, Example] = {}  # by prompt
    while len(examples) < count:
        example = draw(rng)
        if example.clean.startswith(start) == of_template:
            examples[example.clean] = example
    return list(examples.values())


def _write(path: Path, examples: Iterable[Example]) -> None:
    keys = ("clean", "corrupted", "correct", "incorrect")
    lines = [json.dumps({key: getattr(example, key) for key in keys}, ensure_ascii=False) for example in examples]
    content = "".join(f"{line}\n" for line in lines).encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
