/* p(y|f) = f^(2y) exp(-f^2)/y!, y = 0, 1, 2, ...; sigma* up to the largest count above, and for
   every count where the smaller of the two peaks is gone. With s = sigma/sqrt(1 + 2 sigma^2) and
   b = |mu|/(sigma sqrt(1 + 2 sigma^2)), f/s is tilted as g^(2y) N(g | b, 1). */

static inline int qp_poisson_is_outcome(double y)
{
    return y >= 0.0 && y <= 1e6 && y == floor(y);
}

/* log(1 + t) - t. */
static inline double qp_log1p_less(double t)
{
    double u, w, p;
    int k;
    if (fabs(t) > 0.1) return log1p(t) - t;
    u = t / (2.0 + t);
    w = u * u;
    p = 1.0 / 13.0;
    for (k = 11; k > 1; k -= 2) p = p * w + 1.0 / k;
    return 2.0 * u * w * p - t * u;
}

/* x log x - x - log x! for x >= 0. */
static inline double qp_log_peak(double x)
{
    double i;
    if (x < 16.0) return x > 0.0 ? x * log(x) - x - lgamma(x + 1.0) : 0.0;
    i = 1.0 / (x * x);
    i = (1.0 / 12.0 - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0)))) / x;
    return -0.5 * log(x) - QP_HALF_LOG_2PI - i;
}

/* Few counts, by a recursion in which nothing is subtracted. */
static inline void qp_poisson_by_recursion(double mu, double sigma, double y, double *log_z,
                                           double *mean, double *variance)
{
    double a = 1.0 + 2.0 * sigma * sigma, centre = mu / a, s2 = sigma * sigma / a;
    double x = (mu / sigma) * (mu / sigma) / a, t = 1.0, before = 1.0, p = 1.0, product = 1.0;
    int j;
    *log_z = -0.5 * log1p(2.0 * sigma * sigma) - mu * centre;
    for (j = 0; j < (int)y; j++) {
        p = x * t + (2 * j + 1);
        product *= (centre * centre * t + (2 * j + 1) * s2) / (j + 1);
        if (!(product > 1e-100 && product < 1e100)) {
            *log_z += log(product);
            product = 1.0;
        }
        before = t;
        t = 1.0 + (2 * j + 2) * t / p;
    }
    *log_z += log(product);
    *mean = centre * t;
    *variance = s2 * (1.0 + 2.0 * y * ((2.0 * y - 1.0) * t - 2.0 * y * before) / p);
}

/* Many, by the trapezoid rule about the right peak, onto which the left one is folded. */
static inline void qp_poisson_by_sum(double mu, double sigma, double y, double *log_z,
                                     double *mean, double *variance)
{
    double root = sqrt(1.0 + 2.0 * sigma * sigma), b = fabs(mu) / sigma / root, s = sigma / root;
    double g1 = 0.5 * (b + sqrt(b * b + 8.0 * y)), n = 2.0 * y, h, guess, rest;
    double mass = 0.0, first = 0.0, second = 0.0, folded = 0.0, f1, e, peak, far;
    int j;
    h = 0.6 / sqrt(1.0 + n / (g1 * g1));
    guess = g1 * tanh(b * g1);
    rest = g1 - guess;
    for (j = -15; j <= 15; j++) {
        double d = h * j, g = g1 + d, x = 2.0 * b * g, shift;
        double k = exp(n * qp_log1p_less(d / g1) - 0.5 * d * d);
        if (x > 60.0) {
            shift = d + rest;
        } else {
            e = exp(-x);
            shift = x > 1.0 ? d + rest - 2.0 * g * e / (1.0 + e)
                            : -g * expm1(-x) / (1.0 + e) - guess;
            k *= 1.0 + e;
            folded += k * g * g * 4.0 * e / ((1.0 + e) * (1.0 + e));
        }
        mass += k;
        first += k * shift;
        second += k * shift * shift;
    }
    first /= mass;
    f1 = s * g1;
    e = (f1 * f1 - y) / y;
    peak = y * (e > -0.5 ? qp_log1p_less(e) : log(f1 * f1 / y) - e);
    far = sigma > 0.7 ? (f1 - fabs(mu)) / sigma : 2.0 * sigma * y * e / f1;
    *log_z = -0.5 * log1p(2.0 * sigma * sigma) - QP_HALF_LOG_2PI + qp_log_peak(y) + peak
             - 0.5 * far * far + log(h * mass);
    *mean = copysign(s * (guess + first), mu);
    *variance = s * s * (second / mass - first * first + folded / mass);
}

static inline void qp_poisson_tilted(double mu, double sigma, double y, double *log_z, double *mean,
                                     double *variance)
{
    double a = 1.0 + 2.0 * sigma * sigma;
    if (fabs(mu) > 1e70 * sigma * sqrt(a)) {
        *mean = mu / a;
        *log_z = 2.0 * y * log(fabs(*mean)) - lgamma(y + 1.0) - 0.5 * log(a) - mu * *mean;
        *variance = sigma * sigma / a;
    } else if (y <= 50.0) {
        qp_poisson_by_recursion(mu, sigma, y, log_z, mean, variance);
    } else {
        qp_poisson_by_sum(mu, sigma, y, log_z, mean, variance);
    }
}

/* The ratio where one peak is left: a series of six terms in e, polynomials in w. */
static inline double qp_poisson_one_peak(double n, double b)
{
TAILS
    double g1 = 0.5 * (b + sqrt(b * b + 4.0 * n)), a = n / (g1 * g1), w = a / (1.0 + a), e = w / n;
    double total = 0.0, p;
    int k, i;
    for (k = TERMS - 1; k >= 0; k--) {
        p = 0.0;
        for (i = 0; i < counts[k]; i++) p = p * w + tails[k][i];
        total = k == TERMS - 1 ? e * p : e * (p + total);
    }
    return 1.0 + w * w * total;
}

static inline double qp_poisson_ratio(double mu, double sigma, double y)
{
    double s2 = sigma * sigma, b2 = mu * mu / (s2 * (1.0 + 2.0 * s2)), w2 = b2 * (b2 + 8.0 * y);
    if (y == 0.0) return 1.0;
    if (w2 > 6400.0) return qp_poisson_one_peak(2.0 * y, sqrt(b2));
    if (y > QP_POISSON_ROWS) return NAN;
    return qp_spline_1(qp_poisson_table + ((ptrdiff_t)y - 1) * QP_POISSON_SECOND, qp_poisson_second,
                       QP_POISSON_SECOND, log(1.0 + w2 * 0.0625));
}
