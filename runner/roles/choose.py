"""Talks to the roles: makes the role of a runner, by its spec."""

from __future__ import annotations

from runner.roles.collective_test import CollectiveTestRole
from runner.roles.command import CommandRole
from runner.roles.embedding import EmbeddingRole
from runner.roles.follower import FollowerRole
from runner.roles.lead import LeadRole
from runner.roles.llama import LlamaRole
from runner.roles.quantize import QuantizeRole
from runner.roles.role import Role, RoleParts


def role_for(parts: RoleParts) -> Role:
    """Make the role of a runner with this spec. Raises CannotForm."""
    spec = parts.spec
    if spec.test is not None:
        return CollectiveTestRole(parts, spec.test)
    if spec.quantizes is not None:
        return QuantizeRole(parts)
    for role in (EmbeddingRole, LlamaRole, CommandRole):
        if role.serves(spec):
            return role(parts)
    return LeadRole(parts) if spec.rank == 0 else FollowerRole(parts)
