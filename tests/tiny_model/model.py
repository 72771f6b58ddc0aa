# pyright: basic, reportMissingImports=false
"""The network itself: Qwen3's arithmetic, written for training on a CPU.

Pure. Parameter names are those of a Qwen3 checkpoint, so the saved file is what
any Qwen3 loader expects. Rows of a batch are padded on the right and attention is
causal, so padding needs no mask: what a row has to say lies before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 128


@dataclass(frozen=True)
class Shape:
    """The sizes of the bundled model; head counts divide by 4 so that it can be sharded."""

    vocab: int = 2048
    hidden: int = 192
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    inner: int = 384
    rope_theta: float = 100_000.0
    context: int = 4096
    eps: float = 1e-6

    def config(self, ids: dict[str, int]) -> dict[str, Any]:
        """The `config.json` of a Qwen3 checkpoint of this shape."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            "use_cache": True,
            "initializer_range": 0.02,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        }


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm in float32, back in the type of `x`."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight).to(x.dtype)


class Norm(nn.Module):
    """A weight and its root-mean-square norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.eps)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves rotated against each other."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention in blocks of plain matrix products: the CPU's fused backward is slower."""
    scaled = q * q.shape[3] ** -0.5
    ends = range(BLOCK, q.shape[2] + BLOCK, BLOCK)
    return torch.cat([_block(scaled, k, v, end) for end in ends], 2)


def _block(q: Tensor, k: Tensor, v: Tensor, end: int) -> Tensor:
    """The queries of the block that ends at `end`, looking at everything up to themselves."""
    q, k, v = q[:, :, end - BLOCK : end], k[:, :, :end], v[:, :, :end]
    rows, columns = q.shape[2], k.shape[2]
    ahead = torch.full((rows, columns), -1e4, dtype=q.dtype).triu(1 + columns - rows)
    return (q @ k.transpose(2, 3) + ahead).softmax(-1) @ v


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm = Norm(s.head_dim, s.eps)
        self.k_norm = Norm(s.head_dim, s.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        s = self.s
        q = self.q_norm(self.q_proj(x).view(rows, length, s.heads, s.head_dim))
        k = self.k_norm(self.k_proj(x).view(rows, length, s.kv_heads, s.head_dim))
        v = self.v_proj(x).view(rows, length, s.kv_heads, s.head_dim)
        q, k = turn(q, cos, sin).to(v.dtype), turn(k, cos, sin).to(v.dtype)
        share = s.heads // s.kv_heads
        k = k.repeat_interleave(share, 2).transpose(1, 2)
        v = v.repeat_interleave(share, 2).transpose(1, 2)
        y = attend(q.transpose(1, 2), k, v)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """The gated feed-forward half of a layer."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then feed-forward, each on a normed copy."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(s)
        self.mlp = Mlp(s)
        self.input_layernorm = Norm(s.hidden, s.eps)
        self.post_attention_layernorm = Norm(s.hidden, s.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers, last norm: what a checkpoint calls `model`."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = Norm(s.hidden, s.eps)


class Qwen3(nn.Module):
    """The whole model, its head tied to its embedding."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.model = Trunk(s)
        steps = torch.arange(0, s.head_dim, 2, dtype=torch.float32) / s.head_dim
        angle = torch.outer(torch.arange(s.context).float(), s.rope_theta**-steps)
        self.register_buffer("cos", angle.cos()[None, :, None], persistent=False)
        self.register_buffer("sin", angle.sin()[None, :, None], persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std *= (2 * s.layers) ** -0.5
                nn.init.normal_(p, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        """The last normed states, [rows, length, hidden]."""
        length = tokens.shape[1]
        cos, sin = self.cos[:, :length], self.sin[:, :length]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def loss(
        self, tokens: Tensor, targets: Tensor, weights: Tensor, taught: Taught | None = None
    ) -> Tensor:
        """The weighted *sum* of cross-entropies over all positions.

        With a teacher, half of what an old row learns is the teacher's distribution: learning
        without forgetting (Li and Hoiem, 2016).
        """
        counts = weights.flatten()
        heard = counts.nonzero().squeeze(1)
        logits = self.logits(tokens, heard)
        each = F.cross_entropy(logits, targets.flatten()[heard], reduction="none")
        if taught is not None:
            share = 0.5 * taught.old[:, None].expand_as(weights).flatten()[heard]
            with torch.no_grad():
                wanted = taught.teacher.logits(tokens, heard).softmax(-1)
            soft = -(wanted * logits.log_softmax(-1)).sum(-1)
            each = (1 - share) * each + share * soft
        return (each * counts[heard]).sum()

    def logits(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The logits at these places of the flattened tokens, [places, vocabulary], float32."""
        x = self(tokens).flatten(0, 1)[places]
        return F.linear(x, self.model.embed_tokens.weight).float()


@dataclass(frozen=True)
class Taught:
    """What a distillation adds to a batch: the teacher, and the rows that it knows, [rows]."""

    teacher: Qwen3
    old: Tensor
