"""The handle of a helper process: started when it is needed first, and ended with the gateway.

Two threads of one process share the interpreter's lock: on a busy machine, a thread that is
suspended while it holds the lock makes the other one wait, and that is the event loop. So the work
that takes time is done in other processes.
"""

import logging
import subprocess
import sys
import threading
import time
from typing import Final

from mcpp_gateway.storage.helper.messages import (
    IndexRequest,
    Request,
    decode_index,
    encode,
    read_message,
    write_message,
)
from mcpp_gateway.storage.index.database import IndexViews
from mcpp_gateway.storage.segment_log import SegmentLog

logger = logging.getLogger("mcpp.gateway")

_COMMAND: Final = (sys.executable, "-m", "mcpp_gateway.storage.helper.program")
_RESTART_SECONDS: Final = 10.0


class HelperProcess:
    """One helper. Its methods may be called on any thread."""

    def __init__(self) -> None:
        self.ready = False
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._start_not_before = 0.0
        self._closed = False

    def call(self, request: Request) -> bytes | None:
        """Return the answer to a request; None if the process is not there yet, or has ended."""
        with self._lock:
            process = self.process
            if process is None or not self.ready:
                self._start()
                return None
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                write_message(process.stdin, encode(request))
                answer = read_message(process.stdout)
            except OSError:
                answer = None
            if answer is None and not self._closed:
                logger.warning("a helper process has ended")
                self._end()
            return answer

    def index(
        self, log: SegmentLog, epoch: str, ids_generation: int, text_generation: int, committed: int
    ) -> IndexViews | None:
        """Index a part of a log; return how far it is indexed, or None if that was not possible."""
        request = IndexRequest(
            log=log.view(),
            epoch=epoch,
            ids_generation=ids_generation,
            text_generation=text_generation,
            committed=committed,
        )
        data = self.call(request)
        if data is None:
            return None
        answer = decode_index(data)
        if answer.views is None:
            logger.warning("cannot index the log elsewhere", extra={"reason": answer.error})
        return answer.views

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._closed = True
        if self.process is not None:
            self.process.kill()
        with self._lock:
            self._end()

    def _start(self) -> None:
        """Start the process; it is used once it says that it is ready."""
        now = time.monotonic()
        if self.process is not None or now < self._start_not_before or self._closed:
            return
        self._start_not_before = now + _RESTART_SECONDS
        try:
            self.process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            logger.warning("cannot start a helper process", extra={"reason": str(error)})
            return
        waiting = threading.Thread(target=self._await_ready, args=(self.process,), daemon=True)
        waiting.start()

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        try:
            ready = read_message(process.stdout) is not None
        except (OSError, ValueError):  # closed meanwhile
            return
        if self.process is process:
            self.ready = ready

    def _end(self) -> None:
        process, self.process, self.ready = self.process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
