"""TOSA specifications under the path that ExecuTorch scripts import them from."""

from tosaic.core.specification import TosaSpecification

__all__ = ["TosaSpecification"]
