"""`mcpp bench`: measures a gateway with clients that use little CPU time themselves."""
