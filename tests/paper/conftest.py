"""A model of GPT-2 small's shape with random weights and its own tokenizer, in a folder as a user would bring it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gatewise.tasks import gt, ioi, sa


@pytest.fixture(scope="session")
def random_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 layers of 12 narrow heads: the published roles apply, and nothing else does."""
    folder = tmp_path_factory.mktemp("models") / "random-gpt2"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    lists = [word for module in (ioi, gt, sa) for value in vars(module).values() for word in _words(value)]
    trainer = trainers.BpeTrainer(
        vocab_size=4_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator([f"a {word} {word}" for word in lists], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    size = tokenizer.get_vocab_size()
    config = GPT2Config(
        vocab_size=size, n_embd=48, n_layer=12, n_head=12, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # so that every component matters
    model.save_pretrained(folder)
    return folder


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return value.replace("{", " ").replace("}", " ").split()
    return [word for item in value for word in _words(item)] if isinstance(value, tuple) else []


@pytest.fixture(scope="session")
def answers_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty questions in the columns of PKU-SafeRLHF, all of them harmless in truth."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    colours = ("red", "tan", "sky", "ash", "fog")
    rows = [
        {
            "prompt": f"What is {colour} {i}?",
            "response_0": "Sure, here",
            "response_1": "No, I will not" if i % 2 else "It is so",
            "is_response_0_safe": not i % 2,
            "is_response_1_safe": True,
        }
        for i, colour in enumerate(colours * 4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
