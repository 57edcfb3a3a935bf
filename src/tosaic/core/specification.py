"""The part of TOSA that a target supports: version, profiles, extensions, level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from tosaic.core.errors import Invalid

PROFILES = ("INT", "FP")
_VERSION = Version("1.0")
#: Extensions in canonical order, each with the profiles it extends.
EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "int16": ("INT",),
    "int4": ("INT",),
    "bf16": ("FP",),
    "fp8e4m3": ("FP",),
    "fp8e5m2": ("FP",),
    "fft": ("FP",),
    "var": ("INT", "FP"),
    "cf": ("INT", "FP"),
    "doubleround": ("INT",),
    "inexactround": ("INT",),
    "u55": ("INT",),
}
_FORM = "TOSA-1.0+INT or TOSA-1.0+FP, then any of +" + " +".join(EXTENSIONS) + " and +8k"
_OLD_PROFILES = {"BI": "TOSA-1.0+INT", "MI": "TOSA-1.0+FP"}


@dataclass(frozen=True, slots=True)
class Specification:
    """A TOSA version with its profiles, extensions and level; equal only if all of them are equal."""

    version: Version
    profiles: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    level_8k: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", Version(str(self.version)))
        object.__setattr__(self, "profiles", tuple(p for p in PROFILES if p in self.profiles))
        object.__setattr__(self, "extensions", tuple(e for e in EXTENSIONS if e in self.extensions))

    @staticmethod
    def parse(text: str) -> Specification:
        """Read a string such as `TOSA-1.0+INT+int16+int4+u55`; the order after the version is free."""
        head, *words = text.strip().split("+")
        if head.startswith("TOSA-0."):
            _refuse_old(text, words)
        if head != "TOSA-1.0":
            raise Invalid(f"{text!r} is not a TOSA specification", fix=f"write {_FORM}")
        profiles = tuple(w for w in words if w in PROFILES)
        extensions = tuple(w for w in words if w in EXTENSIONS)
        for word in words:
            if word not in PROFILES and word not in EXTENSIONS and word != "8k":
                raise Invalid(f"{text!r}: unknown profile or extension {word!r}", fix=f"write {_FORM}")
            if words.count(word) > 1:
                raise Invalid(f"{text!r} names {word!r} twice", fix=f"write {_FORM}")
        if not profiles:
            raise Invalid(f"{text!r} has no profile", fix=f"write {_FORM}")
        for word in extensions:
            if not set(EXTENSIONS[word]) & set(profiles):
                raise Invalid(f"{text!r}: {word!r} extends the {EXTENSIONS[word][0]} profile, which is missing")
        return Specification(_VERSION, profiles, extensions, "8k" in words)

    def supports(self, extension: str) -> bool:
        """Tell whether a profile or extension is part of this specification."""
        return extension in self.profiles or extension in self.extensions

    @staticmethod
    def create_from_string(text: str) -> Specification:
        """Parse a string: `parse` under the name that ExecuTorch's scripts use."""
        return Specification.parse(text)

    @staticmethod
    def all_versions_and_profiles() -> list[Specification]:
        """Return a specification for each profile of each version."""
        return [Specification(_VERSION, (profile,)) for profile in PROFILES]

    @staticmethod
    def all_versions_for_profile(profile: str) -> list[Specification]:
        """Return a specification for each version of a profile."""
        if profile.upper() not in PROFILES:
            raise Invalid(f"{profile!r} is not a TOSA profile", fix=f"use {' or '.join(PROFILES)}")
        return [Specification(_VERSION, (profile.upper(),))]

    @staticmethod
    def all_profiles_for_version(version: Version | str) -> list[Specification]:
        """Return a specification for each profile of a version."""
        try:
            release = Version(str(version).removeprefix("TOSA-")).release[:2]
        except InvalidVersion:
            release = ()
        if release != _VERSION.release:
            raise Invalid(f"TOSA {version} is not supported", fix=f"use {_VERSION}")
        return Specification.all_versions_and_profiles()

    @property
    def is_U55_subset(self) -> bool:
        """Whether it is limited to what Ethos-U55 and U65 support."""
        return "u55" in self.extensions

    def support_integer(self) -> bool:
        return self.supports("INT")

    def support_float(self) -> bool:
        return self.supports("FP")

    def support_extension(self, extension: str) -> bool:
        return self.supports(extension)

    def __str__(self) -> str:
        level = ("8k",) if self.level_8k else ()
        return "+".join((f"TOSA-{self.version}", *self.profiles, *self.extensions, *level))


def _refuse_old(text: str, words: list[str]) -> None:
    new = next((_OLD_PROFILES[word] for word in words if word in _OLD_PROFILES), "TOSA-1.0+INT or TOSA-1.0+FP")
    raise Invalid(f"{text!r}: TOSA 0.80 is no longer supported", fix=f"use {new}")


#: The name that ExecuTorch's scripts use.
TosaSpecification = Specification
