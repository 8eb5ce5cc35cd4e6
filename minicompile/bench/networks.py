"""Networks of Hugging Face and timm at real size, with random weights: the sections `hf` and `timm` of the benchmark.

A network is a row of a table: its configuration and what it is called with. The libraries are imported only when a row is
built. Nothing here measures anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Text:
    """Token ids; `target` adds ids for a decoder beside an encoder, `labels` what the loss is taken against."""

    batch: int
    length: int
    labels: str = "same"


@dataclasses.dataclass(frozen=True)
class Image:
    """Pixels and classes."""

    batch: int
    side: int = 224


@dataclasses.dataclass(frozen=True)
class Network:
    """A model class of `transformers` with the settings that make it the named size, and its input."""

    model: str
    config: str
    given: Text | Image
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def sized(width: int, hidden: int, layers: int, heads: int, keys: int, **more: Any) -> dict[str, Any]:
    """The settings of a decoder in the style of Llama."""
    return {
        "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "use_cache": False, **more,
    }  # fmt: skip


NETWORKS: dict[str, Network] = {
    "gpt2": Network("GPT2LMHeadModel", "GPT2Config", Text(8, 1024), {"use_cache": False}),
    "llama_1b": Network("LlamaForCausalLM", "LlamaConfig", Text(2, 2048), sized(2048, 8192, 16, 32, 8)),
    "mistral_8_layers": Network("MistralForCausalLM", "MistralConfig", Text(1, 2048), sized(4096, 14336, 8, 32, 8)),
    "qwen2_500m": Network("Qwen2ForCausalLM", "Qwen2Config", Text(4, 1024), sized(896, 4864, 24, 14, 2)),
    "gemma_8_layers": Network(
        "GemmaForCausalLM", "GemmaConfig", Text(2, 1024), sized(2048, 16384, 8, 8, 1, head_dim=256)
    ),
    "phi_1b": Network("PhiForCausalLM", "PhiConfig", Text(2, 1024), sized(2048, 8192, 24, 32, 32)),
    "pythia_160m": Network(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", Text(8, 1024),
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
         "use_cache": False},
    ),
    "opt_125m": Network("OPTForCausalLM", "OPTConfig", Text(8, 1024), {"use_cache": False}),
    "bert": Network("BertForMaskedLM", "BertConfig", Text(16, 512)),
    "distilbert": Network("DistilBertForMaskedLM", "DistilBertConfig", Text(32, 512)),
    "roberta": Network("RobertaForMaskedLM", "RobertaConfig", Text(16, 512), {"max_position_embeddings": 514}),
    "electra": Network(
        "ElectraForMaskedLM", "ElectraConfig", Text(16, 512),
        {"hidden_size": 768, "embedding_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    ),
    "albert": Network(
        "AlbertForMaskedLM", "AlbertConfig", Text(16, 512),
        {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    ),
    "t5": Network(
        "T5ForConditionalGeneration", "T5Config", Text(8, 512, "decoder"),
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "use_cache": False,
         "decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    "bart": Network(
        "BartForConditionalGeneration", "BartConfig", Text(8, 512, "decoder"),
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
         "encoder_attention_heads": 12, "decoder_attention_heads": 12, "use_cache": False},
    ),
    "whisper_small": Network(
        "WhisperForConditionalGeneration", "WhisperConfig", Text(8, 128, "audio"),
        {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 3072,
         "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12, "use_cache": False},
    ),
    "clip": Network("CLIPModel", "CLIPConfig", Text(64, 77, "clip")),
    "vit": Network("ViTForImageClassification", "ViTConfig", Image(64), {"num_labels": 1000}),
    "beit": Network("BeitForImageClassification", "BeitConfig", Image(64), {"num_labels": 1000}),
    "convnext": Network("ConvNextForImageClassification", "ConvNextConfig", Image(64), {"num_labels": 1000}),
    "swin": Network("SwinForImageClassification", "SwinConfig", Image(64), {"num_labels": 1000}),
    "segformer": Network("SegformerForImageClassification", "SegformerConfig", Image(64), {"num_labels": 1000}),
}  # fmt: skip

TIMM = (
    "resnet50", "convnext_tiny", "vit_base_patch16_224", "swin_tiny_patch4_window7_224", "efficientnet_b0",
    "mobilenetv3_large_100", "mixer_b16_224", "deit_small_patch16_224", "regnety_032", "densenet121", "resnext50_32x4d",
    "beit_base_patch16_224",
)  # fmt: skip
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "n_embd": 64,
    "n_layer": 2, "n_head": 4, "d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "dim": 64,
    "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "vocab_size": 300, "embedding_size": 64, "head_dim": 16,
}  # fmt: skip
"""What `--quick` cuts down, where a configuration has it."""


def hugging_face(name: str, device: str, quick: bool) -> tuple[torch.nn.Module, dict[str, Any], Callable[..., Any]]:
    """A network of the table, its keyword arguments, and the loss of its output."""
    import transformers  # optional, and slow to import

    network = NETWORKS[name]
    kind = getattr(transformers, network.config)
    config = kind(**network.settings)
    if quick:
        whole = kind()
        cut = {key: value for key, value in SMALL.items() if type(getattr(whole, key, None)) is int}
        cut = {key: value for key, value in cut.items() if key != "vocab_size" or name != "whisper_small"}
        cut |= {"num_key_value_heads": 2} if network.settings.get("num_key_value_heads", 0) > 1 else {}
        config = kind(**{**network.settings, **cut})
    with torch.device(device):  # a GPU draws billions of weights in a moment
        model = getattr(transformers, network.model)(config)
    return model, keywords(network, config, device, quick), lambda output: output.loss


def keywords(network: Network, config: Any, device: str, quick: bool) -> dict[str, Any]:
    """What a network is called with."""
    given = network.given
    batch = 2 if quick else given.batch

    def integers(high: int, *sizes: int) -> torch.Tensor:
        return torch.randint(3, high, sizes, device=device)

    if isinstance(given, Image):
        pixels = torch.randn(batch, 3, given.side, given.side, device=device)
        return {"pixel_values": pixels, "labels": integers(config.num_labels, batch)}
    length = min(given.length, 32) if quick else given.length
    if given.labels == "clip":
        text = integers(config.text_config.vocab_size - 1, batch, given.length)
        text[:, -1] = config.text_config.vocab_size - 1  # the end of the text, where CLIP reads its summary
        side = config.vision_config.image_size
        return {"input_ids": text, "pixel_values": torch.randn(batch, 3, side, side, device=device), "return_loss": True}
    ids = integers(config.vocab_size, batch, length)
    if given.labels == "audio":
        sound = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, device=device)
        return {"input_features": sound, "labels": ids}
    return {"input_ids": ids, "labels": ids if given.labels == "same" else integers(config.vocab_size, batch, length)}


def timm_network(name: str, device: str, quick: bool) -> tuple[torch.nn.Module, tuple[torch.Tensor], Callable[..., Any]]:
    """A network of timm, its images, and the loss of its output."""
    import timm  # optional, and slow to import

    with torch.device(device):
        model = timm.create_model(name, pretrained=False, num_classes=1000)
    batch = 2 if quick else 64
    classes = torch.randint(0, 1000, (batch,), device=device)
    return model, (torch.randn(batch, 3, 224, 224, device=device),), lambda output: F.cross_entropy(output, classes)
