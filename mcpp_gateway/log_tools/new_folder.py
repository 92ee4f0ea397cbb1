"""A folder that appears complete or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpp_gateway.log_tools.reader import LogToolError
from mcpp_gateway.storage.disk import sync_path


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end; after an error it is deleted.

    Raises LogToolError if `path` exists and is not an empty folder.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise LogToolError(f"{path} is not empty")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # It begins with a dot, so no gateway takes it for a pod.
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        sync_path(temporary)
        temporary.rename(path)
        sync_path(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
