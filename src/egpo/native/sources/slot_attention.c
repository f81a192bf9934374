/* Attention of one query per row and head, over the slots of its prompt, which the rows of a group share, and over its
own slots.

A store holds sequences of `slots` slots, a multiple of 16, for each head of keys. Values are stored slot by slot. Keys
are stored in blocks of 16 slots, dimension by dimension within a block: the scores of a block are sums of vectors. */
#include <stdlib.h>

#include "slot_attention.h"

static const float *keys_of(const store_t *store, const sizes_t *sizes, int64_t sequence, int head) {
    return store->keys + (sequence * sizes->key_heads + head) * store->slots * sizes->width;
}

static const float *values_of(const store_t *store, const sizes_t *sizes, int64_t sequence, int head) {
    return store->values + (sequence * sizes->key_heads + head) * store->slots * sizes->width;
}

void prefetch_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot) {
    for (int head = 0; head < sizes->key_heads; head++) {
        const float *keys = keys_of(store, sizes, row, head) + (int64_t)(slot - slot % LANES) * sizes->width;
        for (int i = 0; i < sizes->width; i++) __builtin_prefetch(keys + i * LANES, 1, 2);
    }
}

void write_slot(const store_t *store, const sizes_t *sizes, int64_t row, int slot, const float *key,
                const float *value) {
    for (int head = 0; head < sizes->key_heads; head++, key += sizes->width, value += sizes->width) {
        float *keys = (float *)keys_of(store, sizes, row, head) + (int64_t)(slot - slot % LANES) * sizes->width;
        for (int i = 0; i < sizes->width; i++) keys[i * LANES + slot % LANES] = key[i];
        memcpy((float *)values_of(store, sizes, row, head) + (int64_t)slot * sizes->width, value,
               sizes->width * sizeof(float));
    }
}

/* Scores of `count` queries, a constant where this is inlined, against whole blocks of keys. Attention is bound by
memory: the lines that are read next are prefetched. */
static inline __attribute__((always_inline)) void score(int count, const float *query, const float *keys, int num_slots,
                                                        int width, float *scores, int stride,
                                                        const float *next) {
    for (int first = 0; first < num_slots; first += LANES, keys += LANES * width, next += LANES * width) {
        lanes even[2] = {{0}, {0}}, odd[2] = {{0}, {0}};
        for (int i = 0; i < width; i += 2) {
            lanes one = *(const lanes *)(keys + i * LANES), other = *(const lanes *)(keys + (i + 1) * LANES);
            __builtin_prefetch(next + i * LANES, 0, 2);
            __builtin_prefetch(next + (i + 1) * LANES, 0, 2);
            for (int q = 0; q < count; q++) {
                even[q] += query[q * width + i] * one;
                odd[q] += query[q * width + i + 1] * other;
            }
        }
        for (int q = 0; q < count; q++) *(lanes *)(scores + q * stride + first) = even[q] + odd[q];
    }
}

/* out += the weights' sum of values, over 16 * `vectors` numbers of each; both counts are constants where inlined. */
static inline __attribute__((always_inline)) void gather(int count, int vectors, const float *weights, int stride,
                                                         const float *values, int num_slots, int width, float *out,
                                                         const float *next) {
    lanes sums[2][4];
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) sums[q][v] = *(lanes *)(out + q * width + v * LANES);
    for (int slot = 0; slot < num_slots; slot++, values += width, next += width)
        for (int v = 0; v < vectors; v++) {
            __builtin_prefetch(next + v * LANES, 0, 2);
            lanes value = *(const lanes *)(values + v * LANES);
            for (int q = 0; q < count; q++) sums[q][v] += weights[q * stride + slot] * value;
        }
    for (int q = 0; q < count; q++)
        for (int v = 0; v < vectors; v++) *(lanes *)(out + q * width + v * LANES) = sums[q][v];
}

static inline __attribute__((always_inline)) void gather_all(int count, const float *weights, int stride,
                                                             const float *values, int num_slots, int width,
                                                             float *out, const float *next) {
    int i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        gather(count, 4, weights, stride, values + i, num_slots, width, out + i, next + i);
    for (; i < width; i += LANES) gather(count, 1, weights, stride, values + i, num_slots, width, out + i, next + i);
}

static float exponentials(float *scores, int count, float scale, float highest) {
    float total = 0;
    for (int i = 0; i < count; i++) {
        scores[i] = exp_of((scores[i] - highest) * scale);
        total += scores[i];
    }
    return total;
}

/* Compute attention of `count` queries that share a head of keys. `scores`: of the prompt's slots, then the own ones. */
static inline __attribute__((always_inline)) void attend_queries(int count, const row_t *row, int head,
                                                                 const float *query, float *out, float *scores) {
    const sizes_t *sizes = row->sizes;
    int width = sizes->width, stride = row->prompts->slots + row->rows->slots;
    float *own = scores + row->prompts->slots;
    const float *own_keys = keys_of(row->rows, sizes, row->row, head);
    const float *own_values = values_of(row->rows, sizes, row->row, head);
    const float *next_keys = own_keys + (int64_t)row->rows->slots * width; /* of the next head or row */
    score(count, query, keys_of(row->prompts, sizes, row->prompt, head), row->prompt_length, width, scores, stride,
          own_keys);
    score(count, query, own_keys, row->own_length, width, own, stride, own_values);
    float inverse[2];
    for (int q = 0; q < count; q++) {
        float *prompt_scores = scores + q * stride, *own_scores = own + q * stride;
        float highest = highest_of(own_scores, row->own_length, own_scores[0]);
        highest = highest_of(prompt_scores, row->prompt_length, highest);
        float total = exponentials(prompt_scores, row->prompt_length, sizes->scale, highest);
        inverse[q] = 1.0f / (total + exponentials(own_scores, row->own_length, sizes->scale, highest));
    }
    memset(out, 0, sizeof(float) * count * width);
    gather_all(count, scores, stride, values_of(row->prompts, sizes, row->prompt, head), row->prompt_length, width,
               out, own_values);
    gather_all(count, own, stride, own_values, row->own_length, width, out, next_keys);
    for (int q = 0; q < count; q++)
        for (int i = 0; i < width; i++) out[q * width + i] *= inverse[q];
}

void attend_row(const row_t *row, const float *query, float *out, float *scores) {
    int width = row->sizes->width, shared = row->sizes->heads / row->sizes->key_heads;
    for (int head = 0; head < row->sizes->key_heads; head++) {
        int q = 0;
        for (; q + 2 <= shared; q += 2, query += 2 * width, out += 2 * width)
            attend_queries(2, row, head, query, out, scores);
        for (; q < shared; q++, query += width, out += width) attend_queries(1, row, head, query, out, scores);
    }
}
