/* Definitions that all kernels share. Everything is float32; matrices are row-major and without gaps unless a stride is given.

Loops over rows are divided among OpenMP threads, as many as torch has in the calling thread. Each number is computed
by one thread, and in an order that does not depend on how many there are.

Kernels that allocate memory return whether they got it; if not, their output is undefined. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define PARALLEL_ROWS _Pragma("omp parallel for schedule(static)")

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

static inline int smaller(int a, int b) { return a < b ? a : b; }

/* The maximum of `highest` and all of x. Declared as a reduction, it is vectorised; because of NaN the compiler would
not do so by itself. */
static inline float highest_of(const float *x, int count, float highest) {
    _Pragma("omp simd reduction(max : highest)")
    for (int i = 0; i < count; i++) highest = x[i] > highest ? x[i] : highest;
    return highest;
}

/* exp(x) to about one unit in the last place; 0 where that is below the normal numbers, NaN for NaN.
x = n log 2 + r with |r| <= log(2) / 2, exp(r) by its series: all of it vectorises. */
static inline float exp_of(float x) {
    float bounded = x > 89.0f ? 89.0f : x;
    bounded = bounded < -88.0f ? -88.0f : bounded;
    float n = rintf(bounded * 1.44269504f);
    /* log 2 in two parts, by functions so that the compiler does not add them up. */
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, bounded));
    float series = 1.9875691500e-4f;
    series = series * r + 1.3981999507e-3f;
    series = series * r + 8.3334519073e-3f;
    series = series * r + 4.1665795894e-2f;
    series = series * r + 1.6666665459e-1f;
    series = series * r + 5.0000001201e-1f;
    series = series * r * r + r + 1.0f;
    /* In two factors: 2^128 is not a float32 number. */
    int32_t half = (int32_t)n / 2, rest = (int32_t)n - half;
    union { uint32_t bits; float value; } first, second;
    first.bits = (uint32_t)(half + 127) << 23;
    second.bits = (uint32_t)(rest + 127) << 23;
    return x < -87.3365f ? 0.0f : series * first.value * second.value;
}

/* The matrix product of torch's BLAS, set by `use_sgemm`. */
typedef void sgemm_t(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                     const int *, const float *, const int *, const float *, float *, const int *);
extern sgemm_t *egpo_sgemm;

/* C = alpha op(A) op(B) + beta C, with C of m x n and k terms in each sum; op transposes where its letter is 'T'.
BLAS counts by columns, for which a row-major matrix is its own transpose. */
static inline void product(char op_a, char op_b, int m, int n, int k, float alpha, const float *a, int stride_a,
                           const float *b, int stride_b, float beta, float *c, int stride_c) {
    if (m && n && k) egpo_sgemm(&op_b, &op_a, &n, &m, &k, &alpha, b, &stride_b, a, &stride_a, &beta, c, &stride_c);
}

/* Operations on one row, shared by training and sampling. */
float rms_norm_row(const float *x, const float *weight, float *out, int width, float eps);
float head_row(const float *x, const float *weight, const float *cosine, const float *sine, float *out, int width,
               float eps);
void swiglu_row(const float *gate, const float *up, float *out, int64_t count);
