/* The key-value cache of sampling, as slot_attention.c describes it. */
#pragma once

#include "kernels.h"

/* `packed`: the weights of products are as products.h packs them. */
typedef struct {
    int32_t layers, hidden, inner, heads, key_heads, width, packed;
    float scale, eps;
} sizes_t;

typedef struct {
    float *keys, *values;
    int slots;
} store_t;

/* A row goes on from `prompt`; of its own it has `own_length` tokens, the newest among them. */
typedef struct {
    const sizes_t *sizes;
    const store_t *prompts, *rows;
    int64_t row, prompt;
    int prompt_length, own_length;
} row_t;

/* Asks for the memory that `write_slot` will write, which is not in the cache: a row ahead. */
void prefetch_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot);

void write_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot, const float *key,
                const float *value);

/* out (heads x width) of the row's queries; `scores` has room for two queries over all slots. */
void attend_row(const row_t *row, const float *query, float *out, float *scores);
