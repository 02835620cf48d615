"""What tasks leave behind."""

from __future__ import annotations

from django.db import models


class Note(models.Model):
    """A line of a ledger: a task that ran."""

    text = models.CharField(max_length=100)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.text
