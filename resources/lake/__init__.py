"""The store of record: versioned Delta tables, written so that a killed or repeated run ends as one copy.

`Lake` is all the rest of the project needs. Inside: `delta` is the only file that imports deltalake, `home` keeps the lake's
marker file and locks, `snapshot` is the completed record of a version, `faults` turns what the outside raises into LakeError.
"""

from resources.lake.home import FORMAT, SCHEMA
from resources.lake.snapshot import Snapshot, TableRecord
from resources.lake.store import Lake

__all__ = ["FORMAT", "SCHEMA", "Lake", "Snapshot", "TableRecord"]
