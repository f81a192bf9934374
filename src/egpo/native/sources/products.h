/* Products with weights that were packed once and are used many times: sampling's, one token a row. */
#pragma once

#include "kernels.h"

/* Whether they are the faster ones here: on AMD's processors MKL runs AVX2 kernels, whatever those can. */
int has_products(void);

/* Numbers that `pack` writes. */
int64_t packed_size(int outputs, int inputs);

/* A weight (outputs x inputs) as `multiply` reads it. */
void pack(const float *weight, int outputs, int inputs, float *out);

/* out = x weight^T, or, where `adds`, out + x weight^T. x: rows x inputs. */
void multiply(const float *x, const float *packed, float *out, int rows, int inputs, int outputs, int adds);
