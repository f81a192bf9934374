/* Heads of queries or keys before attention: the norm, if the model has one, then the rotation of the pairs
(x[i], x[i + d/2]) by the token's angle. N tokens, H heads, d the width of a head. */
#include <stdlib.h>

#include "kernels.h"

#define CHUNKS 32 /* number of partial sums of the weight's gradient: fixed, so that rounding is always the same */

/* Return the inverse of the norm's root; 1 if there is no norm. */
float head_row(const float *x, const float *weight, const float *cosine, const float *sine, float *out, int width,
               float eps) {
    int half = width / 2;
    float inverse = 1;
    if (weight)
        inverse = rms_norm_row(x, weight, out, width, eps);
    else
        memcpy(out, x, sizeof(float) * width);
    _Pragma("GCC ivdep")
    for (int i = 0; i < half; i++) {
        float a = out[i], b = out[i + half];
        out[i] = a * cosine[i] - b * sine[i];
        out[i + half] = b * cosine[i] + a * sine[i];
    }
    return inverse;
}

void heads(const float *x, const float *weight, const float *cosine, const float *sine, float *out, float *inverse,
           int64_t tokens, int num_heads, int width, float eps) {
    PARALLEL_ROWS
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t row = token * num_heads; row < (token + 1) * num_heads; row++)
            inverse[row] = head_row(x + row * width, weight, cosine + token * width, sine + token * width,
                                    out + row * width, width, eps);
}

/* Compute the gradients: the rotation by the opposite angle, then the norm's gradient as in norm.c. */
static void head_row_back(const float *x, const float *weight, const float *cosine, const float *sine, float inverse,
                          const float *grad, float *x_grad, float *weight_grad, int width) {
    int half = width / 2;
    for (int i = 0; i < half; i++) {
        x_grad[i] = grad[i] * cosine[i] + grad[i + half] * sine[i];
        x_grad[i + half] = grad[i + half] * cosine[i] - grad[i] * sine[i];
    }
    if (!weight) return;
    float along = 0;
    for (int i = 0; i < width; i++) {
        float unit = x[i] * inverse;
        weight_grad[i] += x_grad[i] * unit;
        x_grad[i] *= weight[i];
        along += x_grad[i] * unit;
    }
    along /= width;
    for (int i = 0; i < width; i++) x_grad[i] = (x_grad[i] - x[i] * inverse * along) * inverse;
}

int heads_back(const float *x, const float *weight, const float *cosine, const float *sine, const float *inverse,
                const float *grad, float *x_grad, float *weight_grad, int64_t tokens, int num_heads, int width) {
    float *partial = calloc((size_t)CHUNKS * width, sizeof(float));
    if (!partial) return 0;
    PARALLEL_ROWS
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        for (int64_t token = tokens * chunk / CHUNKS; token < tokens * (chunk + 1) / CHUNKS; token++)
            for (int64_t row = token * num_heads; row < (token + 1) * num_heads; row++)
                head_row_back(x + row * width, weight, cosine + token * width, sine + token * width, inverse[row],
                              grad + row * width, x_grad + row * width, partial + (int64_t)chunk * width, width);
    for (int i = 0; weight && i < width; i++) {
        weight_grad[i] = 0;
        for (int chunk = 0; chunk < CHUNKS; chunk++) weight_grad[i] += partial[(int64_t)chunk * width + i];
    }
    free(partial);
    return 1;
}
