"""Which certificates a client trusts: the system's, or those of one authority."""

import ssl

from mcpp.errors import AddressError

__all__ = ["trust"]


def trust(url: str, authority: str | None) -> ssl.SSLContext:
    """Return a TLS context for a gateway: for the system's certificates, or of one authority only.

    Raises AddressError if the file with the authority's certificate cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=authority or None)
    except ssl.SSLError:
        raise AddressError(url, f"{authority} has no certificate of an authority (PEM)") from None
    except OSError as error:
        raise AddressError(url, f"{authority}: {error.strerror}") from None
