/* Root-mean-square norm: out = weight * u with u = x / root and root = sqrt(mean(x^2) + eps). */
#include <stdlib.h>

#include "kernels.h"

#define CHUNKS 32 /* number of partial sums of the weight's gradient: fixed, so that rounding is always the same */

/* Return the inverse of the root. */
float rms_norm_row(const float *x, const float *weight, float *out, int width, float eps) {
    float squares = 0;
    for (int i = 0; i < width; i++) squares += x[i] * x[i];
    float inverse = 1.0f / sqrtf(squares / width + eps);
    for (int i = 0; i < width; i++) out[i] = x[i] * inverse * weight[i];
    return inverse;
}

void rms_norm(const float *x, const float *weight, float *out, float *inverse, int64_t rows, int width, float eps) {
    PARALLEL_ROWS
    for (int64_t row = 0; row < rows; row++)
        inverse[row] = rms_norm_row(x + row * width, weight, out + row * width, width, eps);
}

/* x_grad = (g w - u mean(g w u)) / root; weight_grad += g u. */
static void norm_row_back(const float *x, const float *weight, float inverse, const float *grad, float *x_grad,
                          float *weight_grad, int width) {
    float along = 0;
    for (int i = 0; i < width; i++) {
        float unit = x[i] * inverse;
        weight_grad[i] += grad[i] * unit;
        along += grad[i] * weight[i] * unit;
    }
    along /= width;
    for (int i = 0; i < width; i++) x_grad[i] = (grad[i] * weight[i] - x[i] * inverse * along) * inverse;
}

int rms_norm_back(const float *x, const float *weight, const float *inverse, const float *grad, float *x_grad,
                   float *weight_grad, int64_t rows, int width) {
    float *partial = calloc((size_t)CHUNKS * width, sizeof(float));
    if (!partial) return 0;
    PARALLEL_ROWS
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        for (int64_t row = rows * chunk / CHUNKS; row < rows * (chunk + 1) / CHUNKS; row++)
            norm_row_back(x + row * width, weight, inverse[row], grad + row * width, x_grad + row * width,
                          partial + (int64_t)chunk * width, width);
    for (int i = 0; i < width; i++) {
        weight_grad[i] = 0;
        for (int chunk = 0; chunk < CHUNKS; chunk++) weight_grad[i] += partial[(int64_t)chunk * width + i];
    }
    free(partial);
    return 1;
}
