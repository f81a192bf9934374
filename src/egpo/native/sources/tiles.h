/* The inner loop of all products: a tile of up to 6 rows and some vectors of sums, which stay in registers. */
#pragma once

#include "kernels.h"

#define ROWS 6
#if defined(__AVX512F__)
#define VECTORS 4
#else
#define VECTORS 1 /* for registers of half or a quarter of that width */
#endif
#define TILE (VECTORS * LANES)

/* out[r, :] = onto[r, :] + sum over i < count of x[r, i] * panel[i, :]. `onto` may be NULL, for zeros, or `out`. */
typedef struct {
    const float *x;
    int64_t x_row, x_step;
    const float *panel;
    int64_t panel_step;
    const float *onto;
    float *out;
    int64_t out_row;
    int count;
} tile_t;

/* `rows` and `vectors` are constants where this is inlined: all loops but that over i unroll. */
static inline __attribute__((always_inline)) void tile_of(int rows, int vectors, const tile_t *at) {
    lanes sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sums[r][v] = at->onto ? *(const lanes *)(at->onto + r * at->out_row + v * LANES) : (lanes){0};
    const float *x = at->x, *panel = at->panel;
    int64_t x_row = at->x_row, x_step = at->x_step, panel_step = at->panel_step;
    for (int i = at->count; i > 0; i--, x += x_step, panel += panel_step)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sums[r][v] += x[r * x_row] * *(const lanes *)(panel + v * LANES);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) *(lanes *)(at->out + r * at->out_row + v * LANES) = sums[r][v];
}

#define TILES_OF(rows)                                                     \
    switch (vectors) {                                                     \
        case 4: tile_of(rows, VECTORS < 4 ? VECTORS : 4, at); return;      \
        case 3: tile_of(rows, VECTORS < 3 ? VECTORS : 3, at); return;      \
        case 2: tile_of(rows, VECTORS < 2 ? VECTORS : 2, at); return;      \
        default: tile_of(rows, 1, at); return;                             \
    }

static void tile(int rows, int vectors, const tile_t *at) {
    switch (rows) {
        case 6: TILES_OF(6)
        case 5: TILES_OF(5)
        case 4: TILES_OF(4)
        case 3: TILES_OF(3)
        case 2: TILES_OF(2)
        default: TILES_OF(1)
    }
}
