"""Who may come in: tokens, sessions of browsers, origins, and bounds on guessing. No I/O."""

from mcpp_gateway.edge.admission.control import (
    CODE_HEADER,
    SUBPROTOCOL,
    Admission,
    AdmissionControl,
    SignIn,
    Waiting,
)
from mcpp_gateway.edge.admission.origins import Headers
from mcpp_gateway.edge.admission.throttle import Denial

__all__ = [
    "CODE_HEADER",
    "SUBPROTOCOL",
    "Admission",
    "AdmissionControl",
    "Denial",
    "Headers",
    "SignIn",
    "Waiting",
]
