#include "kernels.h"

sgemm_t *egpo_sgemm;

void use_sgemm(sgemm_t *sgemm) { egpo_sgemm = sgemm; }
