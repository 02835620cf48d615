import pytest

# modules with assertions that are no tests
pytest.register_assert_rewrite("tests.fuzz.world", "tests.fuzz.asgi", "tests.fuzz.command")
