/* Products with weights that were packed before they are used. */
#pragma once

#include "kernels.h"

/* Whether they are the faster ones here: on AMD's processors MKL runs AVX2 kernels, whatever those can. */
int has_products(void);

/* Numbers that `pack` writes. */
int64_t packed_size(int outputs, int inputs);

/* A weight (outputs x inputs) as `multiply` reads it. */
void pack(const float *weight, int outputs, int inputs, float *out);

/* Its transpose, of `inputs` outputs: what takes gradients back. */
void pack_transposed(const float *weight, int outputs, int inputs, float *out);

/* out = onto + x weight^T. x: rows x inputs. `onto` may be NULL, for zeros, or `out` itself. */
void multiply(const float *x, const float *packed, const float *onto, float *out, int rows, int inputs, int outputs);
