"""The files of the inspector, served from memory."""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from websockets.http11 import Response

from mcpp_gateway.edge.admission import Headers
from mcpp_gateway.edge.web.responses import response

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Two policies, both enforced: what a page may load, and what its scripts may do.
POLICIES: Final = (
    (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob:; frame-ancestors 'none'"
    ),
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'",
)


class InspectorFile:
    """A file of the inspector, with its ETag."""

    def __init__(self, file: Traversable) -> None:
        self._body = file.read_bytes()
        self._type = _TYPES[file.name.rpartition(".")[2]]
        self._etag = f'"{sha256(self._body).hexdigest()[:32]}"'

    def answer(self, headers: Headers) -> Response:
        """Return the file, or 304 if the browser has it."""
        # no-cache, not no-store: the browser revalidates, and the file is sent only if it changed.
        fresh = {"Cache-Control": "no-cache", "ETag": self._etag}
        known = ",".join(headers.get("if-none-match", []))
        if self._etag in map(str.strip, known.split(",")):
            answer = response(304, self._type, b"", fresh)
        else:
            answer = response(200, self._type, self._body, fresh)
        for policy in POLICIES:
            answer.headers["Content-Security-Policy"] = policy
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return answer


@cache
def pages() -> Mapping[str, InspectorFile]:
    """Return the inspector's files by path. They are read once."""
    found: dict[str, InspectorFile] = {}
    pending = [("/inspector", files("mcpp_gateway") / "inspector")]
    while pending:
        path, folder = pending.pop()
        for item in folder.iterdir():
            if item.is_dir():
                pending.append((f"{path}/{item.name}", item))
            elif item.name.rpartition(".")[2] in _TYPES:
                found[f"{path}/{item.name}"] = InspectorFile(item)
    found["/"] = found.pop("/inspector/index.html")
    return found
