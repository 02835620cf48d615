"""The Django app: ``"shardq.integrations.django"`` in INSTALLED_APPS.

    >>> from shardq.integrations.django import outbox
    >>> with transaction.atomic():
    ...     order.save()
    ...     outbox.push({"order": order.pk}, delay=1800)

``README.md`` beside this file says the rest. It needs Django: ``pip install 'shardq[django]'``.
"""
