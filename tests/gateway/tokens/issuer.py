"""An issuer of tokens on loopback: keys that rotate, a key server, and tokens of any content."""

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

_ENCODERS: Any = {"EdDSA": OKPAlgorithm, "ES256": ECAlgorithm, "RS256": RSAAlgorithm}


def new_key(algorithm: str = "EdDSA") -> Any:
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    return Ed25519PrivateKey.generate()


def jwk(key: Any, id: str, algorithm: str = "EdDSA") -> dict[str, Any]:
    found: dict[str, Any] = _ENCODERS[algorithm].to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": id, "use": "sig", "alg": algorithm}


def part(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class LoopbackIssuer:
    """Signs tokens and serves its public keys."""

    def __init__(self, algorithm: str = "EdDSA") -> None:
        self.algorithm = algorithm
        self.keys: dict[str, Any] = {}
        self.fetched = 0
        self.status = 200
        self.endless = False
        self.names_keys = True
        self.address = ""
        self.rotate("first")

    def rotate(self, id: str) -> None:
        """Sign with a new key from now on; the older ones are still served."""
        self.keys[id] = new_key(self.algorithm)
        self.current = id

    def sign(self, sub: str = "ada", **claims: Any) -> str:
        now = time.time()
        stated = {"iss": "https://issuer", "aud": "mcpp", "sub": sub, "iat": now, "exp": now + 600}
        kept = {name: value for name, value in (stated | claims).items() if value is not None}
        headers = {"kid": self.current} if self.names_keys else None
        return jwt.encode(kept, self.keys[self.current], self.algorithm, headers)

    def key_set(self) -> bytes:
        keys = [jwk(key, id, self.algorithm) for id, key in self.keys.items()]
        for each in () if self.names_keys else keys:
            del each["kid"]
        return json.dumps({"keys": keys}).encode()

    def config(self, name: str = "company", more: str = "", allow: str = "") -> str:
        return (
            f'[issuers.{name}]\njwks_url = "{self.address}"\naudience = "mcpp"\n{more}\n'
            f"[issuers.{name}.allow]\n{allow}\n"
        )

    @contextmanager
    def serving(self) -> Iterator["LoopbackIssuer"]:
        issuer = self

        class KeyHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched += 1
                self.send_response(issuer.status)
                self.end_headers()
                try:
                    while issuer.endless:
                        self.wfile.write(b" " * 4096)
                    self.wfile.write(issuer.key_set())
                except OSError:
                    return

            def log_message(self, format: str, *args: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), KeyHandler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}/keys"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
