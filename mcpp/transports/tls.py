"""Which certificates a client trusts: the system's, or those of one authority."""

import ssl

from mcpp.errors import AddressError

__all__ = ["trust"]


def trust(url: str, authority: str | None) -> ssl.SSLContext | None:
    """Return the TLS context for a gateway; None if its address is without TLS.

    It trusts the system's authorities, or only the one whose certificate is in a file.

    Raises AddressError if that file cannot be used.
    """
    if not url.lower().startswith(("wss:", "https:")):
        return None
    try:
        return ssl.create_default_context(cafile=authority or None)
    except ssl.SSLError:
        raise AddressError(url, f"{authority} has no certificate of an authority (PEM)") from None
    except OSError as error:
        raise AddressError(url, f"{authority}: {error.strerror}") from None
