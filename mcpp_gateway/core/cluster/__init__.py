"""One pod on many gateways: one decides, all apply what the log brings. No I/O."""
