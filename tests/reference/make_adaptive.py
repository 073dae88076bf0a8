"""Write adaptive.csv: tilted densities with heavy tails, two peaks, a cusp, or a far bend.

Run ``python -m tests.reference.make_adaptive``. Panels are laid by hand, ever smaller towards given
points; what is done on them is that of `tilted`. Every row is computed twice, on other panels with
other nodes and digits; the columns after y are as in `make_projection`.
"""

from itertools import pairwise

from mpmath import mp, mpf

from tests.reference.tilted import Resolution, deviation, moments, write

COARSE, FINE = Resolution(20, 2.0, 75, 40), Resolution(24, 1.6, 80, 50)
HEADER = ("likelihood", "a", "b", "mu", "sigma", "y", "log_z", "mean", "variance", "sigma_star")


def student(f, y, nu, scale):
    return -(nu + 1) / 2 * mp.log1p(((f - y) / scale) ** 2 / nu)


def logistic(f, y, a, b):
    return -mp.log1p(mp.exp(-y * f))


def exponential(f, y, a, b):
    """Counts of rate exp(f), less their largest log probability: y may be huge."""
    g = f - mp.log(y)
    return y * (g + 1 - mp.exp(g))


def cusp(f, y, a, b):
    return -mp.sqrt(abs(f - y))


# Likelihood, its two parameters, mu, sigma, y, points that panels shrink towards, their end there.
ROWS = [
    (student, 1.0, 0.1, 0.0, 1.0, 6.5, (0.0, 6.5), 1e-4),
    (student, 2.0, 0.1, 0.0, 1.0, 5.0, (0.0, 5.0), 1e-4),
    (student, 3.0, 0.2, 0.0, 1.0, 6.0, (0.0, 6.0), 1e-4),
    (student, 4.0, 0.1, 0.0, 1.0, 5.0, (0.0, 5.0), 1e-4),
    (student, 4.0, 0.5, 0.0, 3.0, 20.0, (0.0, 20.0), 1e-3),
    (student, 1.0, 1.0, 0.0, 1e8, 3.0, (3.0,), 1e-2),
    (student, 1.0, 1.0, 5e8, 1e8, 3.0, (3.0, 5e8), 1e-2),
    (logistic, 0.0, 0.0, 50.0, 10.0, 1.0, (50.0, 0.0), 0.1),
    (logistic, 0.0, 0.0, -1e10, 1e8, 1.0, (0.0,), 0.1),
    (exponential, 0.0, 0.0, 0.0, 1.0, 1000.0, (6.9,), 1e-3),
    (exponential, 0.0, 0.0, 10.0, 100.0, 1e9, (20.723265836946414,), 1e-7),
    (exponential, 0.0, 0.0, 0.0, 1e8, 3.0, (1.0, 3.0, 4.0, 5.0, -10.0, -20.0), 1e-1),
    (cusp, 0.0, 0.0, 0.5, 1.0, 0.0, (0.0, 0.5), 1e-24),
    (cusp, 0.0, 0.0, 0.0, 1e6, 0.0, (0.0,), 1e-24),
]


def integrate(log_p, a, b, mu, sigma, y, points, least, resolution):
    """Return log Z, mean, variance and QP standard deviation on geometric panels."""
    mu, sigma, y, a, b, least = map(mpf, (mu, sigma, y, a, b, least))

    def log_density(f):
        return log_p(f, y, a, b) - ((f - mu) / sigma) ** 2 / 2

    edges = set()
    far = 14 * sigma + max(abs(mu - p) for p in points)
    for p in map(mpf, points):
        edges.add(p)
        step = least
        while step < far:
            edges.update((p - step, p + step))
            step *= resolution.width
    edges = sorted(e for e in edges)
    levels = [log_density(e + (least / 1000 if e == y else 0)) for e in edges]
    # Mass times the distance cubed is what the variance needs.
    weighed = [
        v + 3 * mp.log(least + abs(e - points[0])) for v, e in zip(levels, edges, strict=True)
    ]
    kept = [i for i, v in enumerate(weighed) if v > max(weighed) - resolution.drop]
    edges = edges[max(kept[0] - 1, 0) : kept[-1] + 2]
    panels = [
        (low + (high - low) * k / 6, (high - low) / 6)
        for low, high in pairwise(edges)
        for k in range(6)
    ]
    top = max(levels)
    given = log_density, top, mu, panels, resolution
    density, masses, total, first, second = moments(*given)
    log_z = mp.log(total / sigma) + top - mp.log(2 * mp.pi) / 2
    # Where the mass at an end is nothing, the polynomial's share of it may be less than that.
    full = [i for i, m in enumerate(masses) if m > mpf(10) ** -33 * total]
    held = slice(full[0], full[-1] + 1)
    star = deviation(panels[held], density[held], masses[held], resolution)
    return log_z, mu + first, second - first**2, star


def main():
    rows = []
    for log_p, *numbers, points, least in ROWS:
        answers = []
        for resolution in (COARSE, FINE):
            with mp.workdps(resolution.digits):
                answers.append(integrate(log_p, *numbers, points, least, resolution))
        scale = [1, mp.sqrt(answers[1][2]), answers[1][2], answers[1][3]]
        errors = [abs(p - q) / s for p, q, s in zip(*answers, scale, strict=True)]
        error = sum(errors)
        print(log_p.__name__, numbers, mp.nstr(error, 2), flush=True)
        if not error < 1e-15:
            raise ArithmeticError("the two resolutions disagree")
        text = [mp.nstr(v, 18, strip_zeros=False) for v in answers[1]]
        rows.append((log_p.__name__, *map(repr, numbers), *text))
    write("adaptive", HEADER, rows)


if __name__ == "__main__":
    main()
