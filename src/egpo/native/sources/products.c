/* A tile of 6 rows and 64 outputs at a time: 24 vectors of sums, which stay in registers over all inputs. A packed
weight is panels of 64 outputs, input by input. */
#include "products.h"

#define ROWS 6
#define PANEL 64
#define VECTORS (PANEL / LANES)

int has_products(void) {
#if defined(__AVX512F__) && defined(__x86_64__)
    return __builtin_cpu_is("amd") != 0;
#else
    return 0; /* too few registers for the tile */
#endif
}

int64_t packed_size(int outputs, int inputs) { return (int64_t)(outputs + PANEL - 1) / PANEL * PANEL * inputs; }

void pack(const float *weight, int outputs, int inputs, float *out) {
    PARALLEL_ROWS
    for (int first = 0; first < outputs; first += PANEL) {
        float *panel = out + (int64_t)first * inputs;
        for (int j = 0; j < PANEL; j++)
            for (int i = 0; i < inputs; i++)
                panel[(int64_t)i * PANEL + j] = first + j < outputs ? weight[(int64_t)(first + j) * inputs + i] : 0;
    }
}

/* `rows` is a constant where this is inlined: all loops but that over inputs unroll. */
static inline __attribute__((always_inline)) void tile_of(int rows, const float *x, const float *panel, float *out,
                                                          int inputs, int64_t stride, int adds) {
    lanes sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = adds ? *(lanes *)(out + r * stride + v * LANES) : (lanes){0};
    for (int64_t i = 0; i < inputs; i++)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] += x[r * (int64_t)inputs + i] * *(const lanes *)(panel + i * PANEL + v * LANES);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) *(lanes *)(out + r * stride + v * LANES) = sums[r][v];
}

static void tile(int rows, const float *x, const float *panel, float *out, int inputs, int64_t stride, int adds) {
    switch (rows) {
        case 6: tile_of(6, x, panel, out, inputs, stride, adds); break;
        case 5: tile_of(5, x, panel, out, inputs, stride, adds); break;
        case 4: tile_of(4, x, panel, out, inputs, stride, adds); break;
        case 3: tile_of(3, x, panel, out, inputs, stride, adds); break;
        case 2: tile_of(2, x, panel, out, inputs, stride, adds); break;
        default: tile_of(1, x, panel, out, inputs, stride, adds);
    }
}

/* A tile in the last panel, where fewer than 64 outputs are left. */
static void edge_tile(int rows, const float *x, const float *panel, float *out, int inputs, int64_t stride, int adds,
                      int width) {
    float whole[ROWS * PANEL];
    for (int r = 0; adds && r < rows; r++) memcpy(whole + r * PANEL, out + r * stride, sizeof(float) * width);
    tile(rows, x, panel, whole, inputs, PANEL, adds);
    for (int r = 0; r < rows; r++) memcpy(out + r * stride, whole + r * PANEL, sizeof(float) * width);
}

void multiply(const float *x, const float *packed, float *out, int rows, int inputs, int outputs, int adds) {
    PARALLEL_ROWS
    for (int first = 0; first < outputs; first += PANEL) {
        const float *panel = packed + (int64_t)first * inputs;
        int width = smaller(PANEL, outputs - first);
        for (int row = 0; row < rows; row += ROWS) {
            const float *from = x + (int64_t)row * inputs;
            float *to = out + (int64_t)row * outputs + first;
            int count = smaller(ROWS, rows - row);
            if (width == PANEL)
                tile(count, from, panel, to, inputs, outputs, adds);
            else
                edge_tile(count, from, panel, to, inputs, outputs, adds, width);
        }
    }
}
