"""The cluster's log on NATS JetStream: connection, streams, ordered reading, beats."""
