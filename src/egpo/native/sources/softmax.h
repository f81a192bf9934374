/* Sums over one row of logits. With s = (x - max) / temperature: total = sum exp(s), weighted = sum s exp(s). */
#pragma once

#include "kernels.h"

typedef struct {
    float highest;
    double total, weighted;
} sums_t;

sums_t softmax_sums(const float *logits, int words, float inverse_temperature);

/* Return log sum exp(x / temperature), and the entropy of the softmax. */
static inline float lse_of(sums_t sums, float inverse_temperature) {
    return (float)(sums.highest * inverse_temperature + log(sums.total));
}

static inline float entropy_of(sums_t sums) { return (float)(log(sums.total) - sums.weighted / sums.total); }
