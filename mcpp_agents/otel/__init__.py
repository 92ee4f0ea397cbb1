"""`mcpp otel`: a pod's contexts as spans of OpenTelemetry, read from its log."""
