"""The project's manage.py, as `django-admin startproject` makes it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django.project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
