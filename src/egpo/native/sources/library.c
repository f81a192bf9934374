/* Functions that all kernels share: the matrix product of torch, and huge pages. */
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"

sgemm_t *egpo_sgemm;

void use_sgemm(sgemm_t *sgemm) { egpo_sgemm = sgemm; }

#define HUGE_PAGE ((uintptr_t)1 << 21)

/* Ask for pages of 2 MiB where whole ones fit: fewer page faults and TLB misses. Only a hint. */
void use_huge_pages(void *memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    uintptr_t first = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t last = ((uintptr_t)memory + (uintptr_t)bytes) & ~(HUGE_PAGE - 1);
    if (first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}
