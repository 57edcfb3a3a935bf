"""Small TOSA graphs that together use most of what an Ethos-U can do, each with inputs that fit it."""

import cases_data
import cases_strict
import cases_window
from cases import Case, make, names

#: The modules that register their graphs when they are imported.
MODULES = (cases_window, cases_data, cases_strict)

__all__ = ["MODULES", "Case", "make", "names"]
