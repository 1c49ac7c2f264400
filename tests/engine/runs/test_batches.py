"""Work keeps the memory budget: what is split by an estimate takes, by count, no more than was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from gatewise.compute import Compute, format_bytes, parse_bytes
from gatewise.engine.attribution import Attribution
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.masked import MaskedEngine
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.runs import counting
from gatewise.engine.runs.batches import bytes_needed
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods import Acdc, discover
from gatewise.models.config import empty_model
from gatewise.models.model import Model
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

VOCABULARY = 128
MOST = 1.2  # times the budget
LENGTHS = [(32, 32), (500, 500), (2_000, 2_000), (4_000, 20)]  # tokens, and how many differ


def empty_llama(heads: int = 4) -> Model:
    """On the meta device, where code runs as it always does and takes no memory."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    return replace(adapt(empty_model(config.to_dict(), "empty"), name="empty"), planned_for="cpu")


def zeros(examples: int, tokens: int, different: int) -> Pairs:
    clean = torch.zeros(examples, tokens, dtype=torch.long)
    corrupted = clean.clone()
    corrupted[:, -different:] = 1
    return Pairs.from_tokens(clean, corrupted, [1] * examples, [2] * examples)


def attribute(setting: Setting) -> None:
    Attribution(setting, setting.batches(gradient=True)[0]).directions(("ns", "dn"))


def integrate(setting: Setting) -> None:
    Attribution(setting, setting.batches(gradient=True)[0]).integrated(2)


def train_one_mask(setting: Setting) -> None:
    on = setting.intervention(setting.batches(gradient=True)[0], keep=False)
    mask = torch.full((setting.graph.n_edges,), 0.5, device="meta")
    DenseEngine(setting.model, on).gradient(setting.graph.matrix(mask), lambda logits: logits.square().mean())


def train_masks(setting: Setting) -> None:
    batch = setting.batches(gradient=True)[0]
    on = setting.intervention(batch, keep=False)
    masks = setting.graph.matrix(torch.full((len(batch.pairs), setting.graph.n_edges), 0.5))
    MaskedEngine(setting.model, on).gradient(masks, lambda logits: logits.square().mean())


def run_circuits(setting: Setting) -> None:
    engine = SparseEngine(setting.model, setting.intervention(setting.batches()[0]))
    circuit = setting.graph.random_circuit(setting.graph.n_edges // 3, seed=0)
    engine.logits_of([circuit, ~circuit])


@pytest.mark.parametrize("work", [attribute, integrate, train_one_mask, train_masks, run_circuits])
@pytest.mark.parametrize(("tokens", "different"), LENGTHS)
def test_batches_keep_the_budget_whatever_the_length(
    work: Callable[[Setting], None], tokens: int, different: int
) -> None:
    model, gradient = empty_llama(), work is not run_circuits
    budget = int(2.5 * bytes_needed(model, 1, different, tokens, gradient=gradient))
    with Counter() as counter:
        work(Setting(model, zeros(8, tokens, different), memory=budget))
    assert counter.peak <= budget
    assert counter.peak >= 0.2 * budget  # the estimate is one, not a number that is always large enough


@pytest.mark.parametrize("heads", [2, 16])
def test_the_estimate_holds_for_few_and_for_many_heads(heads: int) -> None:
    model = empty_llama(heads)
    for work in (attribute, train_one_mask, run_circuits):
        budget = bytes_needed(model, 2, 600, gradient=work is not run_circuits)
        with Counter() as counter:
            work(Setting(model, zeros(2, 600, 600), memory=budget))
        assert counter.peak <= budget


def test_memory_grows_with_tokens_and_not_with_their_square() -> None:
    short, long = (bytes_needed(empty_llama(), 1, tokens, gradient=True) for tokens in (1_000, 4_000))
    assert short < long < 4.1 * short


def small_llama() -> Model:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    return adapt(LlamaForCausalLM(LlamaConfig(**_SMALL)), name="small")


_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def test_acdc_keeps_the_budget_and_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = small_llama(), zeros(2, 400, 400)
    monkeypatch.setattr(counting, "_is_meta", lambda value: isinstance(value, torch.Tensor))  # count real ones as well
    with pytest.raises(GatewiseError, match=r"ACDC with 2 examples of 400 tokens .* needs about \d+\.\d MiB"):
        discover(model, pairs, Acdc(), threshold=1e-4, compute=Compute(memory="8MB"))
    budget = "50MB"
    with Counter() as counter:
        discover(model, pairs, Acdc(), threshold=1e-4, compute=Compute(memory=budget))
    assert counter.peak <= MOST * parse_bytes(budget)


def test_runs_of_several_batches_are_kept_only_beside_the_work_on_one() -> None:
    model = small_llama()
    one = bytes_needed(model, 1, 100)
    for examples, kept in ((1, True), (2, False)):
        setting = Setting(model, zeros(examples, 100, 100), memory=one)
        for batch in setting.batches():
            assert (setting.runs(batch) is setting.runs(batch)) == kept
    roomy = Setting(model, zeros(2, 100, 100), memory=4 * one)
    assert roomy.runs(roomy.batches()[0]) is roomy.runs(roomy.batches()[0])


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    with pytest.raises(GatewiseError, match=r"needs about \d+\.\d [KM]iB, and the budget is 10\.0 KiB"):
        Setting(small_llama(), zeros(1, 100, 100), memory="10KB").batches()


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 bytes"), (1536, "1.5 KiB"), (40 << 20, "40.0 MiB"), (3 << 30, "3.0 GiB")]
)
def test_bytes_are_told_in_a_unit_of_which_there_is_one(count: int, text: str) -> None:
    assert format_bytes(count) == text
    assert "0.0" not in format_bytes(1)


@pytest.mark.parametrize("memory", ["1" * 400, "9" * 20 + "TB", "0", "-1", "1e400", "\u0661GB\x1b[2J"])
def test_memory_that_is_no_size_is_refused(memory: str) -> None:
    with pytest.raises(GatewiseError, match="memory is a positive number of bytes") as error:
        parse_bytes(memory)
    assert len(str(error.value)) < 250
