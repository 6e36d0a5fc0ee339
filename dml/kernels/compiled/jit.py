"""numba is imported only here, for the functions that kernels call and the cache of kernels.

numba is imported when the first kernel is loaded, never before. Kernels are compiled by another
process (``compile_worker``), since compiling holds the GIL for seconds; this process loads the
machine code, which numba stores next to the source. Loading a kernel executes a file and unpickles
other files, so the folder and its files must be private to the user.
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

from dml.base.ownership import is_own, make_folders, own_folder
from dml.errors import CacheError
from dml.settings import user_folder

Kernel: TypeAlias = Callable[..., None]

# n, gathering, selected, table, integers, floats, strides, flags
SIGNATURE = (
    "void(int64, boolean, uint64[::1], int64[:, ::1], int64[:, ::1], float64[:, ::1],"
    " int64[::1], boolean[::1])"
)

SCRATCH_ALIGNMENT = 64

# A compile process that takes longer is stopped; NumPy runs in place of its kernels.
COMPILE_LIMIT_S = 300.0

PYCACHE = "__pycache__"
# Endings of the finished files of a kernel; files being written have other endings.
ENDINGS = {".py", ".pyc", ".nbi", ".nbc", ".done", ".lock"}


class Natives(NamedTuple):
    """The parts of numba that generated source uses.

    ``kernel`` compiles for ``SIGNATURE``, or loads code cached next to the source; ``inlined``
    makes a function part of its caller. ``pointer`` converts an address to a pointer, ``scratch``
    allocates stack memory of a literal number of bytes, ``carray`` makes arrays over both.
    """

    kernel: Callable[[Kernel], Kernel]
    inlined: Callable[[Callable[..., Any]], Callable[..., Any]]
    carray: Any
    pointer: Any
    scratch: Any


def _compiler(options: dict[str, Any]) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles for ``SIGNATURE``, or loads code cached by the source."""
    import numba  # noqa: PLC0415 as below
    from numba.core import caching  # noqa: PLC0415

    class Beside(caching.CompileResultCacheImpl):
        # NUMBA_CACHE_DIR may be shared with other users: nothing is loaded from it
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
    """Import numba (200 ms, 90 MB) and return its parts that generated source uses."""
    import numba  # noqa: PLC0415 costs 200 ms, which a pipeline without kernels need not pay
    from llvmlite import ir  # noqa: PLC0415
    from numba.core import types  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    # IEEE division as in NumPy, and no optimization that might change a bit
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
    """Load the kernel of the generated module ``path``; compile it if it is not in the cache."""
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
    """Suspend the garbage collector during the ``with`` block.

    numba makes so many objects that one pass over them takes a tenth of a second, in which no other
    thread of this process runs: a batch would wait for it. If the program uses ``gc.disable`` or
    ``gc.freeze``, the collector is left alone.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # moves all objects to the oldest generation, since young ones would be scanned at once
        gc.freeze()
        gc.unfreeze()
        gc.enable()


@functools.cache
def machine() -> str:
    """Return a digest of what affects machine code: processor, Python, packages, this module."""
    import importlib.metadata  # noqa: PLC0415 takes 15 ms, only needed for kernels

    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = "\n".join(sorted({s for s in lines if s.startswith(("model name", "flags", "Feat"))}))
    versions = [importlib.metadata.version(package) for package in ("numba", "llvmlite", "numpy")]
    parts = [cpu, platform.machine(), sys.version, *versions, Path(__file__).read_text("utf-8")]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def kernels_in(folder: Path) -> Path:
    """Return the folder for this user's kernels inside ``folder``, which users may share."""
    return folder / f"kernels-{os.geteuid()}"


class KernelCache:
    """Kernels by name: in memory, on disk under ``directory``, or being compiled by a subprocess.

    Any number of threads and processes of one user may use one directory. Failures are recorded for
    the lifetime of this object; callers then run without the kernel.
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
        """Folder of this user's kernels for this machine; determined on first use.

        The first of three places that other users can neither write to nor replace: the directory
        given to the constructor, the user's cache folder, the folder of temporary files. Raises
        CacheError if there is none.
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
        """Return kernel ``name`` if it is loaded, else None; do not wait."""
        return self._kernels.get(name)

    def is_compiled(self, name: str) -> bool:
        """Return True if kernel ``name`` is loaded, or its machine code is on disk."""
        try:
            return name in self._kernels or self._is_kept(name)
        except CacheError:
            return False

    def request(self, sources: Iterable[tuple[str, str]]) -> None:
        """Compile and load the kernels of ``sources``, pairs (name, text), in a thread."""
        with self._changed:
            for name, text in sources:
                if name not in self._kernels and name not in self.failures:
                    self._wanted[name] = text
            if self._wanted and self._thread is None:
                thread = threading.Thread(target=self._work, name="dml-kernels", daemon=True)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError as error:  # no more threads can be started
                    self.failures.update(dict.fromkeys(self._wanted, str(error)))
                    self._wanted.clear()

    def wait(self, name: str) -> Kernel | None:
        """Wait for the requested kernel ``name``; return None if its compilation failed."""
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
        """Compile and load source texts by name; return kernels and reasons of failure by name."""
        loaded: dict[str, Kernel] = {}
        try:
            message = self._make(batch)
            missing = [name for name in batch if not self._is_kept(name)]
            with uncollected():
                for name in batch.keys() - set(missing):
                    loaded[name] = load(self.directory / f"{name}.py")
        except Exception as error:  # noqa: BLE001 after any error, the NumPy tier goes on
            message = f"{type(error).__name__}: {error}"
        reason = message or "the compile helper left no kernel"
        return loaded, {name: reason for name in batch if name not in loaded}

    def _make(self, batch: dict[str, str]) -> str:
        """Compile missing kernels in a subprocess; return the end of its stderr if it failed."""
        import subprocess  # noqa: PLC0415 few runs need it

        self._clear(batch)
        for name, text in batch.items():
            publish(self.directory / f"{name}.py", text)
        names = [name for name in batch if not self._is_kept(name)]
        if not names:
            return ""
        root = str(Path(__file__).resolve().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(  # noqa: S603 this interpreter, on names that are digests
            [
                sys.executable,
                "-P",
                "-m",
                "dml.kernels.compiled.compile_worker",
                self.directory,
                *names,
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
        return done.stderr.decode(errors="replace")[-2000:] if done.returncode else ""

    def marker(self, name: str) -> Path:
        """Return the path of the file that marks a kernel's machine code as complete."""
        return self.directory / f"{name}.done"

    @property
    def _folders(self) -> tuple[Path, Path]:
        return self.directory, self.directory / PYCACHE

    def _files(self, name: str) -> list[Path]:
        """Return the files of one kernel on disk: source, machine code, marker, lock."""
        found = [path for folder in self._folders for path in folder.glob(f"{name}.*")]
        return [path for path in found if path.suffix in ENDINGS]

    def _is_kept(self, name: str) -> bool:
        """Return True if a kernel is compiled on disk, and all its files are this user's own."""
        there = self.marker(name).exists()
        return there and all(map(is_own, (*self._folders, *self._files(name))))

    def _clear(self, names: Iterable[str]) -> None:
        """Create the folders; delete, without reading it, each kernel that others could change."""
        if any(os.path.lexists(each) and not is_own(each) for each in self._folders):
            link = self.directory.is_symlink()
            self.directory.unlink() if link else shutil.rmtree(self.directory)
        make_folders(self.directory / PYCACHE)
        for name in names:
            files = self._files(name)
            if not all(map(is_own, files)):
                for path in (self.marker(name), *files):  # first the marker of complete files
                    path.unlink(missing_ok=True)


def publish(path: Path, text: str) -> None:
    """Write ``path`` atomically unless it exists: numba drops code if its time stamp changes."""
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
