"""Small TOSA graphs that together use most of what an Ethos-U can do, each with inputs that fit it."""

from support.graphs import data, strict, window
from support.graphs.cases import Case, make, names

#: The modules that register their graphs when they are imported.
MODULES = (window, data, strict)

__all__ = ["MODULES", "Case", "make", "names"]
