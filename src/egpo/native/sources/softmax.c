/* Log-probability and entropy over a slice of the vocabulary, and the gradient of the former. N tokens, C words. */
#include "softmax.h"

#define BLOCK 512 /* words per partial sum: one float32 sum over a large vocabulary would lose the rare words */

static void add_block(const float *logits, int words, float inverse_temperature, sums_t *sums) {
    float total = 0, weighted = 0;
    _Pragma("omp simd reduction(+ : total, weighted)")
    for (int i = 0; i < words; i++) {
        float shifted = (logits[i] - sums->highest) * inverse_temperature, e = exp_of(shifted);
        total += e;
        /* A word of probability 0 adds nothing, though its logit may be minus infinity. */
        weighted += e == 0 ? 0 : shifted * e;
    }
    sums->total += total;
    sums->weighted += weighted;
}

sums_t softmax_sums(const float *logits, int words, float inverse_temperature) {
    sums_t sums = {highest_of(logits, words, logits[0]), 0, 0};
    for (int i = 0; i < words; i += BLOCK) add_block(logits + i, smaller(BLOCK, words - i), inverse_temperature, &sums);
    return sums;
}

void slice_stats(const float *logits, float *lse, float *entropy, int64_t tokens, int words,
                 float inverse_temperature) {
    PARALLEL_ROWS
    for (int64_t token = 0; token < tokens; token++) {
        sums_t sums = softmax_sums(logits + token * words, words, inverse_temperature);
        lse[token] = lse_of(sums, inverse_temperature);
        entropy[token] = entropy_of(sums);
    }
}

/* Overwrite the logits with scale (onehot(target) - p). A target outside [0, C) is not in the slice. */
void logp_gradient(float *logits, const float *lse, const float *scale, const int64_t *target, int64_t tokens,
                   int words, float inverse_temperature) {
    PARALLEL_ROWS
    for (int64_t token = 0; token < tokens; token++) {
        float *row = logits + token * words;
        for (int i = 0; i < words; i++) row[i] = -scale[token] * exp_of(row[i] * inverse_temperature - lse[token]);
        if (target[token] >= 0 && target[token] < words) row[target[token]] += scale[token];
    }
}

/* Overwrite the logits with scale (onehot(target) - p) - entropy_scale p (log p + H), where H is the entropy over the
whole vocabulary. A word of probability 0 adds nothing, though its logit may be minus infinity. */
void stats_gradient(float *logits, const float *lse, const float *entropy, const float *scale,
                    const float *entropy_scale, const int64_t *target, int64_t tokens, int words,
                    float inverse_temperature) {
    PARALLEL_ROWS
    for (int64_t token = 0; token < tokens; token++) {
        float *row = logits + token * words;
        for (int i = 0; i < words; i++) {
            float log_p = row[i] * inverse_temperature - lse[token], p = exp_of(log_p);
            float rise = p == 0 ? 0 : log_p + entropy[token];
            row[i] = -p * (scale[token] + entropy_scale[token] * rise);
        }
        if (target[token] >= 0 && target[token] < words) row[target[token]] += scale[token];
    }
}
