"""This file is the only door to numba: what generated kernels are made with, and their disk cache.

numba is imported when the first kernel is loaded, never before. Kernels are compiled by another
process (``compile_worker``), since compiling holds the interpreter lock for seconds; this process
loads what that one left beside the source. To load a kernel is to execute a file, and to unpickle
others: that is done in a folder of the user alone, and with files of the user alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from dml.errors import CacheError
from dml.ownership import is_own, make_folders, own_folder
from dml.settings import user_folder

Kernel: TypeAlias = Callable[..., None]

# n, gathering, selected, table, integers, floats, strides, flags
SIGNATURE = (
    "void(int64, boolean, uint64[::1], int64[:, ::1], int64[:, ::1], float64[:, ::1],"
    " int64[::1], boolean[::1])"
)

SCRATCH_ALIGNMENT = 64

# A helper that takes longer has gone wrong; the kernels it was asked for stay with NumPy.
COMPILE_LIMIT_S = 300.0

PYCACHE = "__pycache__"
# Of what lies on disk of a kernel; what is only being written has other endings.
ENDINGS = {".py", ".pyc", ".nbi", ".nbc", ".done", ".lock"}


class Natives(NamedTuple):
    """What generated source needs of numba.

    ``kernel`` compiles for ``SIGNATURE`` through the disk cache beside the source, ``inlined``
    makes a function part of its caller. ``pointer`` is an address as a pointer, ``scratch`` new
    stack memory of so many bytes (a literal), ``carray`` an array over either.
    """

    kernel: Callable[[Kernel], Kernel]
    inlined: Callable[[Callable[..., Any]], Callable[..., Any]]
    carray: Any
    pointer: Any
    scratch: Any


def _compiler(options: dict[str, Any]) -> Callable[[Kernel], Kernel]:
    """What compiles for ``SIGNATURE``, or loads what lies beside the source."""
    import numba  # noqa: PLC0415 as below
    from numba.core import caching  # noqa: PLC0415

    class Beside(caching.CompileResultCacheImpl):
        # a folder that NUMBA_CACHE_DIR names may be one of several users: nothing is taken from it
        _locator_classes = [caching.InTreeCacheLocator]  # noqa: RUF012 numba gives it no type

    class BesideCache(caching.FunctionCache):
        _impl_class = Beside

    def kernel(function: Kernel) -> Kernel:
        made = numba.njit(**options)(function)
        made._cache = BesideCache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001 as numba
        made.compile(SIGNATURE)
        made.disable_compile()
        result: Kernel = made
        return result

    return kernel


@functools.cache
def natives() -> Natives:
    """Import numba (200 ms, 90 MB) and make the native functions."""
    import numba  # noqa: PLC0415 costs 200 ms, which a pipeline without kernels need not pay
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import types  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    # IEEE division as in NumPy, and nothing that might alter a bit
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}

    @intrinsic
    def pointer(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), generate

    @intrinsic(prefer_literal=True)
    def scratch(_typing: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            # numba's own alloca_once fills it with zeros a byte at a time: seconds in LLVM
            with builder.goto_entry_block():
                room = builder.alloca(ir.ArrayType(ir.IntType(8), size.literal_value))
            room.align = SCRATCH_ALIGNMENT
            return builder.bitcast(room, context.get_value_type(types.voidptr))

        return types.voidptr(size), generate

    return Natives(
        kernel=_compiler(options),
        inlined=numba.njit(forceinline=True, **options),
        carray=vars(numba)["carray"],
        pointer=pointer,
        scratch=scratch,
    )


def load(path: Path) -> Kernel:
    """The kernel of a generated module; compiled here and now if the cache beside it lacks it."""
    spec = importlib.util.spec_from_file_location(f"dml_kernels_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    kernel: Kernel = module.run
    return kernel


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No pass of the garbage collector meanwhile.

    numba makes so many objects that one pass over them takes a tenth of a second, in which no other
    thread of this process runs: a batch would wait for it. Whoever keeps objects from the collector
    (``gc.disable``, ``gc.freeze``) is left alone.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # all objects become old without being looked at: as young ones they would be at once
        gc.freeze()
        gc.unfreeze()
        gc.enable()


@functools.cache
def machine() -> str:
    """A name for all that makes machine code differ: processor, Python, numba, and this file."""
    import importlib.metadata  # noqa: PLC0415 as long as no kernel is wanted, 15 ms for nothing

    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = "\n".join(sorted({s for s in lines if s.startswith(("model name", "flags", "Feat"))}))
    versions = [importlib.metadata.version(package) for package in ("numba", "llvmlite", "numpy")]
    parts = [cpu, platform.machine(), sys.version, *versions, Path(__file__).read_text("utf-8")]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def kernels_in(folder: Path) -> Path:
    """Where this user's kernels for all machines are in a folder that other users may have, too."""
    return folder / f"kernels-{os.geteuid()}"


class KernelCache:
    """Kernels by name: in memory, on disk under ``directory``, or being compiled by a helper.

    Any number of threads and processes of one user may use one directory. Failures are counted and
    remembered for the life of this object; whoever wanted the kernel goes on without it.
    """

    def __init__(self, directory: Path) -> None:
        self._root = Path(directory)
        self.failures: dict[str, str] = {}
        self._kernels: dict[str, Kernel] = {}
        self._wanted: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    @functools.cached_property
    def directory(self) -> Path:
        """Where this user's kernels for this machine are; found out when the first is wanted.

        Under the given folder, unless others could write to what lies there, or put other folders
        in its place: then under the user's cache folder, or among temporary files. CacheError if
        that holds of all of them.
        """
        usual, temporary = Path(user_folder() or os.devnull), Path(tempfile.gettempdir())
        for above in (self._root, usual, temporary / f"dml-{os.geteuid()}"):
            found = own_folder(kernels_in(above))
            if found is not None:
                return found / machine()
        raise CacheError(
            "compiled kernels cannot be kept",
            at=str(self._root),
            why="what is loaded from there is executed, and other users could write it",
            try_="a cache_dir that only you can write to, in folders of yours or of root",
        )

    def get(self, name: str) -> Kernel | None:
        """The kernel if it is loaded; never waits."""
        return self._kernels.get(name)

    def made(self, name: str) -> bool:
        """Whether the kernel is loaded, or was compiled by an earlier run."""
        try:
            return name in self._kernels or self._is_kept(name)
        except CacheError:
            return False

    def request(self, sources: Iterable[tuple[str, str]]) -> None:
        """Have kernels (name, text) compiled and loaded in the background."""
        with self._changed:
            for name, text in sources:
                if name not in self._kernels and name not in self.failures:
                    self._wanted[name] = text
            if self._wanted and self._thread is None:
                thread = threading.Thread(target=self._work, name="dml-kernels", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError as error:  # there are no more threads to be had
                    self.failures.update(dict.fromkeys(self._wanted, str(error)))
                    self._wanted.clear()

    def wait(self, name: str) -> Kernel | None:
        """The kernel, once its request is done; None if that failed."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._kernels or name in self.failures)
        return self._kernels.get(name)

    def _work(self) -> None:
        while True:
            with self._changed:
                batch = dict(self._wanted)
                if not batch:
                    self._thread = None
                    return
            loaded, failed = self._compile(batch)
            with self._changed:
                self._kernels.update(loaded)
                self.failures.update(failed)
                for name in batch:
                    del self._wanted[name]
                self._changed.notify_all()

    def _compile(self, batch: dict[str, str]) -> tuple[dict[str, Kernel], dict[str, str]]:
        """Publish, compile and load; a kernel ends up in one of the two results."""
        loaded: dict[str, Kernel] = {}
        try:
            message = self._make(batch)
            missing = [name for name in batch if not self._is_kept(name)]
            with uncollected():
                for name in batch.keys() - set(missing):
                    loaded[name] = load(self.directory / f"{name}.py")
        except Exception as error:  # noqa: BLE001 whatever went wrong, the NumPy tier goes on
            message = f"{type(error).__name__}: {error}"
        reason = message or "the compile helper left no kernel"
        return loaded, {name: reason for name in batch if name not in loaded}

    def _make(self, batch: dict[str, str]) -> str:
        """Have what is not on disk compiled by a helper process; its last words if it failed."""
        import subprocess  # noqa: PLC0415 few runs need it

        self._clear(batch)
        for name, text in batch.items():
            publish(self.directory / f"{name}.py", text)
        names = [name for name in batch if not self._is_kept(name)]
        if not names:
            return ""
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(  # noqa: S603 this interpreter, on names that are digests
            [sys.executable, "-P", "-m", "dml.kernels.compile_worker", self.directory, *names],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
        return done.stderr.decode(errors="replace")[-2000:] if done.returncode else ""

    def marker(self, name: str) -> Path:
        """The file that says that a kernel's machine code is complete."""
        return self.directory / f"{name}.done"

    @property
    def _folders(self) -> tuple[Path, Path]:
        return self.directory, self.directory / PYCACHE

    def _files(self, name: str) -> list[Path]:
        """What lies on disk of one kernel: source, machine code, marker, lock."""
        found = [path for folder in self._folders for path in folder.glob(f"{name}.*")]
        return [path for path in found if path.suffix in ENDINGS]

    def _is_kept(self, name: str) -> bool:
        """Whether an earlier run compiled a kernel, and every file of it is this user's own."""
        there = self.marker(name).exists()
        return there and all(map(is_own, (*self._folders, *self._files(name))))

    def _clear(self, names: Iterable[str]) -> None:
        """Make the folders, and remove from them what is not this user's own, unread."""
        if any(os.path.lexists(each) and not is_own(each) for each in self._folders):
            link = self.directory.is_symlink()
            self.directory.unlink() if link else shutil.rmtree(self.directory)
        make_folders(self.directory / PYCACHE)
        for name in names:
            files = self._files(name)
            if not all(map(is_own, files)):
                for path in (self.marker(name), *files):  # first what says that the rest is whole
                    path.unlink(missing_ok=True)


def publish(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all; the first writer wins, so its time stamp never changes.

    (numba drops compiled code whose source has another time stamp.)
    """
    if path.exists():
        return
    descriptor, draft = tempfile.mkstemp(dir=path.parent, suffix=".draft")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
