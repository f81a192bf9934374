/* Draw one token per row with a given uniform random number, and compute its log-probability and the entropy. R rows, V
words. */
#include <stdlib.h>

#include "softmax.h"

/* Return the first word at which the sum of exp(s) exceeds the fraction `draw` of the total. The sum is in float64: in
float32 the rare words of a large vocabulary would vanish in rounding. A word of probability 0 is never drawn. */
static int64_t draw_word(const float *logits, int words, float highest, float inverse_temperature, double draw,
                         float *exponentials) {
    double total = 0, passed = 0;
    for (int i = 0; i < words; i++) exponentials[i] = exp_of((logits[i] - highest) * inverse_temperature);
    for (int i = 0; i < words; i++) total += exponentials[i];
    int last = 0;
    for (int i = 0; i < words; i++) {
        if (exponentials[i] > 0) last = i;
        passed += exponentials[i];
        if (passed > draw * total) return i;
    }
    return last;
}

int choose(const float *logits, const double *uniform, int64_t *token, float *logp, float *entropy, int64_t rows,
           int words, float inverse_temperature) {
    int has_memory = 1;
    _Pragma("omp parallel for schedule(static) reduction(&& : has_memory)")
    for (int64_t row = 0; row < rows; row++) {
        const float *here = logits + row * words;
        float *exponentials = malloc(sizeof(float) * words);
        if (!exponentials) {
            has_memory = 0;
            continue;
        }
        sums_t sums = softmax_sums(here, words, inverse_temperature);
        token[row] = draw_word(here, words, sums.highest, inverse_temperature, uniform[row], exponentials);
        logp[row] = (here[token[row]] - sums.highest) * inverse_temperature - (float)log(sums.total);
        entropy[row] = entropy_of(sums);
        free(exponentials);
    }
    return has_memory;
}
