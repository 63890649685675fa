"""The learned order: networks that score positions, and the artefact that carries one."""

from unmask.policies.policy import OrderPolicy, PolicyConfig

__all__ = ["OrderPolicy", "PolicyConfig"]
