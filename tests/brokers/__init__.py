"""Tests of sinks on brokers that are not brought by a package: `make test-brokers`."""
