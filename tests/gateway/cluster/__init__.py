"""Tests of the cluster: pure core in simulation, and the real thing."""
