"""Help ends with examples that are understood; commands complete in shells."""

import shlex
import shutil
import subprocess

import pytest

from tablegen.console.arguments import EXAMPLES, parser
from tablegen.console.cli import main
from tests.tools.cases import every_case


@every_case("command", list(EXAMPLES))
def test_every_help_has_examples_that_are_understood(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert EXAMPLES[command]
    for line in EXAMPLES[command]:
        assert f"\n  {line}\n" in said
        words = shlex.split(line)
        assert words[:2] == ["tablegen", command]
        assert parser().parse_args(words[1:]).command == command


def test_examples_that_need_no_file_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "tables"))
    for line in (
        EXAMPLES["build"][1],
        EXAMPLES["info"][0],
        EXAMPLES["export"][0],
        EXAMPLES["publish"][1],
        *EXAMPLES["list"],
    ):
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "probit.zarr").is_dir()


@every_case("shell", ["bash", "zsh", "tcsh"])
def test_shells_complete(shell, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert "publish" in script
    assert "likelihood" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_command(tmp_path, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    (tmp_path / "complete").write_text(capsys.readouterr().out)
    script = (
        f"source {shlex.quote(str(tmp_path / 'complete'))}; COMP_WORDS=(tablegen pub); "
        "COMP_CWORD=1; $(complete -p tablegen | sed 's/.*-F \\([^ ]*\\).*/\\1/') tablegen pub; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["publish"], done.stderr
