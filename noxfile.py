"""Sessions of the repository: lint, types, tests, kernels, integration, build; on a GPU its tests, and a sanitizer."""

import os
import shutil
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "tests", "kernels", "integration", "integration_gpu", "build"]

# Without byte code `import torch` takes 6 s instead of 2.5 s, in every test process.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PACKAGES = ["device-core", "export-passes", "cuda-kernels", "qwen35-tiny", "qwen35-moe"]
# Two workers keep both cores of a small machine busy; a file's tests stay together and share its fixtures.
PARALLEL = ["-n", "2", "--dist", "loadfile"]


def sync(session: nox.Session, *selection: str) -> None:
    """Bring the session's environment to exactly the locked versions of `selection`."""
    session.run_install(
        "uv", "sync", "--locked", "--exact", "--quiet", "--no-default-groups", *selection,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}, external=True,
    )  # fmt: skip


def need_gpu(session: nox.Session) -> None:
    """Skip the session where there is no CUDA device."""
    available = session.run("python", "-c", "import torch; print(torch.cuda.is_available())", silent=True)
    if available.strip() != "True":
        session.skip("no CUDA device on this machine: the tests marked gpu were not run")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly, over the sources of every package."""
    sync(session, "--group", "types")
    session.run("mypy", *(f"packages/{package}/src" for package in PACKAGES))


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Run one package's tests with only its own dependencies installed."""
    sync(session, "--package", package, "--group", "test")
    session.run("pytest", *PARALLEL, f"packages/{package}/tests", *session.posargs)


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile every shipped kernel configuration and report registers, spills and shared memory."""
    sync(session, "--package", "cuda-kernels")
    session.run("python", "-m", "cuda_kernels.report", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Run the cross-package tests on the CPU."""
    sync(session, "--group", "test")
    session.run("pytest", *PARALLEL, "-m", "not gpu", "integration", *session.posargs)


@nox.session
def integration_gpu(session: nox.Session) -> None:
    """Run every test marked `gpu`; skipped where there is no CUDA device."""
    sync(session, "--group", "test")
    need_gpu(session)
    session.run("pytest", "-m", "gpu", "packages", "integration", *session.posargs)


@nox.session
@nox.parametrize("tool", ["memcheck", "racecheck"], ids=["memcheck", "racecheck"])
def sanitizer(session: nox.Session, tool: str) -> None:
    """Run tests marked `gpu` under a tool of CUDA's compute-sanitizer; slow, so name what to run: `-- PATH -k WORD`."""
    sync(session, "--group", "test")
    need_gpu(session)
    program = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if program is None:
        session.error("compute-sanitizer: expected on PATH or in /usr/local/cuda/bin; it comes with the CUDA toolkit")
    session.run(
        # Tests provoke failing calls of the driver on purpose; faults of kernels are what is looked for.
        program, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9",
        "python", "-m", "pytest", "-m", "gpu", *(session.posargs or ["packages", "integration"]),
        external=True,
    )  # fmt: skip


@nox.session
def build(session: nox.Session) -> None:
    """Build all wheels, install them together in a clean environment, check their bounds, run the CLI from them."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, versions = Path(folder) / "wheels", Path(folder) / "versions.txt"
        session.run("uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(wheels), external=True)
        session.run(
            "uv", "export", "--quiet", "--locked", "--no-dev", "--no-emit-workspace", "--no-hashes",
            "--output-file", str(versions), external=True,
        )  # fmt: skip
        built = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
        if len(built) != len(PACKAGES):
            session.error(f"expected {len(PACKAGES)} wheels, built {built}")
        session.install("--constraint", str(versions), *built)
        session.run("uv", "pip", "check", external=True)
        session.cd(folder)  # so that nothing is imported from the checkout
        cache = {"QWEN35_MOE_CACHE": str(Path(folder) / "cache")}
        session.run("qwen35-moe", "--version")
        session.run("qwen35-moe", "run", "--prompt", "Once upon a time", "--max-new-tokens", "16", env=cache)
