/* p(y|f) = Phi(y f), y = -1 or +1. */

static inline int qp_probit_is_outcome(double y) { return y == 1.0 || y == -1.0; }

static inline void qp_probit_tilted(double mu, double sigma, double y, double *log_z, double *mean,
                                    double *variance)
{
    double s2 = sigma * sigma, root = sqrt(1.0 + s2), z = y * mu / root, r, sum, v;
    qp_probit_series(z, &r, &sum, &v);
    *log_z = qp_log_ndtr(z);
    *mean = z < 0.0 ? y * (z + s2 * sum) / root : mu + y * s2 * r / root;
    *variance = s2 / (1.0 + s2) * (1.0 + s2 * v);
}

/* sigma* over the tilted standard deviation. */
static inline double qp_probit_ratio(double mu, double sigma, double y)
{
    double s2 = sigma * sigma, k = y * mu / sqrt(1.0 + s2), u, v;
    double half_log10_e = 0.5 / log(10.0);
    if (k < -1e8) {
        u = -1.0;
        v = 2.0 * half_log10_e * log(qp_max(sigma / -k, 1e-300));
    } else {
        double root = sqrt(16.0 + k * k), p = 0.5 * (root - k);
        u = k / root;
        v = half_log10_e * log(s2 / (1.0 + p * p));
    }
    return qp_spline_2(qp_probit_table, qp_probit_first, QP_PROBIT_FIRST, qp_probit_second,
                       QP_PROBIT_SECOND, u, v);
}
