/* One more token for every row, through all layers of the architectures in local/models/architectures.py. R rows, D
hidden. The layer is that of `LayerParts` there; `layer_t` has the order of `cpu_decoder._addresses`. */
#include <stdlib.h>

#include "products.h"
#include "slot_attention.h"

/* Weights as torch stores them, (out, in), or packed; NULL for a bias or a norm of heads that is absent. */
typedef struct {
    const float *attention_norm, *query, *query_bias, *key, *key_bias, *value, *value_bias, *query_norm, *key_norm;
    const float *out, *out_bias, *mlp_norm, *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
    float *prompt_keys, *prompt_values, *keys, *values;
} layer_t;

/* Token, position and prompt of each row; the length of each prompt; slots of a prompt and of a row in the cache. The
position of a row's first own token is the length of its prompt. */
typedef struct {
    const int64_t *token, *position, *prompt, *prompt_length;
    int32_t rows, prompt_slots, slots;
} batch_t;

typedef struct {
    const float *embedding, *norm, *cosine, *sine;
} around_t;

typedef struct {
    float *hidden, *normed, *query, *key, *value, *placed_query, *placed_key, *gate, *up;
} scratch_t;

/* out = x weight^T + bias; if `adds`, out + x weight^T + bias. */
static void linear(const sizes_t *sizes, const float *x, const float *weight, const float *bias, float *out, int rows,
                   int from, int to, int adds) {
    for (int64_t row = 0; bias && row < rows; row++)
        for (int i = 0; i < to; i++) out[row * to + i] = bias[i] + (adds ? out[row * to + i] : 0);
    if (sizes->packed)
        multiply(x, weight, adds || bias ? out : NULL, out, rows, from, to);
    else
        product('N', 'T', rows, to, from, 1, x, from, weight, from, adds || bias ? 1 : 0, out, to);
}

static void norm_rows(const float *x, const float *weight, float *out, const sizes_t *sizes, int rows) {
    PARALLEL_ROWS
    for (int64_t row = 0; row < rows; row++)
        rms_norm_row(x + row * sizes->hidden, weight, out + row * sizes->hidden, sizes->hidden, sizes->eps);
}

static int own_slot(const batch_t *batch, int64_t row) {
    return (int)(batch->position[row] - batch->prompt_length[batch->prompt[row]]);
}

/* Apply norm and rotation to the heads, write the new cache slot, and compute attention, row by row. The output
overwrites the queries. */
static int attend_rows(const sizes_t *sizes, const layer_t *layer, const batch_t *batch, const around_t *around,
                       scratch_t *at) {
    int width = sizes->width, query_row = sizes->heads * width, key_row = sizes->key_heads * width, has_memory = 1;
    store_t prompts = {layer->prompt_keys, layer->prompt_values, batch->prompt_slots};
    store_t rows = {layer->keys, layer->values, batch->slots};
    _Pragma("omp parallel for schedule(static) reduction(&& : has_memory)")
    for (int64_t row = 0; row < batch->rows; row++) {
        float *scores = malloc(sizeof(float) * 2 * (batch->prompt_slots + batch->slots));
        if (!scores) {
            has_memory = 0;
            continue;
        }
        const float *cosine = around->cosine + batch->position[row] * width;
        const float *sine = around->sine + batch->position[row] * width;
        float *query = at->placed_query + row * query_row, *key = at->placed_key + row * key_row;
        for (int head = 0; head < query_row; head += width)
            head_row(at->query + row * query_row + head, layer->query_norm, cosine, sine, query + head, width,
                     sizes->eps);
        for (int head = 0; head < key_row; head += width)
            head_row(at->key + row * key_row + head, layer->key_norm, cosine, sine, key + head, width, sizes->eps);
        if (row + 1 < batch->rows) prefetch_slot(&rows, sizes, row + 1, own_slot(batch, row + 1));
        int64_t prompt = batch->prompt[row];
        int slot = own_slot(batch, row);
        write_slot(&rows, sizes, row, slot, key, at->value + row * key_row);
        row_t seen = {sizes, &prompts, &rows, row, prompt, (int)batch->prompt_length[prompt], slot + 1};
        attend_row(&seen, query, at->query + row * query_row, scores);
        free(scores);
    }
    return has_memory;
}

static int attention(const sizes_t *sizes, const layer_t *layer, const batch_t *batch, const around_t *around,
                     scratch_t *at) {
    int rows = batch->rows, hidden = sizes->hidden;
    int query_row = sizes->heads * sizes->width, key_row = sizes->key_heads * sizes->width;
    norm_rows(at->hidden, layer->attention_norm, at->normed, sizes, rows);
    linear(sizes, at->normed, layer->query, layer->query_bias, at->query, rows, hidden, query_row, 0);
    linear(sizes, at->normed, layer->key, layer->key_bias, at->key, rows, hidden, key_row, 0);
    linear(sizes, at->normed, layer->value, layer->value_bias, at->value, rows, hidden, key_row, 0);
    int has_memory = attend_rows(sizes, layer, batch, around, at);
    linear(sizes, at->query, layer->out, layer->out_bias, at->hidden, rows, query_row, hidden, 1);
    return has_memory;
}

static void mlp(const sizes_t *sizes, const layer_t *layer, int rows, scratch_t *at) {
    norm_rows(at->hidden, layer->mlp_norm, at->normed, sizes, rows);
    linear(sizes, at->normed, layer->gate, layer->gate_bias, at->gate, rows, sizes->hidden, sizes->inner, 0);
    linear(sizes, at->normed, layer->up, layer->up_bias, at->up, rows, sizes->hidden, sizes->inner, 0);
    PARALLEL_ROWS
    for (int64_t row = 0; row < rows; row++)
        swiglu_row(at->gate + row * sizes->inner, at->up + row * sizes->inner, at->gate + row * sizes->inner,
                   sizes->inner);
    linear(sizes, at->gate, layer->down, layer->down_bias, at->hidden, rows, sizes->inner, sizes->hidden, 1);
}

static scratch_t scratch_from(float *memory, const sizes_t *sizes, int64_t rows) {
    int64_t hidden = rows * sizes->hidden, query = rows * sizes->heads * sizes->width;
    int64_t key = rows * sizes->key_heads * sizes->width, inner = rows * sizes->inner;
    scratch_t at;
    at.hidden = memory;
    at.normed = at.hidden + hidden;
    at.query = at.normed + hidden;
    at.placed_query = at.query + query;
    at.key = at.placed_query + query;
    at.placed_key = at.key + key;
    at.value = at.placed_key + key;
    at.gate = at.value + key;
    at.up = at.gate + inner;
    return at;
}

/* Write the hidden states after the last norm to `out` (R, D). `memory` holds 2 (D + heads * width + inner) +
3 key_heads * width numbers per row. Return 0 if memory ran out. */
int decode(const sizes_t *sizes, const layer_t *layers, const batch_t *batch, const around_t *around, float *memory,
           float *out) {
    scratch_t at = scratch_from(memory, sizes, batch->rows);
    for (int64_t row = 0; row < batch->rows; row++)
        memcpy(at.hidden + row * sizes->hidden, around->embedding + batch->token[row] * sizes->hidden,
               sizeof(float) * sizes->hidden);
    for (int layer = 0; layer < sizes->layers; layer++) {
        if (!attention(sizes, layers + layer, batch, around, &at)) return 0;
        mlp(sizes, layers + layer, batch->rows, &at);
    }
    norm_rows(at.hidden, around->norm, out, sizes, batch->rows);
    return 1;
}
