/* Products with packed weights: panels of 64 outputs, stored input by input. */
#include "products.h"

#include "tiles.h"

#define PANEL 64
#define BLOCK 512 /* inputs at a time: their part of a panel stays in a core's cache */
#define CHUNK 192 /* rows that one thread takes at a time */

int has_products(void) {
#if defined(__AVX512F__) && defined(__x86_64__)
    return __builtin_cpu_is("amd") != 0;
#else
    return 0; /* too few registers for the tile */
#endif
}

int64_t packed_size(int outputs, int inputs) { return (int64_t)(outputs + PANEL - 1) / PANEL * PANEL * inputs; }

/* Pack sixteen inputs at a time, so that writes are close together. */
void pack(const float *weight, int outputs, int inputs, float *out) {
    PARALLEL_ROWS
    for (int first = 0; first < outputs; first += PANEL) {
        float *panel = out + (int64_t)first * inputs;
        for (int from = 0; from < inputs; from += LANES)
            for (int j = 0; j < PANEL; j++)
                for (int i = from; i < smaller(from + LANES, inputs); i++)
                    panel[(int64_t)i * PANEL + j] = first + j < outputs ? weight[(int64_t)(first + j) * inputs + i] : 0;
    }
}

void pack_transposed(const float *weight, int outputs, int inputs, float *out) {
    PARALLEL_ROWS
    for (int first = 0; first < inputs; first += PANEL)
        for (int i = 0; i < outputs; i++) {
            float *to = out + (int64_t)first * outputs + (int64_t)i * PANEL;
            int width = smaller(PANEL, inputs - first);
            memcpy(to, weight + (int64_t)i * inputs + first, sizeof(float) * width);
            memset(to + width, 0, sizeof(float) * (PANEL - width));
        }
}

/* Compute the rows of one tile for a whole panel. */
static void across_panel(int rows, tile_t at) {
    for (int i = 0; i < PANEL; i += TILE, at.panel += TILE, at.out += TILE) {
        tile(rows, VECTORS, &at);
        if (at.onto) at.onto += TILE;
    }
}

/* Compute the rows of one tile for the last panel, which may have fewer than 64 outputs. */
static void across_edge(int rows, tile_t at, int width) {
    float whole[ROWS * PANEL] = {0};
    for (int r = 0; at.onto && r < rows; r++)
        memcpy(whole + r * PANEL, at.onto + r * at.out_row, sizeof(float) * width);
    tile_t aside = {at.x, at.x_row, 1, at.panel, PANEL, at.onto ? whole : NULL, whole, PANEL, at.count};
    across_panel(rows, aside);
    for (int r = 0; r < rows; r++) memcpy(at.out + r * at.out_row, whole + r * PANEL, sizeof(float) * width);
}

void multiply(const float *x, const float *packed, const float *onto, float *out, int rows, int inputs, int outputs) {
    _Pragma("omp parallel for schedule(static) collapse(2)")
    for (int chunk = 0; chunk < rows; chunk += CHUNK)
        for (int first = 0; first < outputs; first += PANEL)
            for (int from = 0; from < inputs; from += BLOCK) {
                const float *panel = packed + (int64_t)first * inputs + (int64_t)from * PANEL;
                int end = smaller(chunk + CHUNK, rows), count = smaller(BLOCK, inputs - from);
                for (int row = chunk; row < end; row += ROWS) {
                    int64_t place = (int64_t)row * outputs + first;
                    const float *before = from ? out + place : onto ? onto + place : NULL;
                    const float *here = x + (int64_t)row * inputs + from;
                    tile_t at = {here, inputs, 1, panel, PANEL, before, out + place, outputs, count};
                    if (first + PANEL <= outputs)
                        across_panel(smaller(ROWS, end - row), at);
                    else
                        across_edge(smaller(ROWS, end - row), at, outputs - first);
                }
            }
}
