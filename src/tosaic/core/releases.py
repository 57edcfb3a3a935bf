"""The combinations of releases that are tested: `make test-matrix` runs them, `tosaic doctor` names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Releases:
    """A version of Python with releases of the packages that Tosaic knows from the inside."""

    python: str
    torch: str
    executorch: str

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch}, executorch {self.executorch}"

    def matches(self, python: str, torch: str, executorch: str) -> bool:
        """Tell whether full versions belong to these releases; the build of torch does not matter."""
        found = python, torch.partition("+")[0], executorch
        return all(
            version == known or version.startswith(f"{known}.")
            for version, known in zip(found, (self.python, self.torch, self.executorch), strict=True)
        )


TESTED = (
    Releases("3.11", "2.13.0", "1.4.1"),
    Releases("3.12", "2.13.0", "1.4.1"),
    Releases("3.13", "2.13.0", "1.4.1"),
    Releases("3.11", "2.13.0", "1.5.1"),
    Releases("3.12", "2.13.0", "1.5.1"),
    Releases("3.13", "2.13.0", "1.5.1"),
)
