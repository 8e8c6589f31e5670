"""`import horovod.torch` in programs that stay as they are: for one program, and by a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment, write

from taco_torch.horovod import alias

PYTHON = sys.executable
MODULE = [PYTHON, "-m", "taco_torch.horovod"]


def run(words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def real_one(folder: Path) -> str:
    """A distribution that has `horovod/`, in a folder for PYTHONPATH."""
    (folder / "real" / "horovod" / "torch").mkdir(parents=True)
    (folder / "real" / "horovod" / "__init__.py").write_text("__version__ = 'real'\n")
    (folder / "real" / "horovod" / "torch" / "__init__.py").write_text("whose = 'real'\n")
    old = os.environ.get("PYTHONPATH")
    return str(folder / "real") + (f":{old}" if old else "")


USES_IT = """
    USED = 1
    import sys
    import horovod
    import horovod.torch as hvd
    import horovod.torch.elastic
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.common.process_sets import global_process_set
    from horovod.torch import *
    from horovod.torch.compression import Compression
    from horovod.torch.elastic.sampler import ElasticSampler
    from horovod.torch.elastic.state import TorchState
    from horovod.torch.functions import broadcast_object
    from horovod.torch.mpi_ops import Average, allreduce_async_, synchronize

    import taco_torch.horovod as ours

    assert hvd.allreduce is ours.allreduce is allreduce
    assert hvd.elastic.TorchState is ours.elastic.TorchState is TorchState
    assert hvd.HorovodInternalError is HorovodInternalError is ours.HorovodInternalError
    assert "DistributedOptimizer" in dir(hvd)
    assert horovod.__version__.startswith("0.28")
    assert not hasattr(hvd, "no_such_name")
    assert __name__ == "__main__" and sys.modules["__main__"].USED == 1
    print(sys.argv, hvd.__name__)
"""


def test_a_program_for_horovod_runs_as_it_is(tmp_path: Path) -> None:
    program = write(tmp_path, USES_IT, "train.py")
    done = run([*MODULE, program, "--epochs", "3", "-m"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[program, '--epochs', '3', '-m']} horovod.torch\n"


def test_a_program_s_annotations_are_what_it_says(tmp_path: Path) -> None:
    text = "def f(count: int) -> None: ...\nprint(f.__annotations__['count'] is int)\n"
    done = run([*MODULE, write(tmp_path, text, "typed.py")], tmp_path)
    assert done.stdout == "True\n", done.stderr


def test_modules_beside_a_program_are_found_and_a_module_runs_too(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    write(tmp_path / "beside", "from horovod.torch import Sum as VALUE\n", "neighbour.py")
    text = "import sys, neighbour, taco_torch.horovod as hvd\n"
    text += "assert neighbour.VALUE is hvd.Sum\nprint(sys.argv[1:])\n"
    program = write(tmp_path / "beside", text, "train.py")
    assert run([*MODULE, program, "a"], tmp_path).stdout == "['a']\n"
    done = run([*MODULE, "-m", "train", "-x"], tmp_path / "beside")
    assert done.stdout == "['-x']\n", done.stderr


def test_a_program_s_own_exit_status_and_errors_are_kept(tmp_path: Path) -> None:
    program = write(tmp_path, "import sys\nsys.exit(5)\n")
    assert run([*MODULE, program], tmp_path).returncode == 5
    program = write(tmp_path, "import horovod.torch\n1 / 0\n")
    done = run([*MODULE, program], tmp_path)
    assert done.returncode == 1
    assert f'File "{program}", line 2' in done.stderr
    missing = run([*MODULE, "none.py"], tmp_path)
    assert missing.returncode == 1
    assert missing.stderr == "none.py cannot be read: No such file or directory\n"


def test_other_frameworks_are_refused_with_a_reason(tmp_path: Path) -> None:
    program = write(tmp_path, "import horovod.tensorflow\n")
    done = run([*MODULE, program], tmp_path)
    assert done.returncode == 1
    assert "which has horovod.torch alone" in done.stderr


def test_a_real_horovod_wins_only_where_that_is_asked_for(tmp_path: Path) -> None:
    program = write(tmp_path, "import horovod.torch as hvd\nprint(getattr(hvd, 'whose', 'ours'))\n")
    path = real_one(tmp_path)
    assert run([*MODULE, program], tmp_path, PYTHONPATH=path).stdout == "ours\n"
    done = run([*MODULE, "--real-first", program], tmp_path, PYTHONPATH=path)
    assert done.stdout == "real\n", done.stderr
    assert run([*MODULE, "--real-first", program], tmp_path).stdout == "ours\n"


STARTS_OTHERS = """
    import multiprocessing, sys
    import horovod.torch as hvd

    def ask(pipe):
        import horovod.torch.elastic
        import taco_torch.horovod as ours
        pipe.send(getattr(hvd, "whose", "") or ("ours" if hvd.Sum is ours.Sum else "others"))

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        mine, theirs = context.Pipe()
        process = context.Process(target=ask, args=(theirs,))
        process.start()
        theirs.close()
        print(mine.recv())
        process.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_the_program_have_it_too(tmp_path: Path, method: str) -> None:
    program = write(tmp_path, STARTS_OTHERS, "starts.py")
    for words in ([program], ["-m", "starts"]):
        path = real_one(tmp_path / str(len(words)))
        done = run([*MODULE, *words, method], tmp_path, PYTHONPATH=path)
        assert done.stdout == "ours\n", done.stderr


def test_where_a_real_horovod_wins_spawned_processes_have_it_too(tmp_path: Path) -> None:
    text = STARTS_OTHERS.replace("import horovod.torch.elastic\n", "\n")
    program = write(tmp_path, text, "starts.py")
    words = [*MODULE, "--real-first", program, "spawn"]
    assert run(words, tmp_path, PYTHONPATH=real_one(tmp_path)).stdout == "real\n"
    done = run(words, tmp_path)
    assert done.stdout == "ours\n", done.stderr


def test_other_programs_that_it_starts_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "import horovod\n", "other.py")
    text = """
        import subprocess, sys
        done = subprocess.run([sys.executable, "other.py"], capture_output=True, text=True)
        print(done.stderr.splitlines()[-1], sys.path[0])
    """
    program = write(tmp_path, text, "starts.py")
    done = run([*MODULE, program], tmp_path)
    found = "ModuleNotFoundError: No module named 'horovod'"
    assert done.stdout == f"{found} {tmp_path}\n", done.stderr


@pytest.mark.parametrize(
    "words", [[], ["--install-alias", "train.py"], ["--install-alias", "--remove-alias"]]
)
def test_one_thing_at_a_time_is_asked_for(tmp_path: Path, words: list[str]) -> None:
    done = run([*MODULE, *words], tmp_path)
    assert done.returncode == 2
    assert "give one of SCRIPT, -m MODULE, --install-alias and --remove-alias" in done.stderr


# The file in site-packages: a folder of the test's, which Python treats alike


def in_environment(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program in an environment whose site-packages is this folder."""
    start = f"import site; site.addsitedir({str(folder)!r})\n"
    return run([PYTHON, "-c", start + code], folder, **variables)


def test_the_file_serves_every_program_until_it_is_removed(tmp_path: Path) -> None:
    code = "import horovod.torch as hvd, taco_torch.horovod as ours\nprint(hvd.Sum is ours.Sum)"
    assert "No module named 'horovod'" in in_environment(tmp_path, code).stderr
    path = alias.install(tmp_path)
    assert in_environment(tmp_path, code).stdout == "True\n"
    before = path.read_bytes()
    assert alias.install(tmp_path) == path, "a second time"
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [alias.NAME]
    assert in_environment(tmp_path, code).stdout == "True\n"
    assert alias.remove(tmp_path) == path
    assert list(tmp_path.iterdir()) == []
    assert alias.remove(tmp_path) is None
    assert "No module named 'horovod'" in in_environment(tmp_path, code).stderr


def test_a_real_horovod_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    alias.install(tmp_path / "site")
    code = "import horovod.torch as hvd\nprint(hvd.whose)"
    done = in_environment(tmp_path / "site", code, PYTHONPATH=real_one(tmp_path))
    assert done.stdout == "real\n", done.stderr
    code = "import horovod.torch.elastic"
    done = in_environment(tmp_path / "site", code, PYTHONPATH=f"{tmp_path / 'real'}:{paths()}")
    assert "No module named 'horovod.torch.elastic'" in done.stderr, "not half of each"


def paths() -> str:
    return os.environ.get("PYTHONPATH", "")


def test_the_file_loads_no_torch_and_says_nothing_without_taco_torch(tmp_path: Path) -> None:
    alias.install(tmp_path)
    code = "import sys; print('torch' in sys.modules, 'taco_torch' in sys.modules)"
    assert in_environment(tmp_path, code).stdout == "False False\n"
    start = f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')"
    bare = subprocess.run(
        [PYTHON, "-I", "-S", "-c", start], capture_output=True, text=True, check=False
    )
    assert (bare.stdout, bare.stderr) == ("fine\n", "")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "no-folder"
    folder.write_text("a file")
    with pytest.raises(PermissionError, match=r"no-folder/taco_torch.*virtual environment"):
        alias.install(folder)
    with pytest.raises(PermissionError, match=r"no-folder/taco_torch.*virtual environment"):
        alias.remove(folder)
