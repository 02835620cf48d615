"""The settings of the project: its folder, server and engine's name are in the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import django

FOLDER = Path(os.environ["SITE_FOLDER"])
SECRET_KEY = "of a test"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = "tests.integrations.django.project.urls"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    *([] if django.VERSION >= (6, 0) else ["django_tasks"]),
    "shardq.integrations.django",
    "tests.integrations.django.project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
QUICK = {
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",
}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "site.db",
        "OPTIONS": {"timeout": 60, **(QUICK if django.VERSION >= (5, 1) else {})},
    }
}
OPTIONS: dict[str, Any] = {
    "url": os.environ["SITE_URL"],
    "name": os.environ["SITE_NAME"],
    "shards": 1,
    **json.loads(os.environ.get("SITE_OPTIONS", "{}")),
}
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "shardq.integrations.django.ShardqBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": OPTIONS,
    }
}
