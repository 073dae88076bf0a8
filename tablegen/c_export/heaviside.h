/* p(y|f) = 1 where y f > 0, 0 elsewhere; y = -1 or +1. */

static inline int qp_heaviside_is_outcome(double y) { return y == 1.0 || y == -1.0; }

static inline void qp_heaviside_tilted(double mu, double sigma, double y, double *log_z,
                                       double *mean, double *variance)
{
    double z = y * mu / sigma, r, sum, v;
    if (z > 1e8) {
        *log_z = 0.0;
        *mean = mu;
        *variance = sigma * sigma;
        return;
    }
    qp_probit_series(z, &r, &sum, &v);
    *log_z = qp_log_ndtr(z);
    *mean = z < 0.0 ? y * sigma * sum : mu + y * sigma * r;
    *variance = sigma * sigma * v;
}

static inline double qp_heaviside_ratio(double mu, double sigma, double y)
{
    double z = y * mu / sigma;
    if (!(fabs(z) < 1e8)) z = copysign(1e8, z);
    return qp_spline_1(qp_heaviside_table, qp_heaviside_second, QP_HEAVISIDE_SECOND,
                       z / sqrt(16.0 + z * z));
}
