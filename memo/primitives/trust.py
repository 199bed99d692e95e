"""The two axes of trust: where something comes from, and what it could do to a model that perceives it."""

from __future__ import annotations

from typing import Literal

TrustTier = Literal["first-party", "third-party-public", "third-party-private"]
ModalityHazard = Literal["inert", "extractable-instructions", "opaque-perceptual"]
MediaKind = Literal["image", "audio", "video", "document"]
