"""Which verl this package is written for, and which one is here. No verl, no torch."""

from importlib import metadata

from packaging.specifiers import SpecifierSet

from egpo.errors import EgpoError

SUPPORTED = "==0.9.1"
INSTALL = f"pip install 'verl{SUPPORTED}' TransferQueue"


def installed_version() -> str | None:
    """None where verl is not installed."""
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return None


def require_supported(version: str | None) -> None:
    """The plug-in reads verl's own batch and replaces its trainers: another version may have neither where we look."""
    if version is None:
        raise EgpoError("verl is not installed", fix=f"{INSTALL} (verl{SUPPORTED} is supported)")
    if not SpecifierSet(SUPPORTED).contains(version, prereleases=True):
        raise EgpoError(f"verl {version} is installed, and verl{SUPPORTED} is supported", fix=INSTALL)
