/* log Z, mean and standard deviation of p(y|f) N(f | mu, sigma^2)/Z; sigma is a standard
   deviation. NaN for what is no cavity or no observation. */
QP_API void qp_NAME_moments(double mu, double sigma, double y, double *log_z, double *mean,
                            double *std)
{
    double variance;
    if (!(sigma > 0.0 && sigma < HUGE_VAL && fabs(mu) < HUGE_VAL && qp_NAME_is_outcome(y))) {
        *log_z = *mean = *std = NAN;
        return;
    }
    qp_NAME_tilted(mu, sigma, y, log_z, mean, &variance);
    *std = sqrt(variance);
}

/* The standard deviation of quantile propagation; NaN as above, and where the table does not
   answer: see the top of this file. */
QP_API double qp_NAME_sigma_star(double mu, double sigma, double y)
{
    double log_z, mean, std;
    qp_NAME_moments(mu, sigma, y, &log_z, &mean, &std);
    if (isnan(std)) return NAN;
    mu = qp_NAME_ratio(mu, sigma, y);
    return isnan(mu) ? NAN : std * qp_min(mu, 1.0);
}

/* All of the above for n cavities, by pointers alone, as .C of R hands them over. */
QP_API void qp_NAME_project(const int *n, const double *mu, const double *sigma, const double *y,
                            double *log_z, double *mean, double *std, double *sigma_star)
{
    int i;
    for (i = 0; i < *n; i++) {
        qp_NAME_moments(mu[i], sigma[i], y[i], log_z + i, mean + i, std + i);
        sigma_star[i] = qp_NAME_sigma_star(mu[i], sigma[i], y[i]);
    }
}
