/* Products with packed weights. */
#pragma once

#include "kernels.h"

/* Whether these products are faster than torch's on this machine: on AMD's processors MKL runs AVX2 kernels only. */
int has_products(void);

/* Return how many numbers `pack` writes. */
int64_t packed_size(int outputs, int inputs);

/* Pack a weight (outputs x inputs) for `multiply`. */
void pack(const float *weight, int outputs, int inputs, float *out);

/* Pack the transpose of a weight, which has `inputs` outputs: for gradients. */
void pack_transposed(const float *weight, int outputs, int inputs, float *out);

/* out = onto + x weight^T. x: rows x inputs. `onto` may be NULL, for zeros, or `out` itself. */
void multiply(const float *x, const float *packed, const float *onto, float *out, int rows, int inputs, int outputs);
