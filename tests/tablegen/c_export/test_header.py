"""Headers of C: compiled by the machine's compiler, equal to the kernels; refusals."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from qpruntime import InputError, TableError, open_table, project
from tablegen.c_export.header import KNOWN, export_c
from tests.tools.cases import every_case, refuses

CC, CXX = shutil.which("cc"), shutil.which("c++")
needs_cc = pytest.mark.skipif(CC is None, reason="there is no C compiler cc here")
#: Sums of products may be fused in one and not in the other; three roundings.
CLOSE = 1e-15
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    """The headers of all tables in a folder."""
    folder = tmp_path_factory.mktemp("headers")
    for name in KNOWN:
        export_c(f"{name}-compact", folder / f"qp_{name}.h")
    return folder


@pytest.fixture(scope="module")
def library(headers):
    """All of them in one shared library, as R would load it."""
    source = "#define QP_EXPORT\n" + "".join(f'#include "qp_{name}.h"\n' for name in KNOWN)
    (headers / "all.c").write_text(source)
    run = [CC, "-std=c99", *STRICT, "-shared", "-fPIC", "all.c", "-o", "all.so", "-lm"]
    subprocess.run(run, cwd=headers, check=True, timeout=120)
    return ctypes.CDLL(str(headers / "all.so"))


def cavities(name):
    """Near and far, narrow and wide, every branch of the closed forms."""
    rng = np.random.default_rng(7)
    n = 4000
    sigma = 10.0 ** rng.uniform(-5.0, 5.0, n)
    mu = rng.standard_normal(n) * 10.0 ** rng.uniform(-2.0, 2.0, n) * np.maximum(sigma, 1.0)
    y = rng.choice([-1.0, 1.0], n)
    if name == "poisson":
        y = np.floor(10.0 ** rng.uniform(0.0, 2.69, n)) - rng.integers(0, 2, n)
        sigma, mu = 10.0 ** rng.uniform(-2.0, 2.0, n), mu / np.maximum(sigma, 1.0)
    mu[:6], sigma[:6] = [1e12, -1e12, 0.0, 0.0, 1e-300, -1e9], [1.0, 1.0, 1e-6, 1e6, 1.0, 1e-3]
    return mu, sigma, y


def called(library, name, mu, sigma, y):
    """What ``qp_NAME_project`` fills: log Z, mean, standard deviation, sigma*."""
    mu, sigma, y = (np.ascontiguousarray(a, dtype=float) for a in (mu, sigma, y))
    found = np.empty((4, mu.size))
    pointer = ctypes.POINTER(ctypes.c_double)
    arrays = [a.ctypes.data_as(pointer) for a in (mu, sigma, y, *found)]
    getattr(library, f"qp_{name}_project")(ctypes.byref(ctypes.c_int(mu.size)), *arrays)
    return found


@needs_cc
@every_case("name", KNOWN)
def test_equal_to_the_kernels(library, name):
    mu, sigma, y = cavities(name)
    log_z, mean, std, star = called(library, name, mu, sigma, y)
    kernels = project(name, mu, sigma, y, table=f"{name}-compact")
    np.testing.assert_allclose(star, kernels[1], rtol=CLOSE, atol=0.0)
    np.testing.assert_allclose(mean, kernels[0], rtol=CLOSE, atol=0.0)
    np.testing.assert_allclose(std, project(name, mu, sigma, y, "ep")[1], rtol=CLOSE, atol=0.0)
    assert (star <= std).all()
    assert np.isfinite(log_z).all()


@needs_cc
@every_case("name", KNOWN)
def test_against_references(library, reference, name):
    """To the 1e-9 of the tables: values that an independent quadrature gave to 20 digits."""
    r = reference(name)
    held = r.y <= 500.0
    star = called(library, name, r.mu[held], r.sigma[held], r.y[held])[3]
    np.testing.assert_allclose(star, r.sigma_star[held], rtol=1e-9)


@needs_cc
def test_what_is_no_cavity_gives_nan(library):
    mu, sigma, y = [0.0, np.nan, 0.0, 0.0, np.inf], [0.0, 1.0, -1.0, 1.0, 1.0], [1, 1, 1, 0.5, 1]
    for name in KNOWN:
        assert np.isnan(called(library, name, mu, sigma, y)).all()
    _, mean, _, star = called(library, "poisson", [1.0, 90.0], [1.0, 1.0], [501.0, 501.0])
    assert np.isfinite(mean).all()
    assert np.isnan(star[0])
    assert star[1] == pytest.approx(project("poisson", 90.0, 1.0, 501)[1], rel=1e-10)


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler c++ here")
def test_called_from_cpp(headers):
    """Two headers in one file, inline, and the answer printed with all its digits."""
    (headers / "main.cpp").write_text(
        '#include "qp_probit.h"\n#include "qp_heaviside.h"\n#include <cstdio>\n'
        "int main() {\n"
        "  double log_z, mean, std;\n"
        "  qp_probit_moments(0.3, 0.8, -1, &log_z, &mean, &std);\n"
        '  std::printf("%.17g %.17g %.17g", mean, qp_probit_sigma_star(0.3, 0.8, -1),\n'
        "              qp_heaviside_sigma_star(0.3, 0.8, 1));\n}\n"
    )
    build = [CXX, "-std=c++11", *STRICT, "main.cpp", "-o", "main", "-lm"]
    subprocess.run(build, cwd=headers, check=True, timeout=120)
    text = subprocess.run([headers / "main"], capture_output=True, text=True, check=True).stdout
    mean, star = project("probit", 0.3, 0.8, -1)
    wanted = [float(mean), float(star), float(project("heaviside", 0.3, 0.8, 1)[1])]
    np.testing.assert_allclose([float(word) for word in text.split()], wanted, rtol=CLOSE)


def test_the_coefficients_are_those_of_the_table(headers):
    """Every double reads back; the hash is in the header."""
    for name in KNOWN:
        table = open_table(f"{name}-compact")
        text = (headers / f"qp_{name}.h").read_text()
        inside = text.split(f"qp_{name}_table[] = {{")[1].split("}")[0]
        read = np.array([float(word) for word in inside.split(",")])
        np.testing.assert_array_equal(read, table.values.reshape(-1))
        assert table.sha256 in text
        assert "1e-09" in text


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"ends in \.h, got probit\.c; name it probit\.h"):
        export_c("probit-compact", "probit.c")
    path, metadata = export_c("heaviside-compact")
    assert path == tmp_path / "qp_heaviside.h"
    assert metadata.kind == "compact"
    before = path.read_bytes()
    refuses("exists; replace it with --force", export_c, "heaviside-compact", error=TableError)
    export_c("heaviside-compact", force=True)
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="C is written of compact tables of heaviside, poisson"):
        export_c(open_table("probit-compact").path.with_name("logistic-power-0_5.h5"), "x.h")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["qp_heaviside.h"]
