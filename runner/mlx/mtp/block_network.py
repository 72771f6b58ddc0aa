# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn is partially typed)
"""Talks to MLX: the network of a block drafter.

The slots of a block attend to each other in both directions, and to the *context*: features of the
row's last positions. So one pass gives a guess for each slot (as in DFlash). A slot whose token is
settled shows this token to the others (masked diffusion).
"""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from bus.models.block_drafters import BlockShape


class Attention(nn.Module):
    """Attention of slots to context and slots, without a causal mask."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        width, self._size = shape.hidden_size, shape.head_dim
        self._heads, self._kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.q_proj = nn.Linear(width, self._heads * self._size, bias=False)
        self.k_proj = nn.Linear(width, self._kv_heads * self._size, bias=False)
        self.v_proj = nn.Linear(width, self._kv_heads * self._size, bias=False)
        self.o_proj = nn.Linear(self._heads * self._size, width, bias=False)
        self.q_norm = nn.RMSNorm(self._size, eps=shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self._size, eps=shape.rms_norm_eps)
        self._theta = shape.rope_theta

    def __call__(self, slots: mx.array, context: mx.array) -> mx.array:
        """Return (rows, slots, width) for normed slots, and for normed context (rows, positions,
        width) right before them."""
        rows, count, _ = slots.shape
        both = mx.concatenate([context, slots], axis=1)
        queries = self.q_norm(self.q_proj(slots).reshape(rows, count, self._heads, -1))
        keys = self.k_norm(self.k_proj(both).reshape(rows, both.shape[1], self._kv_heads, -1))
        values = self.v_proj(both).reshape(rows, both.shape[1], self._kv_heads, -1)
        out = mx.fast.scaled_dot_product_attention(
            self._turned(queries, context.shape[1]),
            self._turned(keys, 0),
            values.transpose(0, 2, 1, 3),
            scale=self._size**-0.5,
        )
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(rows, count, -1))

    def _turned(self, heads: mx.array, first: int) -> mx.array:
        """Return (rows, heads, tokens, size) with rotary positions from `first` on. Only distances
        matter, so the context begins at 0."""
        return mx.fast.rope(
            heads.transpose(0, 2, 1, 3),
            self._size,
            traditional=False,
            base=self._theta,
            scale=1.0,
            offset=first,
        )


class Mlp(nn.Module):
    """The gated net of a layer."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def __call__(self, slots: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(slots)) * self.up_proj(slots))


class Layer(nn.Module):
    """One layer; the context is the same in all of them."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.context_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = Mlp(shape)

    def __call__(self, slots: mx.array, context: mx.array) -> mx.array:
        normed = self.input_layernorm(slots)
        slots = slots + self.self_attn(normed, self.context_layernorm(context))
        return slots + self.mlp(self.post_attention_layernorm(slots))


class BlockNetwork(nn.Module):
    """Guesses hidden states of a block, for its target's projection onto the vocabulary."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.rms_norm_eps
        self._reads_hidden = shape.reads_hidden
        self.embedding_norm = nn.RMSNorm(width, eps=eps)
        if self._reads_hidden:
            self.hidden_norm = nn.RMSNorm(width, eps=eps)
        inputs = 2 * width if self._reads_hidden else width
        self.context_proj = nn.Linear(inputs, width, bias=False)
        self.token_proj = nn.Linear(width, width, bias=False)
        self.mask = mx.zeros((width,))
        self.layers = [Layer(shape) for _ in range(shape.num_hidden_layers)]
        self.norm = nn.RMSNorm(width, eps=eps)

    def context(self, embedded: mx.array, hidden: mx.array | None) -> mx.array:
        """Return features (rows, positions, width) of embedded tokens, the last one the row's last,
        and of the target's hidden states one position before each; None: it does not read them."""
        features = self.embedding_norm(embedded)
        if hidden is not None:
            features = mx.concatenate([self.hidden_norm(hidden), features], axis=-1)
        return self.context_proj(features)

    def __call__(self, context: mx.array, settled: mx.array | None, count: int) -> mx.array:
        """Return normed hidden states (rows, count, width) of a block after the context. The
        first slots have these embedded tokens (rows, fewer than count, width); None: no slot."""
        rows, _, width = context.shape
        parts = [] if settled is None else [self.token_proj(self.embedding_norm(settled))]
        masked = count - (0 if settled is None else settled.shape[1])
        parts.append(mx.broadcast_to(self.mask, (rows, masked, width)))
        slots = mx.concatenate(parts, axis=1) + context[:, -1:]
        for layer in self.layers:
            slots = layer(slots, context)
        return self.norm(slots)
