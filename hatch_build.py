"""Build metadata that depends on where the project is hosted.

MCPP_PROJECT_URL is the repository's address at release time. If it is set, the package gets project
links, and the relative links and pictures of the README become absolute, so that they work on the
page of the package index.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](docs/guide.md#filters) or ![text](docs/pod.svg); not an address, not #a-heading.
_RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)]+)\)")


class ProjectMetadata(MetadataHookInterface):
    """Adds `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields in the project's metadata."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        url = os.environ.get("MCPP_PROJECT_URL", "").rstrip("/")
        if url:
            tag = f"v{metadata['version']}"
            metadata["urls"] = {
                "Homepage": url,
                "Source": url,
                "Issues": f"{url}/issues",
                "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
            }
            readme = _RELATIVE_LINK.sub(
                lambda link: (
                    f"{link[1]}{link[2]}({url}/{'raw' if link[1] else 'blob'}/{tag}/{link[3]})"
                ),
                readme,
            )
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
