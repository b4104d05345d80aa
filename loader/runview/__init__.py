"""Runview's loader: feeds a pinned run view to a training job, exactly, from any position, under any world size.

>>> from runview import Loader, RunView, Topology          # doctest: +SKIP
>>> view = RunView.open("lake/files/views/<view_id>.json")  # doctest: +SKIP
>>> for batch in Loader(view, topology=Topology(dp=8, dp_rank=0), micro_batch=4): ...  # doctest: +SKIP
"""

from runview.batch import Batch
from runview.cursor import Cursor
from runview.errors import (
    ApprovalError,
    CursorError,
    FormatError,
    IntegrityError,
    LoaderClosedError,
    ManifestError,
    MissingFileError,
    RunviewError,
    WithdrawnError,
)
from runview.loader import Loader
from runview.plan import StepPlan, Topology
from runview.view import Feed, RunView

__version__ = "0.1.0"

__all__ = [
    "ApprovalError",
    "Batch",
    "Cursor",
    "CursorError",
    "Feed",
    "FormatError",
    "IntegrityError",
    "Loader",
    "LoaderClosedError",
    "ManifestError",
    "MissingFileError",
    "RunView",
    "RunviewError",
    "StepPlan",
    "Topology",
    "WithdrawnError",
]
