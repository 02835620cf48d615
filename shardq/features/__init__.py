"""The parts that an engine offers beside pushing and claiming. A feature knows the core, and no engine."""
