"""Hugging Face models with `gradient_checkpointing_enable()` are one graph with eager's gradients, and save less."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import minicompile
from tests.capture.support import capture

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "max_position_embeddings": 16}


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).train()


def bert() -> Any:
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **quiet)).train()


def gradients(model: Any, call: Any) -> list[torch.Tensor | None]:
    """The gradients of a language model's loss."""
    tokens = torch.arange(14).reshape(2, 7)
    model.zero_grad()
    call(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", [llama, bert])
def test_checkpointed_layers_are_captured_whole(make: Any, reentrant: bool) -> None:
    model = make()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    expected = gradients(model, model)
    compiled = capture(model, fullgraph=True)
    torch.testing.assert_close(gradients(model, compiled), expected)
    (graph,) = compiled.records.graphs
    assert len({node.meta["checkpoint"] for node in graph.module.graph.nodes if "checkpoint" in node.meta}) == 2


def test_checkpointed_layers_save_less() -> None:
    plain, checkpointed = llama(), llama()
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    saved, found = [], []
    for model in (plain, checkpointed):
        compiled = minicompile.compile(copy.deepcopy(model).forward, fullgraph=True)
        found.append(gradients(compiled.__wrapped__.__self__, compiled))
        (graph,) = compiled.compiler.graphs
        saved.append(sum(one.num_bytes for one in graph.partitioned.saved_tensors))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert saved[1] < saved[0] / 2
