/* Attention over a pack: every part (a prompt, or a response) attends to the whole prompt before it, and to itself up
to the token itself. The scores of one block of queries of one head are held at a time, and are recomputed in the
backward pass.

H heads of queries, K heads of keys and values, d the width of a head. A thread copies the data of one head of keys of
one group to its working memory (`desk`): the prompt, and after it one response at a time. Rows there are padded to
whole vectors, and keys are stored twice: token by token, and in panels of `TILE` tokens, dimension by dimension. */
#include <stdlib.h>

#include "tiles.h"

#define BLOCK 60 /* queries that are computed together */

typedef struct {
    int32_t start, length, prompt_start, prompt_length;
} part_t;

typedef struct {
    int num_heads, num_key_heads, width;
    float scale;
} shape_t;

/* `padded`: width of a row, padded. `stride`: width of a row of scores, with one vector to spare. */
typedef struct {
    int padded, stride;
    float *keys, *values, *key_panels, *value_panels, *key_grads, *value_grads;
    float *query, *grad, *out, *scores, *score_grads;
} desk_t;

/* `queries` tokens from `first` of the part on. The first attends to `seen` tokens, each next query to one more. */
typedef struct {
    const part_t *part;
    int head, first, queries, seen;
} block_t;

static int rounded(int count, int unit) { return (count + unit - 1) / unit * unit; }

/* Return memory for a prompt and its longest response, `tokens` together; NULL if there is none. It is filled with
zeros: padding must be finite, and sums start at 0. */
static float *open_desk(desk_t *desk, int tokens, int width) {
    int padded = rounded(width, LANES), rows = rounded(tokens, TILE) + ROWS, stride = rounded(tokens, TILE) + LANES;
    int64_t row_size = (int64_t)rows * padded, panel_size = (int64_t)rounded(tokens, TILE) * width;
    int64_t block_size = (int64_t)BLOCK * padded, score_size = (int64_t)BLOCK * stride;
    float *memory = calloc((size_t)(4 * row_size + 2 * panel_size + 3 * block_size + 2 * score_size), sizeof(float));
    float *at = memory;
    if (!memory) return NULL;
    *desk = (desk_t){.padded = padded, .stride = stride};
    float **tables[] = {&desk->keys,         &desk->values, &desk->key_grads, &desk->value_grads, &desk->key_panels,
                        &desk->value_panels, &desk->query,  &desk->grad,      &desk->out,         &desk->scores,
                        &desk->score_grads};
    int64_t sizes[] = {row_size,   row_size,   row_size,   row_size,   panel_size, panel_size,
                       block_size, block_size, block_size, score_size, score_size};
    for (int i = 0; i < 11; at += sizes[i++]) *tables[i] = at;
    return memory;
}

static void copy_rows(const float *from, int64_t from_row, float *to, int64_t to_row, int rows, int width) {
    for (int i = 0; i < rows; i++) memcpy(to + i * to_row, from + i * from_row, sizeof(float) * width);
}

/* Copy `rows` rows, tokens from `first` on, into panels. */
static void into_panels(const float *rows, int padded, int first, int count, int width, float *panels) {
    for (int token = first; token < first + count; token++) {
        float *panel = panels + (int64_t)(token / TILE) * TILE * width + token % TILE;
        for (int i = 0; i < width; i++) panel[(int64_t)i * TILE] = rows[(int64_t)token * padded + i];
    }
}

/* Copy the part's keys and values to the working memory, after those of its prompt. */
static void lay_out(const shape_t *shape, const part_t *part, int key_head, const float *key, const float *value,
                    desk_t *desk, int backward) {
    int64_t row = (int64_t)shape->num_key_heads * shape->width;
    int64_t from = part->start * row + key_head * shape->width, to = (int64_t)part->prompt_length * desk->padded;
    copy_rows(key + from, row, desk->keys + to, desk->padded, part->length, shape->width);
    copy_rows(value + from, row, desk->values + to, desk->padded, part->length, shape->width);
    into_panels(desk->keys, desk->padded, part->prompt_length, part->length, shape->width, desk->key_panels);
    if (!backward) return;
    into_panels(desk->values, desk->padded, part->prompt_length, part->length, shape->width, desk->value_panels);
    memset(desk->key_grads + to, 0, sizeof(float) * part->length * desk->padded);
    memset(desk->value_grads + to, 0, sizeof(float) * part->length * desk->padded);
}

/* scores[q, token] = left[q] . token, for all tokens that a tile's last query attends to. */
static void against_tokens(const block_t *block, const desk_t *desk, const float *left, const float *panels, int width,
                           float *scores) {
    for (int q = 0; q < block->queries; q += ROWS) {
        int rows = smaller(ROWS, block->queries - q), end = block->seen + q + rows - 1;
        for (int token = 0; token < end; token += TILE) {
            tile_t at = {left + (int64_t)q * desk->padded, desk->padded, 1, panels + (int64_t)token * width, TILE, NULL,
                         scores + (int64_t)q * desk->stride + token, desk->stride, width};
            tile(rows, rounded(smaller(TILE, end - token), LANES) / LANES, &at);
        }
    }
}

/* out[q] = sum over tokens of scores[q, token] * token. */
static void onto_queries(const block_t *block, const desk_t *desk, const float *scores, const float *tokens,
                         float *out) {
    for (int q = 0; q < block->queries; q += ROWS)
        for (int i = 0; i < desk->padded; i += TILE) {
            int rows = smaller(ROWS, block->queries - q);
            tile_t at = {scores + (int64_t)q * desk->stride, desk->stride, 1, tokens + i, desk->padded, NULL,
                         out + (int64_t)q * desk->padded + i, desk->padded, block->seen + q + rows - 1};
            tile(rows, smaller(TILE, desk->padded - i) / LANES, &at);
        }
}

/* tokens[token] += sum over the queries that attend to it of scores[q, token] * left[q]. */
static void onto_tokens(const block_t *block, const desk_t *desk, const float *scores, const float *left,
                        float *tokens) {
    int end = block->seen + block->queries - 1;
    for (int token = 0; token < end; token += ROWS)
        for (int i = 0; i < desk->padded; i += TILE) {
            int q = token < block->seen ? 0 : token - block->seen + 1;
            float *to = tokens + (int64_t)token * desk->padded + i;
            tile_t at = {scores + (int64_t)q * desk->stride + token, 1, desk->stride,
                         left + (int64_t)q * desk->padded + i, desk->padded, to, to, desk->padded, block->queries - q};
            tile(smaller(ROWS, end - token), smaller(TILE, desk->padded - i) / LANES, &at);
        }
}

/* Tiles reach a few tokens past those that a query attends to: set zeros there. */
static void end_row(float *score, int seen) { *(lanes *)(score + seen) = (lanes){0}; }

/* Replace unscaled scores by exponentials, and return their sum; `highest` completes the log of the softmax sum. */
static float softmax_row(float *score, int seen, float scale, float *log_total) {
    float highest = highest_of(score, seen, score[0]), total = 0;
    for (int i = 0; i < seen; i++) {
        score[i] = exp_of((score[i] - highest) * scale);
        total += score[i];
    }
    end_row(score, seen);
    *log_total = highest * scale + logf(total);
    return total;
}

/* Replace scores by probabilities p, with the sums of the forward pass, and grad by p (grad - sum p grad) scale. */
static void softmax_row_back(float *score, float *grad, float scale, float log_total, int seen) {
    float mean = 0;
    for (int i = 0; i < seen; i++) {
        score[i] = exp_of(score[i] * scale - log_total);
        mean += score[i] * grad[i];
    }
    for (int i = 0; i < seen; i++) grad[i] = score[i] * (grad[i] - mean) * scale;
    end_row(score, seen);
    end_row(grad, seen);
}

static int64_t at_query(const shape_t *shape, const block_t *block, int q) {
    return ((int64_t)(block->part->start + block->first + q) * shape->num_heads + block->head);
}

static void attend_block(const shape_t *shape, const block_t *block, const desk_t *desk, const float *query, float *out,
                         float *log_total) {
    int64_t row = (int64_t)shape->num_heads * shape->width, place = at_query(shape, block, 0) * shape->width;
    copy_rows(query + place, row, desk->query, desk->padded, block->queries, shape->width);
    against_tokens(block, desk, desk->query, desk->key_panels, shape->width, desk->scores);
    float total[BLOCK];
    for (int q = 0; q < block->queries; q++)
        total[q] = softmax_row(desk->scores + (int64_t)q * desk->stride, block->seen + q, shape->scale,
                               log_total + at_query(shape, block, q));
    onto_queries(block, desk, desk->scores, desk->values, desk->out);
    for (int q = 0; q < block->queries; q++)
        for (int i = 0; i < shape->width; i++)
            out[place + q * row + i] = desk->out[(int64_t)q * desk->padded + i] / total[q];
}

static void attend_block_back(const shape_t *shape, const block_t *block, const desk_t *desk, const float *query,
                              const float *log_total, const float *grad, float *query_grad) {
    int64_t row = (int64_t)shape->num_heads * shape->width, place = at_query(shape, block, 0) * shape->width;
    copy_rows(query + place, row, desk->query, desk->padded, block->queries, shape->width);
    copy_rows(grad + place, row, desk->grad, desk->padded, block->queries, shape->width);
    against_tokens(block, desk, desk->query, desk->key_panels, shape->width, desk->scores);
    against_tokens(block, desk, desk->grad, desk->value_panels, shape->width, desk->score_grads);
    for (int q = 0; q < block->queries; q++)
        softmax_row_back(desk->scores + (int64_t)q * desk->stride, desk->score_grads + (int64_t)q * desk->stride,
                         shape->scale, log_total[at_query(shape, block, q)], block->seen + q);
    onto_tokens(block, desk, desk->scores, desk->grad, desk->value_grads);
    onto_tokens(block, desk, desk->score_grads, desk->query, desk->key_grads);
    onto_queries(block, desk, desk->score_grads, desk->keys, desk->out);
    copy_rows(desk->out, desk->padded, query_grad + place, row, block->queries, shape->width);
}

static block_t block_of(const part_t *part, int head, int first) {
    return (block_t){part, head, first, smaller(BLOCK, part->length - first), part->prompt_length + first + 1};
}

/* `group_first[g]` is the first part of group g, its prompt; the parts of group g end where those of g + 1 start.
`longest`: tokens of a prompt and its longest response. */
int attend_pack(const float *query, const float *key, const float *value, float *out, float *log_total,
                const part_t *parts, const int32_t *group_first, int num_groups, int longest, int num_heads,
                int num_key_heads, int width, float scale) {
    shape_t shape = {num_heads, num_key_heads, width, scale};
    int shared = num_heads / num_key_heads, has_memory = 1;
    _Pragma("omp parallel for schedule(static) collapse(2) reduction(&& : has_memory)")
    for (int group = 0; group < num_groups; group++)
        for (int key_head = 0; key_head < num_key_heads; key_head++) {
            desk_t desk;
            float *memory = open_desk(&desk, longest, width);
            if (!memory) {
                has_memory = 0;
                continue;
            }
            for (int part = group_first[group]; part < group_first[group + 1]; part++) {
                lay_out(&shape, parts + part, key_head, key, value, &desk, 0);
                for (int head = key_head * shared; head < (key_head + 1) * shared; head++)
                    for (int first = 0; first < parts[part].length; first += BLOCK) {
                        block_t block = block_of(parts + part, head, first);
                        attend_block(&shape, &block, &desk, query, out, log_total);
                    }
            }
            free(memory);
        }
    return has_memory;
}

/* Copy the gradients of a part's own keys or values out of the working memory. */
static void take_off(const shape_t *shape, const part_t *part, int key_head, int first, const float *from, int padded,
                     float *to) {
    int64_t row = (int64_t)shape->num_key_heads * shape->width;
    copy_rows(from + (int64_t)first * padded, padded, to + part->start * row + key_head * shape->width, row,
              part->length, shape->width);
}

/* All heads and parts that attend to a key add to its gradient: a prompt's is complete after its last response. */
int attend_pack_back(const float *query, const float *key, const float *value, const float *log_total,
                     const float *grad, float *query_grad, float *key_grad, float *value_grad, const part_t *parts,
                     const int32_t *group_first, int num_groups, int longest, int num_heads, int num_key_heads,
                     int width, float scale) {
    shape_t shape = {num_heads, num_key_heads, width, scale};
    int shared = num_heads / num_key_heads, has_memory = 1;
    _Pragma("omp parallel for schedule(static) collapse(2) reduction(&& : has_memory)")
    for (int group = 0; group < num_groups; group++)
        for (int key_head = 0; key_head < num_key_heads; key_head++) {
            desk_t desk;
            float *memory = open_desk(&desk, longest, width);
            if (!memory) {
                has_memory = 0;
                continue;
            }
            for (int i = group_first[group]; i < group_first[group + 1]; i++) {
                const part_t *part = parts + i;
                lay_out(&shape, part, key_head, key, value, &desk, 1);
                for (int head = key_head * shared; head < (key_head + 1) * shared; head++)
                    for (int first = 0; first < part->length; first += BLOCK) {
                        block_t block = block_of(part, head, first);
                        attend_block_back(&shape, &block, &desk, query, log_total, grad, query_grad);
                    }
                if (i == group_first[group]) continue;
                take_off(&shape, part, key_head, part->prompt_length, desk.key_grads, desk.padded, key_grad);
                take_off(&shape, part, key_head, part->prompt_length, desk.value_grads, desk.padded, value_grad);
            }
            const part_t *prompt = parts + group_first[group];
            take_off(&shape, prompt, key_head, 0, desk.key_grads, desk.padded, key_grad);
            take_off(&shape, prompt, key_head, 0, desk.value_grads, desk.padded, value_grad);
            free(memory);
        }
    return has_memory;
}
