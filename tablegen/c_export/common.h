#ifndef QP_COMMON_H
#define QP_COMMON_H
/* What headers of all likelihoods share; the first that is included brings it. */

#include <math.h>
#include <stddef.h>

#define QP_SQRT1_2 0.70710678118654752440
#define QP_SQRT_2_PI 0.79788456080286535588
#define QP_INV_SQRT_PI 0.56418958354775628695
#define QP_INV_SQRT_2PI 0.39894228040143267794
#define QP_HALF_LOG_2PI 0.91893853320467274178

static inline double qp_min(double a, double b) { return a < b ? a : b; }
static inline double qp_max(double a, double b) { return a > b ? a : b; }

/* exp(x^2) erfc(x) for x >= 0, by rational forms of W. J. Cody (1969). */
static inline double qp_erfcx(double x)
{
    static const double a[] = {2.15311535474403846e-8,  5.64188496988670089e-1,
                               8.88314979438837594e0,   6.61191906371416295e1,
                               2.98635138197400131e2,   8.81952221241769090e2,
                               1.71204761263407058e3,   2.05107837782607147e3,
                               1.23033935479799725e3};
    static const double b[] = {1.57449261107098347e1, 1.17693950891312499e2,
                               5.37181101862009858e2, 1.62138957456669019e3,
                               3.29079923573345963e3, 4.36261909014324716e3,
                               3.43936767414372164e3, 1.23033935480374942e3};
    static const double c[] = {1.63153871373020978e-2, 3.05326634961232344e-1,
                               3.60344899949804439e-1, 1.25781726111229246e-1,
                               1.60837851487422766e-2, 6.58749161529837803e-4};
    static const double d[] = {2.56852019228982242e0, 1.87295284992346725e0,
                               5.27905102951428412e-1, 6.05183413124413191e-2,
                               2.33520497626869185e-3};
    double p, q, s;
    int k;
    if (x < 0.46875) return exp(x * x) * erfc(x);
    if (x <= 4.0) {
        p = a[0];
        q = 1.0;
        for (k = 0; k < 8; k++) {
            p = p * x + a[k + 1];
            q = q * x + b[k];
        }
        return p / q;
    }
    if (x > 1e8) return QP_INV_SQRT_PI / x;
    s = 1.0 / (x * x);
    p = c[0];
    q = 1.0;
    for (k = 0; k < 5; k++) {
        p = p * s + c[k + 1];
        q = q * s + d[k];
    }
    return (QP_INV_SQRT_PI - s * p / q) / x;
}

/* log of the normal distribution function. */
static inline double qp_log_ndtr(double x)
{
    if (x > 0.0) return log1p(-0.5 * erfc(x * QP_SQRT1_2));
    if (x > -1.0) return log(0.5 * erfc(-x * QP_SQRT1_2));
    return log(0.5 * qp_erfcx(-x * QP_SQRT1_2)) - 0.5 * x * x;
}

/* r, r + z and 1 - r (r + z) for r = phi(z)/Phi(z); far left by Laplace's continued fraction. */
static inline void qp_probit_series(double z, double *r, double *sum, double *variance)
{
    double x = -z, t = -z, d, e;
    int n;
    if (z > -5.0) {
        if (z > 0.0) {
            double below = 1.0 - 0.5 * erfc(z * QP_SQRT1_2);
            *r = QP_INV_SQRT_2PI * exp(-0.5 * z * z) / below;
        } else {
            *r = QP_SQRT_2_PI / qp_erfcx(-z * QP_SQRT1_2);
        }
        *sum = *r + z;
        *variance = 1.0 - *r * *sum;
        return;
    }
    for (n = x < 12.0 ? 32 : 12; n > 2; n--) t = x + n / t;
    e = 2.0 / t;
    d = 1.0 / (x + e);
    *r = x + d;
    *sum = d;
    *variance = (e - d) / (x + e);
}

/* Values at 0 <= t <= 1 of the six uniform quintic B-splines that are not zero there. */
static inline void qp_weights(double t, double *w)
{
    double s = 1.0 - t, t2 = t * t, s2 = s * s;
    double q = 1.0 / 120.0;
    w[0] = s2 * s2 * s * q;
    w[1] = 26.0 * q + t * (-50.0 * q + t * (20.0 * q + t * (20.0 * q + t * (-20.0 * q + 5.0 * q * t))));
    w[2] = 66.0 * q + t2 * (-60.0 * q + t2 * (30.0 * q - 10.0 * q * t));
    w[3] = 66.0 * q + s2 * (-60.0 * q + s2 * (30.0 * q - 10.0 * q * s));
    w[4] = 26.0 * q + s * (-50.0 * q + s * (20.0 * q + s * (20.0 * q + s * (-20.0 * q + 5.0 * q * s))));
    w[5] = t2 * t2 * t * q;
}

/* Cell of v on an axis of `nodes` coefficients, and its place in the cell. */
static inline int qp_cell(double v, const double *axis, int nodes, double *place)
{
    double at = (qp_min(qp_max(v, axis[0]), axis[1]) - axis[0]) * axis[2];
    int cell = (int)at;
    if (cell > nodes - 6) cell = nodes - 6;
    if (cell < 0) cell = 0;
    *place = at - cell;
    return cell;
}

/* Quintic spline along one axis; `axis` holds start, stop and cells per unit. */
static inline double qp_spline_1(const double *values, const double *axis, int nodes, double v)
{
    double w[6], t;
    const double *c = values + qp_cell(v, axis, nodes, &t);
    qp_weights(t, w);
    return ((w[0] * c[0] + w[1] * c[1]) + w[2] * c[2]) + ((w[3] * c[3] + w[4] * c[4]) + w[5] * c[5]);
}

/* Quintic spline along two axes, the second of which runs fastest. */
static inline double qp_spline_2(const double *values, const double *first, int rows,
                                 const double *second, int columns, double u, double v)
{
    double x[6], w[6], s[6], t;
    int i = qp_cell(u, first, rows, &t), j, k;
    qp_weights(t, x);
    j = qp_cell(v, second, columns, &t);
    qp_weights(t, w);
    for (k = 0; k < 6; k++) {
        const double *c = values + (ptrdiff_t)i * columns + j + k;
        s[k] = x[0] * c[0] + x[1] * c[columns] + x[2] * c[2 * columns];
        s[k] += x[3] * c[3 * columns] + x[4] * c[4 * columns] + x[5] * c[5 * columns];
    }
    return ((w[0] * s[0] + w[1] * s[1]) + (w[2] * s[2] + w[3] * s[3])) + (w[4] * s[4] + w[5] * s[5]);
}

#endif /* QP_COMMON_H */
