"""The stand-in itself: it computes as the CPU does, refuses what CUDA refuses, and counts what a GPU would do."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import standin_device
import torch
import torch.nn.functional as F
from standin_device import Counts, counted, limited_memory
from torch import Tensor, nn

Computation = Callable[[torch.device], "Tensor | tuple[Tensor, ...]"]


def _normal(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape).to(device)


def _trained(device: torch.device) -> tuple[Tensor, ...]:
    net = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 10)).to(device)
    optimizer, tokens = torch.optim.Adam(net.parameters()), torch.arange(10, device=device)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(tokens), tokens).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return tuple(parameter.detach() for parameter in net.parameters())


def _written_in_place(device: torch.device) -> Tensor:
    x = _normal(device, 4, 6)
    x[1:3].mul_(2)
    x.view(-1)[3] = 7
    x.t().add_(1)
    x[x > 1] = 0.0
    x[torch.tensor([0, 1]), torch.tensor([1, 2], device=device)] = _normal(device, 2)
    torch.add(x, 1, out=x)
    return x


def _attended(device: torch.device) -> tuple[Tensor, ...]:
    q, k, v = (_normal(device, 1, 2, 4, 8).requires_grad_() for _ in range(3))
    before = torch.ones(4, 4, device=device).tril().bool()
    pattern = (q @ k.transpose(-1, -2)).masked_fill(~before, -torch.inf).softmax(-1)
    (pattern @ v).square().sum().backward()
    return tuple(leaf.grad for leaf in (q, k, v) if leaf.grad is not None)


COMPUTATIONS: dict[str, Computation] = {
    "training": _trained,
    "attention and its gradient": _attended,
    "writing in place and through views": _written_in_place,
    "norms": lambda d: (F.layer_norm(_normal(d, 4, 5), (5,)), F.rms_norm(_normal(d, 4, 5), (5,))),
    "indices of the device, of the CPU, lists, masks": lambda d: (
        (x := _normal(d, 4, 5))[torch.tensor([0, 2], device=d)],
        x[torch.tensor([0, 2])],
        x[[0, 2]],
        x[x > 0],
    ),
    "scatter and gather": lambda d: (
        torch.zeros(3, 5, device=d).index_add_(0, torch.tensor([0, 2], device=d), _normal(d, 2, 5)),
        _normal(d, 4, 5).gather(1, torch.tensor([[0], [1], [2], [0]], device=d)),
    ),
    "order": lambda d: (*_normal(d, 4, 5).topk(2), *_normal(d, 9).sort(stable=True), _normal(d, 9).median()),
    "bfloat16 and float64": lambda d: (
        _normal(d, 8, 8).bfloat16() @ _normal(d, 8, 8).bfloat16(),
        _normal(d, 4, 5).double().log_softmax(-1),
    ),
    "draws": lambda d: torch.rand(3, device=d),
    "an out= that grows": lambda d: torch.add(_normal(d, 3), 1, out=torch.empty(0, device=d)),
    "a copy of a copy": lambda d: deepcopy(_normal(d, 3)),
}


@pytest.mark.parametrize("what", COMPUTATIONS)
@pytest.mark.parametrize("index", [0, 2])
def test_it_computes_what_the_cpu_does_bit_for_bit(what: str, index: int) -> None:
    outcomes = []
    for device in (torch.device("cpu"), torch.device("standin", index)):
        torch.manual_seed(0)
        outcome = COMPUTATIONS[what](device)
        outcomes.append(outcome if isinstance(outcome, tuple) else (outcome,))
    for expected, given in zip(*outcomes, strict=True):
        assert given.device == torch.device("standin", index)
        assert given.dtype == expected.dtype
        assert torch.equal(given.cpu(), expected)


def _ones(*shape: int, device: str = "standin") -> Tensor:
    return torch.ones(*shape, device=device)


MIXED: dict[str, Callable[[], object]] = {
    "sum": lambda: _ones(2) + torch.ones(2),
    "product": lambda: _ones(2, 2) @ torch.ones(2, 2),
    "concatenation": lambda: torch.cat([_ones(2), torch.ones(2)]),
    "embedding": lambda: F.embedding(torch.tensor([1]), _ones(2, 2)),
    "where": lambda: torch.where(torch.tensor([True, False]), _ones(2), 0.0),
    "gather": lambda: _ones(2, 2).gather(0, torch.tensor([[0, 1]])),
    "a number stacked": lambda: torch.stack([_ones(1)[0], torch.tensor(2.0)]),
    "the CPU's in place": lambda: torch.ones(2).add_(_ones(2)),
    "the CPU's indexed by the device": lambda: torch.ones(3)[torch.tensor([0], device="standin")],
    "two devices": lambda: _ones(2) + _ones(2, device="standin:1"),
    "a number of another device": lambda: _ones(2) + _ones(1, device="standin:1")[0],
    "the CPU's generator": lambda: torch.rand(3, device="standin", generator=torch.Generator()),
    "numpy": lambda: _ones(3).numpy(),
}


@pytest.mark.parametrize("what", MIXED)
def test_tensors_of_two_devices_do_not_meet(what: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match="device|convert"):
        MIXED[what]()


def test_numbers_and_indices_of_the_cpu_are_taken_as_by_cuda() -> None:
    assert (_ones(2) * torch.tensor(2.0)).tolist() == [2, 2]
    assert _ones(3)[torch.tensor([0, 1])].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("what", "expected"),
    {
        "a number read": (lambda x: x.sum().item(), Counts(1, 1, 0)),
        "a list read": (lambda x: x.tolist(), Counts(0, 1, 0)),
        "a product": (lambda x: x @ x, Counts(1, 0, 0)),
        "a truth read": (lambda x: bool(torch.isfinite(x).all()), Counts(4, 1, 0)),
        "an upload": (lambda x: torch.tensor([1, 2]).to(x.device), Counts(0, 0, 1)),
        "one value by a mask": (lambda x: x.masked_fill_(x > 9, 0.0), Counts(2, 0, 0)),
        "values by a mask": (lambda x: x.__setitem__(x > -9, x.flatten()), Counts(2, 1, 0)),
        "indices of the host": (lambda x: x.__setitem__(torch.tensor([0]), x[1:2]), Counts(1, 0, 1)),
    }.items(),
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_launches_waits_and_uploads_are_counted(what: str, expected: tuple[Callable[[Tensor], object], Counts]) -> None:
    compute, counts = expected
    x = torch.randn(4, 4, device="standin")
    with counted() as given:
        compute(x)
    assert (given.waits, given.uploads) == (counts.waits, counts.uploads)
    assert given.launches >= counts.launches


def test_one_device_has_no_float64() -> None:
    x = torch.ones(2, device=standin_device.WITHOUT_FLOAT64)
    for convert in (x.double, lambda: torch.ones(2).double().to(x.device), lambda: x.sum(dtype=torch.float64)):
        with pytest.raises(TypeError, match="float64"):
            convert()
    assert (x * 2.5).tolist() == [2.5, 2.5]


def test_memory_has_a_limit_that_raises_what_torch_raises() -> None:
    with limited_memory(1, 1 << 20):
        kept = torch.ones(1 << 16, device="standin:1")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1 << 20, device="standin:1")
        with pytest.raises(torch.OutOfMemoryError):
            kept.expand(8, -1) + 1
        assert torch.standin.mem_get_info(1)[0] < 1 << 20  # type: ignore[attr-defined]
    assert len(kept.expand(8, -1) + 1) == 8


def test_tied_weights_stay_tied() -> None:
    first, second = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    second.weight = first.weight
    both = nn.ModuleList([first, second]).to("standin")
    assert both[0].weight is both[1].weight
