"""token: the command that makes a token for ``serve``: a new secret, and its line of the file."""

from __future__ import annotations

import click

from shardq.cli.options import Given, command, pass_given, reporting
from shardq.cli.output import complain, say, tell
from shardq.http.tokens import ROLES, checked, line_of, new_secret


def _words(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str]:
    return [word.strip() for text in value for word in text.split(",") if word.strip()]


@command("Make a token for `serve`.")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    callback=_words,
    metavar="ROLE",
    help=f"{', '.join(ROLES)}; several with commas, or repeated.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    default=("*",),
    callback=_words,
    metavar="TOPIC",
    help="A topic, or a pattern such as 'order-*'; several with commas, or repeated. Default: every topic.",
)
@reporting
@pass_given
def token(given: Given, name: str, roles: list[str], topics: list[str]) -> None:
    """Make a token: a new secret for one program, and the line that lets it in. The line, on stdout, belongs into the
    file of `shardq serve --tokens`, which is read again when it has changed. The secret, on stderr, is shown once: the
    line has only its hash.

    A producer pushes, and commands tasks by their ids. A worker claims and settles. A viewer looks. An operator
    looks, and commands all. One of an operator or a viewer for every topic signs in to the dashboard, too.

    example:
      shardq token shop --role producer --topic 'order-*' >> tokens
      shardq token mailer --role worker --topic mail,letter >> tokens
      shardq token ops --role operator >> tokens
    """
    secret = new_secret()
    line = line_of(checked(name, roles, topics), secret)
    if given.json:
        tell({"name": name, "secret": secret, "line": line})
        return
    say(line)
    complain(f"the secret of {name}, which is shown once: {secret}")
