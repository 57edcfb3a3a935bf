"""The tables of a .tosa file, with the slots of their fields."""

from __future__ import annotations

from enum import IntEnum


class GraphTable(IntEnum):
    VERSION = 0
    REGIONS = 1


class VersionTable(IntEnum):
    MAJOR = 0
    MINOR = 1
    PATCH = 2
    DRAFT = 3


class RegionTable(IntEnum):
    NAME = 0
    BLOCKS = 1


class BlockTable(IntEnum):
    NAME = 0
    OPERATORS = 1
    TENSORS = 2
    INPUTS = 3
    OUTPUTS = 4
    SHAPES = 5


class TensorTable(IntEnum):
    NAME = 0
    SHAPE = 1
    TYPE = 2
    DATA = 3
    VARIABLE = 4
    IS_UNRANKED = 5
    VARIABLE_NAME = 6
    OFFSET = 7
    SIZE = 8
    SCALE_TYPE = 9
    BLOCK_SHAPE = 11


class ShapeTable(IntEnum):
    NAME = 0
    RANK = 1
    DATA = 2


class OperatorTable(IntEnum):
    OP = 0
    ATTRIBUTE_TYPE = 1
    ATTRIBUTE = 2
    INPUTS = 3
    OUTPUTS = 4
    LOCATION = 5


class LocationTable(IntEnum):
    TEXT = 0
