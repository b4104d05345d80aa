"""The loader's errors. Messages name what was expected, what was found, which id, and what to do next; never text."""


class RunviewError(Exception):
    """Base of everything this package raises on its own account (wrong arguments are plain ValueError)."""


class FormatError(RunviewError):
    """A file is not what its format says: wrong header, dtype, shape or offsets."""


class ManifestError(RunviewError):
    """A manifest has an unknown, missing or wrong field, or disagrees with the files it names."""


class IntegrityError(RunviewError):
    """Bytes do not have the digest they are pinned to."""


class MissingFileError(RunviewError):
    """A file the view needs is not there, or the store cannot be asked."""


class WithdrawnError(RunviewError):
    """The view was withdrawn and must not be trained on."""


class CursorError(RunviewError):
    """A cursor does not belong to this view, or is not at a step boundary."""


class ApprovalError(RunviewError):
    """A signature, signer list or approval document was refused."""


class LoaderClosedError(RunviewError):
    """The loader was closed and cannot deliver."""
