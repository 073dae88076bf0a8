"""Sparse power EP and QP by inducing points: N rows in O(N M^2), in chunks of any storage.

The method is that of Bui, Yan & Turner (2017), with the projection of f itself, so that every table
and rule of `qpruntime.projection` applies. Z has M inducing inputs, k(Z, Z) = L L^T, phi_n = L^-1
k(Z, x_n), r_n = k(x_n, x_n) - |phi_n|^2. A row has one site (tau, nu) of f_n about its prior mean,
even if it observes a multiple of f_n. The posterior precision of w ~ N(0, I) is B = I + sum T_n
phi_n phi_n^T, T = tau/(1 + power r tau). Power 1 is FITC, which is the dense engine on FITC's
covariance, and powers near 0 approach the variational bound.
"""
