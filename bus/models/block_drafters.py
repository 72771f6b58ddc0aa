"""The checkpoint of a block drafter: a `config.json` and tensors in safetensors files.

Pure: the caller reads the files. A block drafter guesses a block of tokens at once. Its layers are
decoder layers of Qwen3 without a causal mask, by the names of Qwen3's checkpoints. The embedding
and the projection onto the vocabulary are those of its target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from bus.wire.errors import first_problem
from bus.wire.messages.wire import Message

CONFIG = "config.json"
KIND = "block"
Size = Annotated[int, Field(ge=1, le=1 << 16)]


class BlockShape(Message):
    """The `config.json` of a block drafter.

    It guesses up to `block_length` tokens in up to `steps` passes: each pass settles the next
    tokens, and the later ones see them. It attends to the last `window` positions of the row. With
    `reads_hidden` it sees the target's last hidden states (normed, as they enter the projection) at
    these positions and the tokens after them, else these tokens alone. `hidden_size` and
    `vocab_size` are those of its target.
    """

    drafter: Literal["block"]
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: int = Field(ge=1, le=16)
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: int = Field(ge=2, le=512, multiple_of=2)
    vocab_size: int = Field(ge=1, le=1 << 24)
    rms_norm_eps: float = Field(default=1e-6, gt=0, le=1e-2)
    rope_theta: float = Field(default=10_000.0, gt=1, le=1e9)
    block_length: int = Field(ge=1, le=32)
    steps: int = Field(default=1, ge=1, le=32)
    window: int = Field(ge=1, le=4096)
    reads_hidden: bool = True

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its name. A linear layer has (outputs, inputs)."""
        width, inner = self.hidden_size, self.intermediate_size
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embedding_norm.weight": (width,),
            "context_proj.weight": (width, width * (2 if self.reads_hidden else 1)),
            "token_proj.weight": (width, width),
            "mask": (width,),
            "norm.weight": (width,),
        }
        if self.reads_hidden:
            shapes["hidden_norm.weight"] = (width,)
        for number in range(self.num_hidden_layers):
            layer = {
                "input_layernorm.weight": (width,),
                "context_layernorm.weight": (width,),
                "self_attn.q_proj.weight": (queries, width),
                "self_attn.k_proj.weight": (keys, width),
                "self_attn.v_proj.weight": (keys, width),
                "self_attn.o_proj.weight": (width, queries),
                "self_attn.q_norm.weight": (self.head_dim,),
                "self_attn.k_norm.weight": (self.head_dim,),
                "post_attention_layernorm.weight": (width,),
                "mlp.gate_proj.weight": (inner, width),
                "mlp.up_proj.weight": (inner, width),
                "mlp.down_proj.weight": (width, inner),
            }
            shapes.update({f"layers.{number}.{name}": shape for name, shape in layer.items()})
        return shapes

    @property
    def context_bytes(self) -> int:
        """Return the bytes of the hidden states of one row that a drafter in 32 bits keeps. Up to
        twice the window waits before it is cut."""
        return 8 * self.window * self.hidden_size if self.reads_hidden else 0


def block_shape(config: Mapping[str, Any]) -> BlockShape | str:
    """Return the shape that a `config.json` describes, or why it describes none."""
    if config.get("drafter") != KIND:
        return f'{CONFIG} has no `"drafter": "{KIND}"`'
    try:
        shape = BlockShape.model_validate(dict(config))
    except ValidationError as error:
        return f"{CONFIG}: {first_problem(error)}"
    if shape.num_attention_heads % shape.num_key_value_heads:
        return f"{CONFIG}: num_attention_heads is not a multiple of num_key_value_heads"
    return shape


def name_problem(shape: BlockShape, names: Iterable[str]) -> str | None:
    """Return the first tensor that is missing or has no place; None if there is none."""
    wanted, given = shape.tensors(), set(names)
    if unknown := sorted(given - wanted.keys()):
        return f"the tensor {unknown[0]} has no place in it"
    missing = next((name for name in wanted if name not in given), None)
    return None if missing is None else f"its tensor {missing} is missing"


def tensor_problem(shape: BlockShape, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return what is wrong with tensors of these shapes; None if they are those of the drafter."""
    if (problem := name_problem(shape, shapes)) is not None:
        return problem
    for name, size in shape.tensors().items():
        if tuple(shapes[name]) != size:
            actual, right = list(shapes[name]), list(size)
            return f"its tensor {name} has the shape {actual}; {right} is required"
    return None
