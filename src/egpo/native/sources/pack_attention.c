/* Attention over a pack: every part of it (a prompt, or a response to it) sees the prompt before it whole and itself up
to the own token. Scores stand for one block of queries of one head at a time, and are computed again backward.

Tokens as they lie in the pack; H heads of queries, K of keys and values, d their width. */
#include <stdlib.h>

#include "kernels.h"

#define BLOCK 32 /* queries: past the diagonal, half a block of scores a query is computed in vain */

typedef struct {
    int32_t start, length, prompt_start, prompt_length;
} part_t;

typedef struct {
    int num_heads, num_key_heads, width;
    float scale;
} shape_t;

/* One block of one head: `queries` of them from token `first` of the part on; keys up to `own`. */
typedef struct {
    const part_t *part;
    int head, key_head, first, queries, own;
} block_t;

static int64_t at_query(const shape_t *shape, int token, int head) {
    return ((int64_t)token * shape->num_heads + head) * shape->width;
}

static int64_t at_key(const shape_t *shape, int token, int head) {
    return ((int64_t)token * shape->num_key_heads + head) * shape->width;
}

/* left (queries x d) times the transpose of the rows of `right`, prompt's and own, into a row of scores each. */
static void against_keys(const shape_t *shape, const block_t *block, const float *left, const float *right, float alpha,
                         float *scores, int stride) {
    const part_t *part = block->part;
    int row = shape->num_heads * shape->width, key_row = shape->num_key_heads * shape->width;
    const float *from = left + at_query(shape, part->start + block->first, block->head);
    product('N', 'T', block->queries, part->prompt_length, shape->width, alpha, from, row,
            right + at_key(shape, part->prompt_start, block->key_head), key_row, 0, scores, stride);
    product('N', 'T', block->queries, block->own, shape->width, alpha, from, row,
            right + at_key(shape, part->start, block->key_head), key_row, 0, scores + part->prompt_length, stride);
}

/* out (queries x d) = scores times the rows of `right`, prompt's and own. */
static void onto_queries(const shape_t *shape, const block_t *block, const float *scores, int stride,
                         const float *right, float *out) {
    const part_t *part = block->part;
    int row = shape->num_heads * shape->width, key_row = shape->num_key_heads * shape->width;
    float *to = out + at_query(shape, part->start + block->first, block->head);
    product('N', 'N', block->queries, shape->width, part->prompt_length, 1, scores, stride,
            right + at_key(shape, part->prompt_start, block->key_head), key_row, 0, to, row);
    product('N', 'N', block->queries, shape->width, block->own, 1, scores + part->prompt_length, stride,
            right + at_key(shape, part->start, block->key_head), key_row, part->prompt_length ? 1 : 0, to, row);
}

/* out (keys x d) += the scores' transpose times `left`, prompt's and own. */
static void onto_keys(const shape_t *shape, const block_t *block, const float *scores, int stride, const float *left,
                      float *out) {
    const part_t *part = block->part;
    int row = shape->num_heads * shape->width, key_row = shape->num_key_heads * shape->width;
    const float *from = left + at_query(shape, part->start + block->first, block->head);
    product('T', 'N', part->prompt_length, shape->width, block->queries, 1, scores, stride, from, row, 1,
            out + at_key(shape, part->prompt_start, block->key_head), key_row);
    product('T', 'N', block->own, shape->width, block->queries, 1, scores + part->prompt_length, stride, from, row, 1,
            out + at_key(shape, part->start, block->key_head), key_row);
}

/* Of one row of scores, in place; what lies past the `seen` first becomes 0. The log of the sum of exponentials. */
static float softmax_row(float *score, int seen, int stride) {
    float highest = score[0], total = 0;
    for (int i = 1; i < seen; i++) highest = score[i] > highest ? score[i] : highest;
    for (int i = 0; i < seen; i++) {
        score[i] = exp_of(score[i] - highest);
        total += score[i];
    }
    float inverse = 1.0f / total;
    for (int i = 0; i < seen; i++) score[i] *= inverse;
    for (int i = seen; i < stride; i++) score[i] = 0;
    return highest + logf(total);
}

/* Scores into probabilities, by the sums that the forward pass kept. */
static void probabilities_row(float *score, float log_total, int seen, int stride) {
    for (int i = 0; i < seen; i++) score[i] = exp_of(score[i] - log_total);
    for (int i = seen; i < stride; i++) score[i] = 0;
}

/* grad = p (grad - sum p grad) scale; 0 past the `seen` first. */
static void softmax_row_back(const float *probability, float *grad, float scale, int seen, int stride) {
    float mean = 0;
    for (int i = 0; i < seen; i++) mean += probability[i] * grad[i];
    for (int i = 0; i < seen; i++) grad[i] = probability[i] * (grad[i] - mean) * scale;
    for (int i = seen; i < stride; i++) grad[i] = 0;
}

static block_t block_of(const shape_t *shape, const part_t *part, int head, int first) {
    int queries = smaller(BLOCK, part->length - first);
    return (block_t){part, head, head / (shape->num_heads / shape->num_key_heads), first, queries, first + queries};
}

static void attend_part(const shape_t *shape, const part_t *part, int head, const float *query, const float *key,
                        const float *value, float *out, float *log_total, float *scores) {
    for (int first = 0; first < part->length; first += BLOCK) {
        block_t block = block_of(shape, part, head, first);
        int stride = part->prompt_length + block.own;
        against_keys(shape, &block, query, key, shape->scale, scores, stride);
        for (int i = 0; i < block.queries; i++)
            log_total[(int64_t)(part->start + first + i) * shape->num_heads + head] =
                softmax_row(scores + (int64_t)i * stride, part->prompt_length + first + i + 1, stride);
        onto_queries(shape, &block, scores, stride, value, out);
    }
}

static void attend_part_back(const shape_t *shape, const part_t *part, int head, const float *query, const float *key,
                             const float *value, const float *log_total, const float *grad, float *query_grad,
                             float *key_grad, float *value_grad, float *scores, float *score_grads) {
    for (int first = 0; first < part->length; first += BLOCK) {
        block_t block = block_of(shape, part, head, first);
        int stride = part->prompt_length + block.own;
        against_keys(shape, &block, query, key, shape->scale, scores, stride);
        against_keys(shape, &block, grad, value, 1, score_grads, stride);
        for (int i = 0; i < block.queries; i++) {
            float *row = scores + (int64_t)i * stride;
            int seen = part->prompt_length + first + i + 1;
            int64_t token = part->start + first + i;
            probabilities_row(row, log_total[token * shape->num_heads + head], seen, stride);
            softmax_row_back(row, score_grads + (int64_t)i * stride, shape->scale, seen, stride);
        }
        onto_keys(shape, &block, scores, stride, grad, value_grad);
        onto_queries(shape, &block, score_grads, stride, key, query_grad);
        onto_keys(shape, &block, score_grads, stride, query, key_grad);
    }
}

/* `group_first[g]` is the first part of group g, its prompt; the parts of group g end where those of g + 1 begin.
`longest`: tokens of a prompt and its longest response. */
void attend_pack(const float *query, const float *key, const float *value, float *out, float *log_total,
                 const part_t *parts, const int32_t *group_first, int num_groups, int longest, int num_heads,
                 int num_key_heads, int width, float scale) {
    shape_t shape = {num_heads, num_key_heads, width, scale};
    _Pragma("omp parallel for schedule(static) collapse(2)")
    for (int group = 0; group < num_groups; group++)
        for (int head = 0; head < num_heads; head++) {
            float *scores = malloc(sizeof(float) * BLOCK * longest);
            for (int part = group_first[group]; part < group_first[group + 1]; part++)
                attend_part(&shape, parts + part, head, query, key, value, out, log_total, scores);
            free(scores);
        }
}

/* The gradients of keys and values must be 0 at first: all heads and parts that see a key add to it. */
void attend_pack_back(const float *query, const float *key, const float *value, const float *log_total,
                      const float *grad, float *query_grad, float *key_grad, float *value_grad, const part_t *parts,
                      const int32_t *group_first, int num_groups, int longest, int num_heads, int num_key_heads,
                      int width, float scale) {
    shape_t shape = {num_heads, num_key_heads, width, scale};
    int shared = num_heads / num_key_heads;
    _Pragma("omp parallel for schedule(static) collapse(2)")
    for (int group = 0; group < num_groups; group++)
        for (int key_head = 0; key_head < num_key_heads; key_head++) {
            float *scores = malloc(sizeof(float) * 2 * BLOCK * longest);
            for (int part = group_first[group]; part < group_first[group + 1]; part++)
                for (int head = key_head * shared; head < (key_head + 1) * shared; head++)
                    attend_part_back(&shape, parts + part, head, query, key, value, log_total, grad, query_grad,
                                     key_grad, value_grad, scores, scores + (int64_t)BLOCK * longest);
            free(scores);
        }
}
