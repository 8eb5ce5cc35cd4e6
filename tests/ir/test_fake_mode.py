"""Fake tensors made from the attributes of the first one are what PyTorch's constructor gives."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from minicompile.capture.fake_results import RememberingFakeMode

CPU = torch.device("cpu")


@pytest.mark.parametrize("inference", (False, True))
def test_a_fake_tensor_is_like_one_of_the_constructor(inference: bool) -> None:
    mode = RememberingFakeMode()
    mode.fake(torch.empty(3, device="meta"), CPU)
    with torch.inference_mode(inference):
        memory = torch.empty(2, 6, dtype=torch.float16, device="meta")[:, 1::2]
        made, wanted = mode.fake(memory, CPU), FakeTensor(mode, memory, CPU)
    assert type(made) is FakeTensor
    assert vars(made) == vars(wanted)
    assert torch._C._dispatch_keys(made).raw_repr() == torch._C._dispatch_keys(wanted).raw_repr()
    assert made.is_inference() == wanted.is_inference() == inference
    for read in (torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor._is_view, lambda value: value.device):
        assert read(made) == read(wanted)


def test_what_one_fake_tensor_learns_no_other_one_knows() -> None:
    mode = RememberingFakeMode()
    first = mode.fake(torch.empty(3, device="meta"), CPU)
    first.constant, first.mark = torch.zeros(3), "mine"
    second = mode.fake(torch.empty(3, device="meta"), CPU)
    second.constant = torch.ones(3)
    third = mode.fake(torch.empty(3, device="meta"), CPU)
    assert third.constant is None and not hasattr(third, "mark") and not hasattr(second, "mark")


def test_every_mode_and_device_has_its_own() -> None:
    modes = RememberingFakeMode(), RememberingFakeMode()
    devices = CPU, torch.device("cuda", 0)
    for _ in range(2):
        for mode in modes:
            for device in devices:
                made = mode.fake(torch.empty(3, device="meta"), device)
                assert made.fake_mode is mode and made.device == device and made.fake_device == device
