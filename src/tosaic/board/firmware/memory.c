#include "memory.h"

bool tosaic_is_aligned(uintptr_t number) { return number % TOSAIC_ALIGNMENT == 0; }

bool tosaic_take(tosaic_pool *pool, uint32_t count, uint32_t width, void **memory) {
    *memory = NULL;
    uint64_t size = (uint64_t)count * width;
    if (size == 0) {
        return true;
    }
    uint64_t end = pool->used + ((size + TOSAIC_ALIGNMENT - 1u) & ~(uint64_t)(TOSAIC_ALIGNMENT - 1u));
    if (end > pool->peak) {
        pool->peak = end > UINT32_MAX ? UINT32_MAX : (uint32_t)end;
    }
    if (end > pool->size || !tosaic_is_aligned((uintptr_t)pool->base)) {
        return false;
    }
    *memory = pool->base + pool->used;
    pool->used = (uint32_t)end;
    return true;
}
