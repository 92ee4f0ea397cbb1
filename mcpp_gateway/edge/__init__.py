"""The gateway's I/O: sockets, HTTP, admission, metrics and delivery."""
