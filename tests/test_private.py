import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd._private import check_ours, make_ours, read_ours
from incrowd.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "deep" / "file"
    make_ours(path.parent)
    path.write_bytes(b"content")
    path.chmod(0o600)
    return path


def test_what_is_ours_passes(file: Path) -> None:
    check_ours(file, secret=True)
    check_ours(file.parent, secret=True)
    assert read_ours(file, secret=True) == b"content"
    file.chmod(0o644)
    assert read_ours(str(file)) == b"content"


def test_a_relative_path_is_checked_from_the_root(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert read_ours("file") == b"content"
    file.parent.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="other users may write it"):
        read_ours("file")


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_whatever_others_may_write_is_refused_anywhere_on_the_way(file: Path, up: int, mode: int) -> None:
    (file, *file.parents)[up].chmod(mode)
    for use in (check_ours, read_ours):
        with pytest.raises(ConfigError, match="other users may write it"):
            use(file)


@pytest.mark.parametrize("up", [0, 1, 2])
def test_whatever_belongs_to_another_is_refused_anywhere_on_the_way(
    file: Path, up: int, given_away: Callable[[Path], None]
) -> None:
    given_away((file, *file.parents)[up])
    for use in (check_ours, read_ours):
        with pytest.raises(ConfigError, match=r"belongs to user \d+"):
            use(file)


def test_a_sticky_folder_for_all_is_passed_and_what_is_in_it_has_to_be_ours(
    file: Path, given_away: Callable[[Path], None]
) -> None:
    file.parent.chmod(0o1777)
    assert read_ours(file) == b"content"
    with pytest.raises(ConfigError, match="other users may write it"):
        check_ours(file.parent)
    given_away(file)
    with pytest.raises(ConfigError, match="belongs to user"):
        read_ours(file)


def test_links_are_followed_and_every_folder_behind_them_checked(
    file: Path, tmp_path: Path, given_away: Callable[[Path], None]
) -> None:
    link = tmp_path / "link"
    link.symlink_to("mine/deep")
    assert read_ours(link / "file") == b"content"
    absolute = tmp_path / "absolute"
    absolute.symlink_to(link)
    assert read_ours(absolute / "file") == read_ours(absolute / ".." / "deep" / "file") == b"content"
    file.parent.parent.chmod(0o777)
    for path in (link / "file", absolute / "file"):
        with pytest.raises(ConfigError, match="other users may write it"):
            check_ours(path)
    file.parent.parent.chmod(0o700)
    given_away(link)
    with pytest.raises(ConfigError, match="belongs to user"):
        check_ours(link / "file")


def test_a_step_back_after_a_link_leads_where_the_system_says(file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "open" / "inner"
    elsewhere.mkdir(parents=True)
    elsewhere.parent.chmod(0o777)
    (tmp_path / "link").symlink_to(elsewhere)
    assert file.exists()
    check_ours(tmp_path / "mine")
    with pytest.raises(ConfigError, match="other users may write it"):
        check_ours(tmp_path / "link" / ".." / "mine")  # open/mine, not mine


def test_what_others_may_read_is_no_secret(file: Path) -> None:
    for mode in (0o640, 0o604, 0o610):
        file.chmod(mode)
        check_ours(file)
        for use in (check_ours, read_ours):
            with pytest.raises(ConfigError, match="other users may read it"):
                use(file, secret=True)


def test_only_plain_files_are_read_and_what_is_not_there_is_not_refused(file: Path) -> None:
    check_ours(file.parent / "absent" / "deeper")
    with pytest.raises(FileNotFoundError):
        read_ours(file.parent / "absent")
    link, pipe, circle = file.with_name("link"), file.with_name("pipe"), file.with_name("circle")
    circle.symlink_to(circle)
    with pytest.raises(ConfigError, match="circles"):
        check_ours(circle)
    link.symlink_to(file)
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConfigError, match="it is a link"):
        read_ours(link)
    for path in (pipe, file.parent):
        with pytest.raises(ConfigError, match="not a plain file"):
            read_ours(path)
    with pytest.raises(NotADirectoryError):
        read_ours(file / "below")


def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_ours(tmp_path / "a" / "b")
        make_ours(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")} == {0o700}
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(ConfigError, match="other users may write it"):
        make_ours(tmp_path / "a" / "c")
    assert not (tmp_path / "a" / "c").exists()
