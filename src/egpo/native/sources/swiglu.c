/* The gated activation: out = silu(gate) * up, with silu(x) = x s and s = 1 / (1 + exp(-x)). */
#include "kernels.h"

#define BLOCK 4096

/* `out` may be `gate` or `up` itself. */
void swiglu_row(const float *gate, const float *up, float *out, int64_t count) {
    _Pragma("GCC ivdep")
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

/* d silu(x) = s (1 + x (1 - s)). */
static void swiglu_row_back(const float *restrict gate, const float *restrict up, const float *restrict grad,
                            float *restrict gate_grad, float *restrict up_grad, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float share = 1.0f / (1.0f + exp_of(-gate[i]));
        up_grad[i] = grad[i] * gate[i] * share;
        gate_grad[i] = grad[i] * up[i] * share * (1.0f + gate[i] * (1.0f - share));
    }
}

static int64_t size_of(int64_t first, int64_t count) { return count - first < BLOCK ? count - first : BLOCK; }

void swiglu(const float *gate, const float *up, float *out, int64_t count) {
    PARALLEL_ROWS
    for (int64_t i = 0; i < count; i += BLOCK) swiglu_row(gate + i, up + i, out + i, size_of(i, count));
}

void swiglu_back(const float *gate, const float *up, const float *grad, float *gate_grad, float *up_grad,
                 int64_t count) {
    PARALLEL_ROWS
    for (int64_t i = 0; i < count; i += BLOCK)
        swiglu_row_back(gate + i, up + i, grad + i, gate_grad + i, up_grad + i, size_of(i, count));
}
