"""Chooses the role of a runner by its spec."""

from __future__ import annotations

from bus.models.gguf import DTYPE
from runner.roles.collective_test import CollectiveTestRole
from runner.roles.embedding import EmbeddingRole
from runner.roles.follower import FollowerRole
from runner.roles.lead import LeadRole
from runner.roles.llama import LlamaRole
from runner.roles.quantize import QuantizeRole
from runner.roles.role import Role, RoleParts


def role_for(parts: RoleParts) -> Role:
    """Return the role that the spec describes. Raises CannotForm."""
    spec = parts.spec
    if spec.test is not None:
        return CollectiveTestRole(parts, spec.test)
    if spec.quantizes is not None:
        return QuantizeRole(parts)
    if spec.makes == "embedding":
        return EmbeddingRole(parts)
    if spec.dtype == DTYPE:
        return LlamaRole(parts)
    return LeadRole(parts) if spec.rank == 0 else FollowerRole(parts)
