"""Hugging Face models with small random configurations give eager's outputs, losses and gradients.

Most run with captured graphs executed by torch, which tests capture; GPT-2 and Llama run through the whole compiler.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile
from tests.capture.support import capture

transformers = pytest.importorskip("transformers")

DECODER = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
           "max_position_embeddings": 32}
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 32, "projection_dim": 16}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
          "patch_size": 8}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model: its class, and how to make its configuration and inputs."""

    model: str
    config: Callable[[], Any]
    inputs: Callable[[], dict[str, torch.Tensor]]


def tokens(rows: int = 2, columns: int = 8) -> torch.Tensor:
    return torch.randint(1, 64, (rows, columns))


def language_inputs() -> dict[str, torch.Tensor]:
    ids = tokens()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def image_inputs() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def whisper_config() -> Any:
    return transformers.WhisperConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2)


CASES = {
    "gpt2": Case("GPT2LMHeadModel", lambda: transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2,
                                                                    n_head=4, bos_token_id=1, eos_token_id=2),
                 language_inputs),
    "llama": Case("LlamaForCausalLM", lambda: transformers.LlamaConfig(**DECODER, num_key_value_heads=2), language_inputs),
    "mistral": Case("MistralForCausalLM", lambda: transformers.MistralConfig(
        **DECODER, num_key_value_heads=2, sliding_window=4), language_inputs),
    "qwen2": Case("Qwen2ForCausalLM", lambda: transformers.Qwen2Config(**DECODER, num_key_value_heads=2), language_inputs),
    "bert": Case("BertForMaskedLM", lambda: transformers.BertConfig(**DECODER), language_inputs),
    "t5": Case("T5ForConditionalGeneration", lambda: transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
        lambda: {"input_ids": tokens(), "labels": tokens(columns=6)}),
    "vit": Case("ViTForImageClassification", lambda: transformers.ViTConfig(**VISION), image_inputs),
    "whisper": Case("WhisperForConditionalGeneration", whisper_config,
                    lambda: {"input_features": torch.randn(2, 8, 32), "labels": tokens(columns=6)}),
    "clip": Case("CLIPModel", lambda: transformers.CLIPConfig(text_config=dict(TEXT), vision_config=dict(VISION),
                                                              projection_dim=16),
                 lambda: {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16),
                          "attention_mask": torch.ones(2, 8, dtype=torch.long)}),
}


def build(case: Case) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model without dropout, and inputs."""
    torch.manual_seed(0)
    model = getattr(transformers, case.model)(case.config()).eval()
    return model, case.inputs()


def tensors_of(output: Any) -> dict[str, torch.Tensor]:
    """The tensors directly inside a model's output."""
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def assert_same_outputs(actual: Any, expected: Any) -> None:
    """The same type of output with close tensors."""
    assert type(actual) is type(expected)
    assert list(actual) == list(expected)
    for name, value in tensors_of(expected).items():
        torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def objective(output: Any) -> torch.Tensor:
    """What a training step minimises."""
    loss = output.get("loss")
    return loss if loss is not None else sum(value.float().square().mean() for value in tensors_of(output).values())


def check(case: Case, compile: Callable[[Any], Any], rtol: float = 1e-4) -> Any:
    """Forward and gradients of the compiled model are eager's; returns the compiled model."""
    model, inputs = build(case)
    reference = copy.deepcopy(model)
    compiled = compile(model)
    with torch.no_grad():
        assert_same_outputs(compiled(**inputs), reference(**inputs))
    actual, expected = compiled(**inputs), reference(**inputs)
    assert_same_outputs(actual, expected)
    objective(actual).backward()
    objective(expected).backward()
    for (name, parameter), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), name
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=rtol, atol=1e-5,
                                       msg=lambda text, name=name: f"{name}: {text}")
    return compiled


@pytest.mark.parametrize("name", CASES)
def test_captured_models_are_eager_models(name: str) -> None:
    case = CASES[name]
    compiled = check(case, capture)
    records = compiled.records
    assert not records.fallbacks
    assert not records.graph_breaks
    assert len(records.graphs) == 2, "one capture under no_grad, one with gradients"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_compiled_language_models_are_eager_models(name: str) -> None:
    check(CASES[name], minicompile.compile, rtol=1e-3)
