/* The key-value cache of sampling; slot_attention.c describes its memory layout. */
#pragma once

#include "kernels.h"

/* Sizes of the model. `packed`: weights are packed as in products.h. */
typedef struct {
    int32_t layers, hidden, inner, heads, key_heads, width, packed;
    float scale, eps;
} sizes_t;

typedef struct {
    float *keys, *values;
    int slots;
} store_t;

/* A row answers `prompt`, and has `own_length` tokens of its own, including the newest. */
typedef struct {
    const sizes_t *sizes;
    const store_t *prompts, *rows;
    int64_t row, prompt;
    int prompt_length, own_length;
} row_t;

/* Prefetch the memory that `write_slot` will write for the next row. */
void prefetch_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot);

void write_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot, const float *key,
                const float *value);

/* Write the output of the row's queries (heads x width) to `out`; `scores` holds two queries over all slots. */
void attend_row(const row_t *row, const float *query, float *out, float *scores);
